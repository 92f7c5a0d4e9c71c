"""Makes this checkout's options, header and report part of every pytest run from it."""

pytest_plugins = ["shardproof.properties.plugin"]

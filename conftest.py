"""Makes this checkout's options, header and report part of every pytest run from it."""

pytest_plugins = ["shardproof.properties.reports.plugin"]
collect_ignore = ["shardproof"]  # links to the folders beside it, whose tests `pytest .` would find twice

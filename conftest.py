"""Makes this checkout's options, header and report part of every pytest run from it."""

import pytest

from shardproof.properties.runner.garbage import kept_to_the_end

pytest_plugins = ["shardproof.properties.report.plugin"]
collect_ignore = ["shardproof"]  # links to the folders beside it, whose tests `pytest .` would find twice


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker of pytest-xdist ends here, and looks no more for what is garbage."""
    if hasattr(session.config, "workerinput"):
        kept_to_the_end()

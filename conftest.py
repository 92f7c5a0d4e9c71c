"""Makes this checkout's options, header and report part of every pytest run from it."""

import gc
import os

pytest_plugins = ["shardproof.plugin", "shardproof.properties.report.plugin"]
collect_ignore = ["shardproof"]  # links to the folders beside it, whose tests `pytest .` would find twice

# Of workers that share the cores, the threads of each that multiply matrices would wait for one another.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
gc.set_threshold(2_000_000)  # tracing makes millions of objects, and few of them are in cycles: an eighth of the time

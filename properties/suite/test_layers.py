"""Every law, on every engine, for the implementations of layers that are loops over microbatches, chunks and blocks."""

from shardproof.properties.programs.implementations import OPERATIONS
from shardproof.properties.runner.law_tests import law_tests

globals().update(law_tests([one for one in OPERATIONS if one.form == "layers"], derived=True))

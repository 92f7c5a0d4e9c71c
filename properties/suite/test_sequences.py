"""Every law, on every engine, for what works on whole sequences: attention."""

from shardproof.properties.programs.implementations import OPERATIONS
from shardproof.properties.runner.law_tests import law_tests

globals().update(law_tests([one for one in OPERATIONS if one.form == "sequences"], derived=True))

"""Every law, on every engine, for what goes with mixtures of experts: losses, gated experts, experts that choose."""

from shardproof.properties.programs.implementations import OPERATIONS
from shardproof.properties.runner.law_tests import law_tests

globals().update(law_tests([one for one in OPERATIONS if one.form == "routers"], derived=True))

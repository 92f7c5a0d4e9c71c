"""Every implementation of every collective, against every law, on every engine."""

from properties.contracts.collectives import COLLECTIVES
from properties.implementations import IMPLEMENTATIONS
from properties.law_tests import law_tests

NAMES = {contract.name for contract in COLLECTIVES}

globals().update(law_tests([i for i in IMPLEMENTATIONS if i.contract in NAMES]))

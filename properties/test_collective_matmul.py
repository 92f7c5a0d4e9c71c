"""Every implementation of every collective matrix product, against every law, on every engine."""

from properties.contracts.matmul import MATMULS
from properties.implementations import IMPLEMENTATIONS
from properties.law_tests import law_tests

NAMES = {contract.name for contract in MATMULS}

globals().update(law_tests([i for i in IMPLEMENTATIONS if i.contract in NAMES]))

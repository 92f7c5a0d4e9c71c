"""Every collective matrix product that overlaps communication with arithmetic, against every law.

What XLA makes of a case costs it a second. So the interpreter checks every law on all of them,
and XLA must agree with it, forward and backward, and send what it should.
"""

from shardproof.properties.programs.implementations import OVERLAPPED
from shardproof.properties.runner.law_tests import law_tests

globals().update(law_tests(OVERLAPPED, derived=True))

"""Every built-in collective, against every law, on every engine."""

from shardproof.properties.programs.implementations import BUILT_IN
from shardproof.properties.runner.law_tests import law_tests

globals().update(law_tests(BUILT_IN))

"""Every law for what is meant on whole arrays: functions of blocks, and of global arrays, for which the compiler sends.

What it sends where no device lacks anything is a finding about that XLA, in the report, and no failure of ours.
"""

from shardproof.properties.programs.implementations import OPERATIONS
from shardproof.properties.runner.law_tests import law_tests

globals().update(law_tests([one for one in OPERATIONS if one.form == "whole"], derived=True))

"""The laws that tie implementations to oracles, the cases that check them, and the engines that run them.

`check` verifies one function of yours inside a test of yours.
"""

from properties.checking import check

__all__ = ["check"]

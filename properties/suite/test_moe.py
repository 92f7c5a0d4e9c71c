"""Every law, on every engine, for all dispatches of a mixture of experts."""

from shardproof.impl import moe
from shardproof.properties.contracts import CONTRACTS
from shardproof.properties.programs.implementations import OPERATIONS
from shardproof.properties.runner.law_tests import law_tests

ROUTED = [one for one in OPERATIONS if one.form == "routed"]
globals().update(law_tests(ROUTED, derived=True))


def test_all_dispatches_are_here() -> None:
    """Every dispatch of the package is checked by every law of its contract."""
    checked = {claim.function for other in CONTRACTS.values() for claim in other.implementations.values()}
    package = {function for name, function in vars(moe).items() if name.endswith("_moe")}
    assert package <= checked
    others = ("expert_choice", "global_")
    assert {one.function for one in ROUTED} == {f for f in package if not any(o in f.__name__ for o in others)}

"""The class of right implementations that look odd, and their registration."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from shardproof.properties.contracts import CONTRACTS

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class RightOne:
    """A right implementation that no law may report.

    Arguments:
        name: the function's name.
        contract: the contract that it satisfies.
        sentence: what is odd about it.
        function: the device-local function, or any other callable.
        claims: the features that it claims.
        whole: whether it takes global arrays, and the mesh.

    Raises:
        ValueError: if the contract is not known, or the sentence is missing.
    """

    name: str
    contract: str
    sentence: str
    function: Callable[..., Any]
    claims: tuple[str, ...] = ()
    whole: bool = False

    def __post_init__(self) -> None:
        if self.contract not in CONTRACTS:
            raise ValueError(f"{self.name}: contract={self.contract!r}: expected one of {', '.join(CONTRACTS)}")
        if not self.sentence.endswith("."):
            raise ValueError(f"{self.name}: sentence={self.sentence!r}: expected a docstring of one sentence")

    def __str__(self) -> str:
        return f"{self.contract}[{self.name}]"


RIGHT_ONES: dict[str, RightOne] = {}
"""Every one of them by its name."""


def enter(name: str, contract: str, sentence: str, function: Callable[..., Any], **more: Any) -> None:
    """Enters a callable into the catalogue.

    Raises:
        ValueError: if the name is taken, or see `RightOne`.
    """
    if name in RIGHT_ONES:
        raise ValueError(f"{name}: expected a name that no other has")
    RIGHT_ONES[name] = RightOne(name, contract, sentence, function, **more)


def right(contract: str, *, claims: tuple[str, ...] = (), whole: bool = False) -> Callable[[Function], Function]:
    """Enters a function into the catalogue; its docstring says in one sentence what is odd about it."""

    def add(function: Function) -> Function:
        sentence = " ".join((function.__doc__ or "").split())
        enter(function.__name__, contract, sentence, function, claims=claims, whole=whole)
        return function

    return add

"""Names by which a script or a command line imports functions and programs."""

import dataclasses
import functools
import inspect
import keyword
import shlex
import sys
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardproof.properties.programs.built_in import IMPLEMENTATIONS
from shardproof.properties.programs.expectation import Expectation
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.runner.preconditions import NotAFailure


@dataclass(frozen=True)
class BuiltIn:
    """An implementation of this project, by name."""

    contract: str
    name: str

    def load(self) -> Implementation:
        """The implementation; raises NotAFailure if there is none by this name."""
        for one in IMPLEMENTATIONS:
            if (one.contract.name, one.name) == (self.contract, self.name):
                return one
        raise NotAFailure(f"name={self.name!r}: not an implementation of {self.contract} in this project")


def is_built_in(implementation: Implementation) -> bool:
    """True if it is one of this project's own."""
    identity = implementation.contract.name, implementation.name, implementation.function
    return identity in [(one.contract.name, one.name, one.function) for one in IMPLEMENTATIONS]


@dataclass(frozen=True)
class Named:
    """The name of a function or program: its module, its name there, and the file of the module."""

    module: str
    qualname: str
    path: Path | None = None

    @property
    def importable(self) -> bool:
        """True if it can be imported by its name: not so for lambdas and functions inside functions."""
        parts = [*self.module.split("."), *self.qualname.split(".")]
        if self.module == "__main__" or not all(p.isidentifier() and not keyword.iskeyword(p) for p in parts):
            return False
        loaded = sys.modules.get(self.module)
        return loaded is None or attribute(loaded, self.qualname) is not None

    @property
    def folder(self) -> str:
        """The folder to import a user's module from; empty for an installed one, and for this project's own."""
        parts = self.module.split(".")
        if self.path is None or {"site-packages", "dist-packages"} & {*self.path.parts} or parts[0] == "shardproof":
            return ""
        parts = [*parts, "__init__"] if self.path.name == "__init__.py" else parts
        named_so = list(self.path.with_suffix("").parts[-len(parts) :]) == parts
        return str(self.path.parents[len(parts) - 1]) if named_so else ""

    def __str__(self) -> str:
        return f"{self.module}:{self.qualname}"


def find_name(function: Any) -> Named:
    """The name that a function has in its module, or else in any module; `<…>` if it has none."""
    try:
        path = Path(inspect.getfile(inspect.unwrap(function))).resolve()
    except (TypeError, OSError, ValueError):
        path = None
    found = Named(str(getattr(function, "__module__", "")), str(getattr(function, "__qualname__", "")), path)
    loaded = sys.modules.get(found.module)
    if loaded is None or attribute(loaded, found.qualname) == function:
        return found
    return held_by_a_module(function) or dataclasses.replace(found, qualname=f"<{found.qualname}>")


def held_by_a_module(program: Any) -> Named | None:
    """The name of a program in the module that was imported last of those that hold it: that one defines it."""
    for module, loaded in reversed(list(sys.modules.items())):
        path = getattr(loaded, "__file__", None)
        if module in ("__main__", "__mp_main__") or not path or not isinstance(loaded, types.ModuleType):
            continue
        for name, value in list(vars(loaded).items()):
            if value is program:
                return Named(module, name, Path(path).resolve())
    return None


def name_of(implementation: Implementation) -> Named | None:
    """The name by which `--impl` finds a function or program, if there is one."""
    if implementation.program is not None:
        return held_by_a_module(implementation.program)
    found = find_name(implementation.function)
    return found if found.importable else None


def impl_options(implementation: Implementation, name: Named) -> str:
    """The options that name a user's implementation, and what it claims."""
    if implementation.program is not None:
        return f" --impl {name}"
    options = {"claims": "--claims", "communication": "--expect-communication", "overlap": "--expect-overlap"}
    said = [f" {options[name]} {shlex.quote(value)}" for name, value in said_of(implementation).items()]
    return f" --impl {implementation.contract.name}={name}{''.join(said)}"


def said_of(implementation: Implementation) -> dict[str, str]:
    """The claims about a function, by the arguments of `check`."""
    sent = implementation.communication
    said = {
        "claims": ",".join(sorted(implementation.features)),
        "communication": str(sent) if isinstance(sent, Expectation) else "",
        "overlap": str(implementation.overlap or ""),
    }
    return {name: value for name, value in said.items() if value}


def source_text(function: Any) -> str:
    """The source of a function, or else its code; the same in every run."""
    if isinstance(function, functools.partial):
        return f"{source_text(function.func)}{function.args}{function.keywords}"
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):
        code = getattr(function, "__code__", None)
        return "" if code is None else code.co_code.hex() + repr(code.co_names)


def attribute(module: Any, qualname: str) -> Any:
    """The value of a dotted name in a module, through classes as well; None if there is none."""
    found = module
    for part in qualname.split("."):
        if not isinstance(found, type | types.ModuleType) or part not in vars(found):
            return None
        found = getattr(found, part)
    return found

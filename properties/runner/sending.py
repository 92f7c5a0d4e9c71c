"""Functions on their way to another process: by the name that a module has for them, others by value."""

import os
import sys
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from types import CodeType
from typing import Any

import cloudpickle
from jax.extend.core import Primitive

from shardproof.properties.programs.implementations import Implementation


class NotSent(RuntimeError):
    """A function does not reach another process; the message says why."""


@dataclass(frozen=True, eq=False)
class Here:
    """An implementation of this process. In another one it is what `Arrived` makes of it."""

    implementation: Implementation

    def load(self) -> Implementation:
        """The implementation."""
        return self.implementation

    def __reduce__(self) -> tuple[Any, ...]:
        content = BytesIO()
        try:
            _Pickler(content).dump(self.implementation)
        except Exception as error:  # anything that a function refers to may refuse
            raise NotSent(in_words(error)) from error
        return Arrived, (content.getvalue(), tuple(sys.path), str(Path.cwd()))

    def __str__(self) -> str:
        return str(self.implementation)


@dataclass(frozen=True)
class Arrived:
    """An implementation of the process that this one checks it for.

    Arguments:
        content: the implementation, pickled.
        path: where that process finds modules.
        folder: the folder that it is in.
    """

    content: bytes
    path: tuple[str, ...]
    folder: str

    def load(self) -> Implementation:
        """The implementation, for which modules are imported.

        Raises:
            NotSent: if it cannot be made here.
        """
        os.chdir(self.folder)
        sys.path[:] = self.path
        try:
            found: Implementation = cloudpickle.loads(self.content)
        except Exception as error:  # whatever an import raises
            raise NotSent(in_words(error)) from error
        return found if found.program is None else replace(found, contract=found.program.contract)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc] # it has no annotations
    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, Primitive):  # JAX finds its rules by its identity
            raise NotSent(f"it refers to the primitive {value} itself")
        if isinstance(value, CodeType):  # which keeps the name of its file, since reports tell lines
            make, parts = self.dispatch_table[CodeType](value)
            return make, tuple(value.co_filename if part == "<dynamic-code>" else part for part in parts)
        return super().reducer_override(value)


def in_words(error: Exception) -> str:
    """An exception in one line."""
    return str(error) if isinstance(error, NotSent) else f"{type(error).__name__}: {error}".partition("\n")[0]

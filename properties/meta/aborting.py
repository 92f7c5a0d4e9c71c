"""A backend that ends the process where a program sorts: imported by a process of the conformance tests."""

import os
from typing import Any

import jax

_sort = jax.lax.sort


def _abort(*args: Any, **kwargs: Any) -> Any:
    os.abort()


jax.lax.sort = _abort

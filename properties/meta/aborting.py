"""A backend that negates wrongly, aborts where it sorts, and hangs where it reverses: a process imports it."""

import os
import threading
from typing import Any

import jax
from jax.interpreters import mlir


def _abort(*args: Any, **kwargs: Any) -> Any:
    os.abort()


def _hang(*args: Any, **kwargs: Any) -> Any:
    threading.Event().wait()


mlir.register_lowering(jax.lax.neg_p, mlir.lower_fun(lambda x: x + x, multiple_results=False))
jax.lax.sort = _abort
jax.lax.rev = _hang

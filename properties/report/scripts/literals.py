"""Arrays, dtypes and layouts as Python source that a person can read and paste."""

import json
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from shardproof.properties.cases.reading import one_line
from shardproof.properties.programs.program import of_products


def quoted(text: str) -> str:
    """A string as an expression, in double quotes."""
    return json.dumps(text, ensure_ascii=False)


def docstring(lines: Sequence[str]) -> list[str]:
    """The lines of a docstring, whatever they hold: no text closes it, or escapes from a line."""
    escaped = [one_line(line).replace("\\", "\\\\").replace('"""', '\\"\\"\\"') for line in lines]
    return [f'"""{escaped[0]}', *escaped[1:], '"""']


def dtype_text(dtype: np.dtype) -> str:
    """A dtype as an expression: `np.float32`, `jnp.bfloat16`."""
    return f"{'np' if hasattr(np, dtype.name) else 'jnp'}.{dtype.name}"


def array_text(array: np.ndarray) -> str:
    """An array as an expression in `np` and `jnp`, exact to the last bit of every number."""
    dtype, shape = dtype_text(array.dtype), tuple(array.shape)
    if array.size == 0 or (not array.any() and not np.signbit(_plain(array)).any() and array.size > 1):
        return f"np.zeros({shape}, {dtype})"
    if array.dtype.kind == "c":
        parts = np.stack([array.real, array.imag], axis=-1)
        return f"{_values(parts, dtype_text(parts.dtype))}.view({dtype})[..., 0]  # real, imaginary"
    return _values(_plain(array), dtype)


def _plain(array: np.ndarray) -> np.ndarray:
    """The values in a dtype that NumPy prints: those of ml_dtypes in float32 or int32, which hold them exactly."""
    if array.dtype.kind == "c":
        return np.asarray(array.real)
    if array.dtype.kind in "iufb" and not array.dtype.name.startswith(("bfloat", "float8", "int4", "uint4")):
        return array
    return array.astype(np.int32 if "int" in array.dtype.name else np.float32)


def _values(array: np.ndarray, dtype: str) -> str:
    if array.ndim > 1 and np.prod(array.shape[:-1]) > 24:  # rows
        return f"{_values(array.ravel(), dtype)}.reshape({tuple(array.shape)})"
    text = np.array2string(array, separator=", ", threshold=array.size + 1, max_line_width=100, floatmode="unique")
    text = text.replace("nan", "np.nan").replace("inf", "np.inf")
    if "\n" in text:
        text = "\n    ".join(line.rstrip() for line in text.split("\n") if line.strip())
        return f"np.array(\n    {text},\n    {dtype},\n)"
    return f"np.array({text}, {dtype})"


def bound_text(bound: np.ndarray) -> str:
    """An error bound, to a few digits, rounded up."""
    return array_text(np.asarray([float(f"{b:.4e}") for b in np.ravel(bound * 1.0001)]).reshape(bound.shape))


def spec_text(entries: Sequence[Sequence[str]]) -> str:
    """A PartitionSpec: `P("dp", None, ("tp", "ep"))`."""
    texts = ["None" if not e else quoted(e[0]) if len(e) == 1 else f"({', '.join(map(quoted, e))})" for e in entries]
    return f"P({', '.join(texts)})"


def tuple_text(texts: Sequence[str]) -> str:
    """A tuple of expressions."""
    return f"({', '.join(texts)}{',' if len(texts) == 1 else ''})"


class Verbatim(str):
    """An expression, which is its own representation."""

    __slots__ = ()
    __repr__ = str.__str__


def tree_text(tree: Any) -> str:
    """A tree of dicts, lists and tuples whose leaves are expressions: `{'w': w, 'b': b}`."""
    return repr(jax.tree.map(Verbatim, tree))


def options(devices: Sequence[int], *, in_doubles: bool) -> list[str]:
    """The lines that set JAX's options as they were where the law failed."""
    values: dict[str, str] = {}
    if (getattr(jax.config, "jax_platforms", None) or "cpu") == "cpu":
        values |= {"jax_platforms": quoted("cpu"), "jax_num_cpu_devices": str(max(devices) + 1)}
    if in_doubles:
        values["jax_enable_x64"] = "True"
    if (precision := of_products()) is not None:
        values["jax_default_matmul_precision"] = quoted(precision)
    return [f"jax.config.update({quoted(name)}, {value})" for name, value in values.items()]

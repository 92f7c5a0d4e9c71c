"""Arrays, dtypes and layouts as Python source that a person can read and paste."""

import base64
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from shardproof.properties.cases.reading import one_line

MOST = 600
"""The most elements that are written out one by one; more are compressed."""


LINES = 24
"""The most rows that an array is written in; of more, the elements follow one another."""


def quoted(text: str) -> str:
    """A string as an expression, in double quotes where it needs no escape."""
    plain = text.isprintable() and not set(text) & set("\"'\\")
    return f'"{text}"' if plain else repr(text)


def comment(text: str) -> str:
    """A comment of one line, whatever the text holds."""
    return f"# {one_line(text)}"


def docstring(lines: Sequence[str]) -> list[str]:
    """The lines of a docstring, whatever they hold: no text closes it, or escapes from a line."""
    escaped = [one_line(line).replace("\\", "\\\\").replace('"""', '\\"\\"\\"') for line in lines]
    return [f'"""{escaped[0]}', *escaped[1:], '"""']


def dtype_text(dtype: np.dtype) -> str:
    """A dtype as an expression: `np.float32`, `jnp.bfloat16`."""
    dtype = np.dtype(dtype)
    if dtype == bool:
        return "np.bool_"
    return (
        f"{'np' if dtype.kind in 'iufc' and dtype.name[0] != 'b' and hasattr(np, dtype.name) else 'jnp'}.{dtype.name}"
    )


def array_text(array: np.ndarray) -> str:
    """An array as an expression in `np` and `jnp`, exact to the last bit of every number."""
    dtype, shape = dtype_text(array.dtype), tuple(array.shape)
    if array.size == 0 or (not array.any() and not np.signbit(_plain(array)).any() and array.size > 1):
        return f"np.zeros({shape}, {dtype})"
    if array.size > MOST:
        packed = base64.b64encode(zlib.compress(np.ascontiguousarray(array).tobytes(), 9)).decode()
        lines = "\n".join(f'    "{packed[i : i + 100]}"' for i in range(0, len(packed), 100))
        return f"np.frombuffer(zlib.decompress(base64.b64decode(\n{lines}\n)), {dtype}).reshape({shape})"
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
    if array.ndim > 1 and np.prod(array.shape[:-1]) > LINES:
        return f"{_values(array.ravel(), dtype)}.reshape({tuple(array.shape)})"
    text = np.array2string(array, separator=", ", threshold=MOST * 2, max_line_width=100, floatmode="unique")
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


def tree_text(tree: Any) -> str:
    """A tree of dicts, lists and tuples whose leaves are the names of variables: `{'w': w, 'b': b}`."""
    if isinstance(tree, Mapping):
        return "{" + ", ".join(f"{key!r}: {tree_text(value)}" for key, value in tree.items()) + "}"
    if isinstance(tree, tuple):
        return tuple_text([tree_text(value) for value in tree])
    if isinstance(tree, list):
        return "[" + ", ".join(map(tree_text, tree)) + "]"
    return str(tree)

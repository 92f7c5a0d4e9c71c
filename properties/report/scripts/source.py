"""The lines by which a script gets a function: an import where it has a name, its source where it has none."""

import ast
import inspect
import json
import keyword
import sys
import textwrap
import types
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from shardproof.properties.cases.reading import one_line
from shardproof.properties.programs.program import matmul_precision
from shardproof.properties.runner.named import Named, find_name


def quote(text: str) -> str:
    """A string as an expression, in double quotes."""
    return json.dumps(text, ensure_ascii=False)


def docstring(lines: Sequence[str]) -> list[str]:
    """The lines of a docstring, escaped so that no text can end it."""
    escaped = [one_line(line).replace("\\", "\\\\").replace('"""', '\\"\\"\\"') for line in lines]
    return [f'"""{escaped[0]}', *escaped[1:], '"""']


def dtype_text(dtype: np.dtype) -> str:
    """A dtype as an expression: `np.float32`, `jnp.bfloat16`."""
    return f"{'np' if hasattr(np, dtype.name) else 'jnp'}.{dtype.name}"


def array_text(array: np.ndarray) -> str:
    """An array as an expression in `np` and `jnp`, exact to the last bit of every number."""
    dtype = dtype_text(array.dtype)
    if array.size != 1 and not array.tobytes().strip(b"\0"):
        return f"np.zeros({array.shape}, {dtype})"
    if array.dtype.kind == "c":
        parts = np.stack([array.real, array.imag], axis=-1)
        return f"{_values(parts, dtype_text(parts.dtype))}.view({dtype})[..., 0]  # real, imaginary"
    if array.dtype.type.__module__ != "numpy":  # of ml_dtypes, which float32 and int32 hold exactly
        array = array.astype(np.int32 if "int" in array.dtype.name else np.float32)
    return _values(array, dtype)


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
    texts = ["None" if not e else quote(e[0]) if len(e) == 1 else f"({', '.join(map(quote, e))})" for e in entries]
    return f"P({', '.join(texts)})"


def tuple_text(texts: Sequence[str]) -> str:
    """A tuple of expressions."""
    return f"({', '.join(texts)}{',' if len(texts) == 1 else ''})"


class Verbatim(str):
    """An expression, which is its own representation."""

    __slots__ = ()
    __repr__ = str.__str__


def tree_text(tree: Any) -> str:
    """A tree whose leaves are expressions, as one: `{'w': w}`, `State(mu=mu)`; `...` if it prints otherwise."""
    text = repr(jax.tree.map(Verbatim, tree))
    try:
        ast.parse(text, mode="eval")
    except SyntaxError:
        return "..."
    return text


def options(devices: Sequence[int], *, in_doubles: bool) -> list[str]:
    """The lines that set JAX's options as they are in this process."""
    values: dict[str, str] = {}
    if (getattr(jax.config, "jax_platforms", None) or "cpu") == "cpu":
        values |= {"jax_platforms": quote("cpu"), "jax_num_cpu_devices": str(max(devices) + 1)}
    if in_doubles:
        values["jax_enable_x64"] = "True"
    if (precision := matmul_precision()) is not None:
        values["jax_default_matmul_precision"] = quote(precision)
    return [f"jax.config.update({quote(name)}, {value})" for name, value in values.items()]


@dataclass(frozen=True)
class Source:
    """The lines that define a name, and the names of what they lack."""

    name: str
    lines: list[str]
    missing: list[str] = field(default_factory=list)


def classes_of(tree: Any) -> Source:
    """The imports of the classes of a tree; it lacks those that cannot be imported, or do not print as code."""
    nodes: list[Any] = [jax.tree.structure(tree)]
    classes = dict[str, type]()
    while nodes:
        nodes += (node := nodes.pop()).children()
        of, _ = node.node_data() or (object, None)
        if of.__module__ != "builtins":
            classes[of.__name__] = of
    found = {name: _definition(name, of) for name, of in sorted(classes.items())}
    printed = tree_text(tree) != "..."
    missing = [name for name, lines in found.items() if not lines or not printed]
    return Source("", [line for lines in found.values() for line in lines], missing)


def join(name: str, sources: Sequence[Source]) -> Source:
    """Several sources one after the other."""
    lines = [line for one in sources for line in one.lines]
    return Source(name, lines, [each for one in sources for each in one.missing])


def source_of(function: Any, called: str = "implementation") -> Source:
    """The import of a function, or the source of a lambda or inner function with what it uses, or a place for it."""
    found = _find(called, function)
    if found is None:
        own = getattr(function, "__name__", type(function).__name__)
        lines = [
            f"# {one_line(own)} has no name to import it by, and its source was not found: put it here",
            f"def {called}(*args, **kwargs):",
            '    raise NotImplementedError("put the implementation into this script")',
        ]
        return Source(called, lines, ["the implementation"])
    if isinstance(function, types.FunctionType) and not find_name(function).importable:
        # in a function of its own it meets nothing else of the script
        lines = [f"def make_{called}():", *(textwrap.indent(line, "    ") for line in found.lines)]
        lines += [f"    return {found.name}", "", "", f"{called} = make_{called}()"]
        return Source(called, lines, found.missing)
    return found


def import_of(name: Named, called: str) -> Source:
    """The import of a function or program under another name, which nothing else in the script has."""
    first, _, rest = name.qualname.partition(".")
    other_name = f" as {called}" if called != first else ""
    lines = [f"from {name.module} import {first}{other_name}", *([f"{called} = {called}.{rest}"] if rest else [])]
    return Source(called, lines)


def path_lines(lines: Iterable[str]) -> list[str]:
    """The lines that put on the path the folders of imported modules that are not installed.

    The working directory follows if one of them is below it.
    """
    nodes = [*ast.walk(ast.parse("\n".join(lines)))]
    named = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    named += [node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module]
    folders = list(dict.fromkeys(folder for name in named for folder in _roots(name.partition(".")[0])))
    below = any(Path.cwd() in folder.parents for folder in folders)
    inserted = [f"sys.path.insert(0, {quote(folder.as_posix())})" for folder in folders]
    return [*inserted, *([f"sys.path.append({quote(Path.cwd().as_posix())})"] if below else [])]


def _roots(package: str) -> list[Path]:
    """The folders from which a module or package that is not installed is imported."""
    module = sys.modules.get(package)
    if module is None or package in sys.stdlib_module_names:
        return []
    paths = [Path(path) for path in getattr(module, "__path__", [])] or [Path(getattr(module, "__file__", None) or ".")]
    folders = [path.resolve().parent for path in paths if path != Path()]
    return [folder for folder in folders if not {"site-packages", "dist-packages"} & {*folder.parts}]


def _find(name: str, value: Any, around: tuple[Any, ...] = ()) -> Source | None:
    """The source that gives a name its value, inside the functions `around`; None if there is nothing."""
    if isinstance(value, types.ModuleType):
        package, _, last = value.__name__.rpartition(".")
        start = f"from {package} import {last}" if package else f"import {last}"
        dotted = all(part.isidentifier() and not keyword.iskeyword(part) for part in value.__name__.split("."))
        return Source(name, [f"{start}{'' if last == name else f' as {name}'}"]) if dotted else None
    with suppress(ValueError, SyntaxError, TypeError):
        if ast.literal_eval(repr(value)) == value:
            return Source(name, [f"{name} = {value!r}"])
    if (known := find_name(value)).importable:
        return import_of(known, name)
    if isinstance(value, partial):
        return _partial(value, name)
    if isinstance(value, types.MethodType):
        owner = source_of(value.__self__, name)
        return Source(name, [*owner.lines, f"{name} = {name}.{value.__name__}"], owner.missing)
    return _embed(value, name, around) if isinstance(value, types.FunctionType) else None


def _definition(name: str, value: Any, around: tuple[Any, ...] = ()) -> list[str]:
    """The lines that give a name its value; none if they would lack something."""
    found = _find(name, value, around)
    if found is None or found.missing:
        return []
    return [*found.lines, *([f"{name} = {found.name}"] if found.name != name else [])]


def _partial(function: partial[Any], called: str) -> Source:
    """The lines that define a `partial`, its function and its arguments."""
    source = source_of(function.func, called)
    lines, given, missing = ["from functools import partial", *source.lines], [called], [*source.missing]
    for key, value in (*enumerate(function.args), *function.keywords.items()):
        name = f"{called}_{key}"
        defined = _definition(name, value)
        if not defined:
            defined = [f"{name} = None  # put it here: {one_line(repr(value))}"]
            missing.append(name)
        lines += defined
        given.append(name if isinstance(key, int) else f"{key}={name}")
    return Source(called, [*lines, f"{called} = partial({', '.join(given)})"], missing)


def _embed(function: types.FunctionType, name: str, around: tuple[Any, ...]) -> Source | None:
    """The source of a function and of what it uses, if there is one."""
    try:
        nodes = [*ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function))))]
    except (OSError, TypeError, SyntaxError):
        return None
    wanted = list(inspect.signature(function).parameters)
    lambdas = [
        n
        for n in nodes
        if isinstance(n, ast.Lambda) and [a.arg for a in ast.walk(n.args) if isinstance(a, ast.arg)] == wanted
    ]
    definition = next((n for n in nodes if isinstance(n, ast.FunctionDef)), None)
    tree: ast.AST
    if function.__name__ == "<lambda>" and len(lambdas) == 1:
        tree = lambdas[0]  # the line may be a call, which names more
        text = f"{name} = {ast.unparse(tree)}"
    elif definition is not None and definition.name == function.__name__:
        tree, name, definition.decorator_list = definition, definition.name, []
        for node in ast.walk(definition):  # annotations may name what the script has not
            if isinstance(node, ast.FunctionDef):
                node.returns = None
            elif isinstance(node, ast.arg):
                node.annotation = None
        text = ast.unparse(definition)
    else:
        return None
    local = {*function.__code__.co_varnames, *function.__code__.co_cellvars}  # not the module's by that name
    names = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)} - local
    outside = {n: v for n, v in function.__globals__.items() if n in names}
    outside |= inspect.getclosurevars(function).nonlocals
    around = (*around, function)
    used: list[list[str]] = []
    missing: list[str] = []
    for other, value in sorted(outside.items()):
        if any(value is known for known in around):
            continue
        if lines := _definition(other, value, around):
            used.append(lines)
        else:
            missing.append(other)
            used.append([f"# {other} is not defined here: {type(value).__name__} of {function.__module__}"])
    used.sort(key=lambda lines: not lines[0].startswith(("from ", "import ")))
    return Source(name, [line for lines in (*used, text.split("\n")) for line in lines], missing)

"""The lines by which a script gets a function: an import where it has a name, its source where it has none."""

import ast
import inspect
import json
import keyword
import sys
import textwrap
import types
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
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
    """The lines that define a name, the folders that they import from, and the names of what they lack."""

    name: str
    lines: list[str]
    folders: tuple[str, ...] = ()
    missing: list[str] = field(default_factory=list)

    @property
    def paths(self) -> list[str]:
        """The lines that put these folders on the path, and the working directory if one is below it."""
        lines = [f"sys.path.insert(0, {quote(Path(folder).as_posix())})" for folder in self.folders]
        below = any(Path.cwd() in Path(folder).parents for folder in self.folders)
        return [*lines, *([f"sys.path.append({quote(Path.cwd().as_posix())})"] if below else [])]


def classes_of(tree: Any) -> Source:
    """The imports of the classes of a tree; it lacks those that cannot be imported, or do not print as code."""
    nodes: list[Any] = [jax.tree.structure(tree)]
    classes = dict[str, type]()
    while nodes:
        nodes += (node := nodes.pop()).children()
        of, _ = node.node_data() or (object, None)
        if of.__module__ != "builtins":
            classes[of.__name__] = of
    found = {name: _definition(name, of, ()) for name, of in sorted(classes.items())}
    lines = [line for line in found.values() if line is not None]
    printed = tree_text(tree) != "..."
    return Source("", lines, folders_of(lines), [name for name, line in found.items() if line is None or not printed])


def join(name: str, sources: Sequence[Source]) -> Source:
    """Several sources one after the other."""
    return Source(
        name,
        [line for one in sources for line in one.lines],
        tuple(dict.fromkeys(folder for one in sources for folder in one.folders)),
        [each for one in sources for each in one.missing],
    )


def source_of(function: Any, called: str = "implementation") -> Source:
    """The import of a function, or the source of a lambda or inner function with what it uses, or a place for it."""
    name = find_name(function)
    if name.importable:
        return import_of(name, called)
    if isinstance(function, partial):
        return _partial(function, called)
    if isinstance(function, types.MethodType):
        owner = source_of(function.__self__, called)
        return replace(owner, lines=[*owner.lines, f"{called} = {called}.{function.__name__}"])
    found = _embed(function, called)
    if found is not None:  # in a function of its own it meets nothing else of the script
        lines = [f"def make_{called}():", *(textwrap.indent(line, "    ") for line in found.lines)]
        lines += [f"    return {found.name}", "", "", f"{called} = make_{called}()"]
        return Source(called, lines, folders_of(found.lines), found.missing)
    own = getattr(function, "__name__", type(function).__name__)
    lines = [
        f"# {one_line(own)} has no name to import it by, and its source was not found: put it here",
        f"def {called}(*args, **kwargs):",
        '    raise NotImplementedError("put the implementation into this script")',
    ]
    return Source(called, lines, missing=["the implementation"])


def _partial(function: partial[Any], called: str) -> Source:
    """The lines that define a `partial`, its function and its arguments."""
    source = source_of(function.func, called)
    lines, given, missing = ["from functools import partial", *source.lines], [called], [*source.missing]
    for key, value in (*enumerate(function.args), *function.keywords.items()):
        name = f"{called}_{key}"
        line = _definition(name, value, ())
        if line is None:
            line = f"{name} = None  # put it here: {one_line(repr(value))}"
            missing.append(name)
        lines.append(line)
        given.append(name if isinstance(key, int) else f"{key}={name}")
    lines.append(f"{called} = partial({', '.join(given)})")
    return Source(called, lines, tuple(dict.fromkeys((*source.folders, *folders_of(lines)))), missing)


def import_of(name: Named, called: str) -> Source:
    """The import of a function or program under another name, which nothing else in the script has."""
    first, _, rest = name.qualname.partition(".")
    other_name = f" as {called}" if called != first else ""
    lines = [f"from {name.module} import {first}{other_name}", *([f"{called} = {called}.{rest}"] if rest else [])]
    return Source(called, lines, (name.folder,) if name.folder else folders_of(lines))


def folders_of(lines: Iterable[str]) -> tuple[str, ...]:
    """The folders of the imported modules that are not installed."""
    named: list[str] = []
    for node in ast.walk(ast.parse("\n".join(lines))):
        if isinstance(node, ast.Import):
            named += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            named.append(node.module)
    return tuple(dict.fromkeys(folder for name in named for folder in _roots(name.partition(".")[0])))


def _roots(package: str) -> list[str]:
    """The folders from which a module or package that is not installed is imported."""
    module = sys.modules.get(package)
    if module is None or package in sys.stdlib_module_names:
        return []
    paths = [Path(path) for path in getattr(module, "__path__", [])] or [Path(getattr(module, "__file__", None) or ".")]
    folders = [path.resolve().parent for path in paths if path != Path()]
    return [str(folder) for folder in folders if not {"site-packages", "dist-packages"} & {*folder.parts}]


def _embed(function: Callable[..., Any], name: str, around: tuple[Any, ...] = ()) -> Source | None:
    """The source of a function and of what it uses, if there is one."""
    if not isinstance(function, types.FunctionType):
        return None
    try:
        nodes = [*ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function))))]
    except (OSError, TypeError, SyntaxError):
        return None
    wanted = list(inspect.signature(function).parameters)
    parameters = {
        n: [a.arg for a in ast.walk(n.args) if isinstance(a, ast.arg)] for n in nodes if isinstance(n, ast.Lambda)
    }
    lambdas = [n for n in parameters if parameters[n] == wanted]
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
    before, missing = _names_used(function, names, (*around, function))
    return Source(name, [line for part in (*before, text) for line in part.split("\n")], missing=missing)


def _names_used(function: types.FunctionType, names: set[str], around: tuple[Any, ...]) -> tuple[list[str], list[str]]:
    """The lines that define what a function refers to outside itself, and the names that they lack."""
    nonlocals = inspect.getclosurevars(function).nonlocals
    outside = {n: v for n, v in function.__globals__.items() if n in names} | dict(nonlocals)
    lines, missing = [], []
    for name, value in sorted(outside.items()):
        if any(value is known for known in around):
            continue
        line = _definition(name, value, around)
        if line is None:
            missing.append(name)
            lines.append(f"# {name} is not defined here: {type(value).__name__} of {function.__module__}")
        else:
            lines.append(line)
    return sorted(lines, key=lambda line: not line.startswith(("from ", "import "))), missing


def _definition(name: str, value: Any, around: tuple[Any, ...]) -> str | None:
    """Text that gives a name its value; None if there is none."""
    if isinstance(value, types.ModuleType):
        package, _, last = value.__name__.rpartition(".")
        start = f"from {package} import {last}" if package else f"import {last}"
        dotted = all(part.isidentifier() and not keyword.iskeyword(part) for part in value.__name__.split("."))
        return f"{start}{'' if last == name else f' as {name}'}" if dotted else None
    with suppress(ValueError, SyntaxError, TypeError):
        if ast.literal_eval(repr(value)) == value:
            return f"{name} = {value!r}"
    known = find_name(value)
    if known.importable:
        return "\n".join(import_of(known, name).lines)
    found = _partial(value, name) if isinstance(value, partial) else _embed(value, name, around)
    if found is None or found.missing:
        return None
    return "\n".join([*found.lines, *([f"{name} = {found.name}"] if found.name != name else [])])

"""How a script gets hold of a function: an import where it has a name, its source where it has none."""

import ast
import builtins
import inspect
import io
import keyword
import sys
import textwrap
import tokenize
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shardproof.properties.report.scripts.literals import comment, quoted
from shardproof.properties.runner.named import Named, named

OTHER = "implementation"
"""The name of a function in a script that has its own name for something else."""


@dataclass(frozen=True)
class Source:
    """The lines that define a function, the name it then has, the folders they import from, and what is missing."""

    name: str
    lines: list[str]
    folders: tuple[str, ...] = ()
    missing: list[str] = field(default_factory=list)

    @property
    def paths(self) -> list[str]:
        """The lines that put these folders on the path, and that in which the project was run."""
        lines = [f"sys.path.insert(0, {quoted(Path(folder).as_posix())})" for folder in self.folders]
        below = any(Path.cwd() in Path(folder).parents for folder in self.folders)
        return [*lines, *([f"sys.path.append({quoted(Path.cwd().as_posix())})"] if below else [])]


def names_in(lines: Iterable[str]) -> set[str]:
    """All names in some code, keywords and builtins of Python among them."""
    tokens = tokenize.generate_tokens(io.StringIO("\n".join(lines)).readline)
    return {*keyword.kwlist, *dir(builtins), *(token.string for token in tokens if token.type == tokenize.NAME)}


def source_of(function: Callable[..., Any], taken: Iterable[str] = (), other: str = OTHER) -> Source:
    """An import, or the source of a lambda or an inner function with what it uses, or a place to put it.

    Arguments:
        function: the function.
        taken: the names that the script has for something else.
        other: the name of the function there, if its own is one of them.
    """
    taken = set(taken)
    name = named(function)
    if name.importable:
        return imported(name, taken, other)
    found = _embedded(function, "", other)
    if found is not None:
        found = Source(found.name, found.lines, folders_of(found.lines), found.missing)
        return _inside(found, other) if _defined(found.lines) & taken else found
    called = getattr(function, "__name__", type(function).__name__)
    lines = [
        comment(f"{called} has no name to import it by, and its source was not found: put it here"),
        f"def {other}(*args, **kwargs):",
        '    raise NotImplementedError("put the implementation into this script")',
    ]
    return Source(other, lines, missing=["the implementation"])


def imported(name: Named, taken: Iterable[str] = (), other: str = OTHER) -> Source:
    """The import of a function or program."""
    first, _, rest = name.qualname.partition(".")
    own = other if first.startswith("_") or first in set(taken) else first
    lines = [f"from {name.module} import {first}{'' if own == first else f' as {own}'}"]
    folders = (name.folder,) if name.folder else folders_of(lines)
    return Source(f"{own}.{rest}" if rest else own, lines, folders)


def _installed(folder: str) -> bool:
    return bool({"site-packages", "dist-packages"} & {*Path(folder).parts})


def folders_of(lines: Iterable[str]) -> tuple[str, ...]:
    """Where the modules are that are imported and not installed."""
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


def _inside(source: Source, other: str) -> Source:
    """The same lines where they meet nothing else of the script: in a function of their own."""
    text = textwrap.indent("\n".join(source.lines).strip("\n"), "    ")
    lines = [
        f"def make_{other}():",
        *text.split("\n"),
        f"    return {source.name}",
        "",
        "",
        f"{other} = make_{other}()",
    ]
    return Source(other, lines, source.folders, source.missing)


def _defined(lines: Iterable[str]) -> set[str]:
    """The names that some lines define at their outermost level."""
    body = ast.parse("\n".join(lines)).body
    found = {n.name for n in body if isinstance(n, ast.FunctionDef)}
    found |= {a.asname or a.name for n in body if isinstance(n, ast.Import | ast.ImportFrom) for a in n.names}
    return found | {n.id for d in body if isinstance(d, ast.Assign) for n in d.targets if isinstance(n, ast.Name)}


def _embedded(function: Callable[..., Any], name: str, other: str, around: tuple[Any, ...] = ()) -> Source | None:
    """The text of a function and of what it uses, called by another name if one is given.

    Arguments:
        function: the function.
        name: that other name; empty: its own.
        other: the name of a lambda, which has none of its own.
        around: the functions that use it, which need not be defined again.
    """
    if not isinstance(function, types.FunctionType):
        return None
    try:
        text = textwrap.dedent(inspect.getsource(function))
        tree: ast.AST = ast.parse(text)
    except (OSError, TypeError, SyntaxError):
        return None
    if function.__name__ == "<lambda>":
        wanted = list(inspect.signature(function).parameters)
        lambdas = [n for n in ast.walk(tree) if isinstance(n, ast.Lambda) and _parameters(n) == wanted]
        if len(lambdas) != 1:
            return None
        name = name or other
        lines = [f"{name} = {ast.unparse(lambdas[0])}"]
        tree = lambdas[0]  # the line may be a call, which names more
    else:
        assert isinstance(tree, ast.Module)
        definition = tree.body[0]
        if not isinstance(definition, ast.FunctionDef):
            return None
        definition.decorator_list = []
        if name:
            _rename(definition, name)
        name = definition.name
        lines = ast.unparse(_without_annotations(definition)).split("\n")
    names = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
    before, missing = _names_used(function, names, (*around, function))
    apart = [part for text in before for part in ([text] if "\n" not in text else ["", "", text])]
    return Source(name, [*apart, "", "", *lines, ""], missing=missing)


def _rename(definition: ast.FunctionDef, other: str) -> None:
    """Calls a function, and the same where it calls itself, by the other name."""
    for node in ast.walk(definition):
        if isinstance(node, ast.Name) and node.id == definition.name:
            node.id = other
    definition.name = other


def _without_annotations(definition: ast.FunctionDef) -> ast.FunctionDef:
    """They may name what the script has not, and it has no use for them."""
    for node in ast.walk(definition):
        if isinstance(node, ast.FunctionDef):
            node.returns = None
        elif isinstance(node, ast.arg):
            node.annotation = None
    return definition


def _parameters(node: ast.Lambda) -> list[str]:
    return [a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]


def _names_used(function: types.FunctionType, names: set[str], around: tuple[Any, ...]) -> tuple[list[str], list[str]]:
    """Lines that define what the function refers to outside itself, and the names for which there are none."""
    nonlocals = inspect.getclosurevars(function).nonlocals
    outside = {n: v for n, v in function.__globals__.items() if n in names} | dict(nonlocals)
    lines, missing = [], []
    for name, value in sorted(outside.items()):
        if any(value is known for known in around):
            continue
        line = _definition(name, value, around)
        if line is None:
            missing.append(name)
            lines.append(comment(f"{name} is not defined here: {type(value).__name__} of {function.__module__}"))
        else:
            lines.append(line)
    return sorted(lines, key=lambda line: not line.startswith(("from ", "import "))), missing


def _definition(name: str, value: Any, around: tuple[Any, ...]) -> str | None:
    """Text that gives a name its value; None if there is none."""
    if isinstance(value, types.ModuleType):
        if not _is_dotted(value.__name__):
            return None
        package, _, last = value.__name__.rpartition(".")
        if last == name and package:
            return f"from {package} import {name}"
        return f"import {value.__name__}" + ("" if value.__name__ == name else f" as {name}")
    module, qualname = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
    held = isinstance(module, str) and _is_dotted(module) and isinstance(qualname, str) and qualname.isidentifier()
    if isinstance(value, types.FunctionType) and (not held or module == "__main__"):  # which no script can import
        found = _embedded(value, name if value.__name__ != name else "", name, around)
        return None if found is None or found.missing else "\n".join(found.lines).strip("\n")
    if held and module != "__main__":
        return f"from {module} import {qualname}" + ("" if qualname == name else f" as {name}")
    try:
        return f"{name} = {value!r}" if ast.literal_eval(repr(value)) == value else None
    except (ValueError, SyntaxError, TypeError):
        return None


def _is_dotted(name: str) -> bool:
    return all(part.isidentifier() and not keyword.iskeyword(part) for part in name.split("."))

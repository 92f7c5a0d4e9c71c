"""How a script gets hold of the implementation: an import where it has a name, its source where it has none."""

import ast
import inspect
import keyword
import textwrap
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import shardproof
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.reports.scripts.literals import comment, quoted
from shardproof.properties.runner.named import importable, named_function, source_root

OTHER = "implementation"
"""What the implementation is called where its own name is that of something else in the script."""


@dataclass(frozen=True)
class Source:
    """The lines that define the implementation, the name it then has, and what else a reader should know."""

    name: str
    lines: list[str]
    folder: str = ""
    missing: list[str] = field(default_factory=list)


def source_of(implementation: Implementation, *, renamed: bool = False) -> Source:
    """An import, or the source of a lambda or an inner function with what it uses, or a place to put it.

    Arguments:
        implementation: what is sought.
        renamed: whether it goes by another name than its own.
    """
    name = named_function(implementation)
    if importable(name):
        first, _, rest = name.qualname.partition(".")
        own = OTHER if renamed or first.startswith("_") else first
        alias = "" if own == first else f" as {own}"
        folder = source_root(name) if name.path else str(Path(shardproof.__file__).resolve().parents[1])
        return Source(f"{own}.{rest}" if rest else own, [f"from {name.module} import {first}{alias}"], folder)
    found = _embedded(implementation.function, renamed=renamed)
    if found is not None:
        return found
    return Source(
        OTHER,
        [
            comment(f"{implementation} has no name to import it by, and its source was not found: put it here"),
            f"def {OTHER}(*args, **kwargs):",
            f"    raise SystemExit({quoted(f'{implementation.name}: put the implementation into this script')})",
        ],
        missing=["the implementation"],
    )


def binds_twice(text: str, name: str) -> bool:
    """Whether a script has something else of the first name in a dotted one, anywhere in it."""
    root, found = name.partition(".")[0], 0
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.FunctionDef(name=bound) | ast.ClassDef(name=bound) | ast.arg(arg=bound):
                found += bound == root
            case ast.Name(id=bound, ctx=ast.Store()):
                found += bound == root
            case ast.alias(name=imported, asname=bound):
                found += (bound or imported.partition(".")[0]) == root
    return found > 1


def _embedded(function: Callable[..., Any], *, renamed: bool) -> Source | None:
    if not isinstance(function, types.FunctionType):
        return None
    try:
        text = textwrap.dedent(inspect.getsource(function))
        tree = ast.parse(text)
    except (OSError, TypeError, SyntaxError):
        return None
    if function.__name__ == "<lambda>":
        wanted = list(inspect.signature(function).parameters)
        lambdas = [n for n in ast.walk(tree) if isinstance(n, ast.Lambda) and _parameters(n) == wanted]
        if len(lambdas) != 1:
            return None
        lines, name = [f"{OTHER} = {ast.unparse(lambdas[0])}"], OTHER
    else:
        definition = tree.body[0]
        if not isinstance(definition, ast.FunctionDef):
            return None
        definition.decorator_list = []
        if renamed:
            _rename(definition)
        name = definition.name
        lines = ast.unparse(_without_annotations(definition)).split("\n")
    before, missing = _names_used(function, {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)})
    return Source(name, [*before, "", "", *lines, ""], missing=missing)


def _rename(definition: ast.FunctionDef) -> None:
    """Calls a function, and the same where it calls itself, by the other name."""
    for node in ast.walk(definition):
        if isinstance(node, ast.Name) and node.id == definition.name:
            node.id = OTHER
    definition.name = OTHER


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


def _names_used(function: types.FunctionType, names: set[str]) -> tuple[list[str], list[str]]:
    """Lines that define what the function refers to outside itself, and the names for which there are none."""
    nonlocals = inspect.getclosurevars(function).nonlocals
    outside = {n: v for n, v in function.__globals__.items() if n in names} | dict(nonlocals)
    lines, missing = [], []
    for name, value in sorted(outside.items()):
        line = _definition(name, value)
        if line is None:
            missing.append(name)
            lines.append(comment(f"{name} is not defined here: {type(value).__name__} of {function.__module__}"))
        else:
            lines.append(line)
    return lines, missing


def _definition(name: str, value: Any) -> str | None:
    if isinstance(value, types.ModuleType):
        if not _is_dotted(value.__name__):
            return None
        package, _, last = value.__name__.rpartition(".")
        if last == name and package:
            return f"from {package} import {name}"
        return f"import {value.__name__}" + ("" if value.__name__ == name else f" as {name}")
    module, qualname = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
    if isinstance(module, str) and _is_dotted(module) and isinstance(qualname, str) and qualname.isidentifier():
        return f"from {module} import {qualname}" + ("" if qualname == name else f" as {name}")
    try:
        return f"{name} = {value!r}" if ast.literal_eval(repr(value)) == value else None
    except (ValueError, SyntaxError, TypeError):
        return None


def _is_dotted(name: str) -> bool:
    return all(part.isidentifier() and not keyword.iskeyword(part) for part in name.split("."))

"""How a script gets hold of the implementation: an import where it has a name, its source where it has none."""

import ast
import dataclasses
import inspect
import keyword
import re
import symtable
import sys
import textwrap
import types
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import shardproof
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.report.scripts.literals import comment, quoted
from shardproof.properties.runner.named import importable, named_function, source_root

OTHER = "implementation"
"""What the implementation is called where its own name is that of something else in the script."""


@dataclass(frozen=True)
class Source:
    """The lines that define the implementation, the name it then has, and what else a reader should know."""

    name: str
    lines: list[str]
    folders: tuple[str, ...] = ()
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
        lines = [f"from {name.module} import {first}{alias}"]
        return Source(f"{own}.{rest}" if rest else own, lines, (folder,) if folder else ())
    found = _embedded(implementation.function, "")
    if found is not None:
        found = dataclasses.replace(found, folders=_folders_of_imports(found.lines))
        return _inside(found) if renamed else found
    return Source(
        OTHER,
        [
            comment(f"{implementation} has no name to import it by, and its source was not found: put it here"),
            f"def {OTHER}(*args, **kwargs):",
            f"    raise SystemExit({quoted(f'{implementation.name}: put the implementation into this script')})",
        ],
        missing=["the implementation"],
    )


def _folders_of_imports(lines: Iterable[str]) -> tuple[str, ...]:
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
    if module is None or package in (*sys.stdlib_module_names, shardproof.__name__):
        return []
    paths = [Path(path) for path in getattr(module, "__path__", [])] or [Path(getattr(module, "__file__", None) or ".")]
    folders = [path.resolve().parent for path in paths if path != Path()]
    return [str(folder) for folder in folders if not {"site-packages", "dist-packages"} & {*folder.parts}]


def _inside(source: Source) -> Source:
    """The same lines where they meet nothing else of the script: in a function of their own."""
    text = textwrap.indent("\n".join(source.lines).strip("\n"), "    ")
    lines = ["def made():", *text.split("\n"), f"    return {source.name}", "", "", f"{OTHER} = made()"]
    return Source(OTHER, lines, source.folders, source.missing)


def clashes(text: str, source: Source) -> bool:
    """Whether a script has something else by the name of the implementation, or of what comes with it."""
    defined = ast.parse("\n".join(source.lines)).body
    names = {n.name for n in defined if isinstance(n, ast.FunctionDef)}
    names |= {n.id for d in defined if isinstance(d, ast.Assign) for n in d.targets if isinstance(n, ast.Name)}
    return any(_binds_twice(text, name) for name in (source.name, *names))


def operand(place: int) -> str:
    """What stands in a script for the name of an operand, until it is `named`."""
    return f"_operand{place}_"


def named(text: str, names: Sequence[str]) -> str:
    """A script with its operands named, with an underscore at the end where it has the name for something else.

    A tangent is called `d` and the name of its operand, and that is no other operand either.

    Arguments:
        text: the script, where `operand` stands for names.
        names: what the operands are called.
    """
    if not names:
        return text
    taken = _seen_with(symtable.symtable(text, "<script>", "exec"), {operand(i) for i in range(len(names))})
    found: list[str] = []
    for i, name in enumerate(names):
        kinds = ("", "d") if f"d{operand(i)}" in taken else ("",)
        while taken & {kind + name for kind in kinds}:
            name += "_"
        taken |= {kind + name for kind in kinds}
        found.append(name)
    places = re.compile(rf"\b(d?)(?:{'|'.join(f'({operand(i)})' for i in range(len(names)))})\b")
    return places.sub(lambda match: f"{match[1]}{found[(match.lastindex or 0) - 2]}", text)


def _seen_with(table: symtable.SymbolTable, operands: set[str]) -> set[str]:
    """All names that mean what they do at the outermost level of a module, or where an operand is named or inside."""
    names = {symbol.get_name() for symbol in table.get_symbols()}
    inside = [_seen_with(child, operands) for child in table.get_children()]
    seen = set().union(*inside)
    if table.get_type() == "module" or operands & (names | seen):
        return names | seen
    return seen | {symbol.get_name() for symbol in table.get_symbols() if symbol.is_global()}


def _binds_twice(text: str, name: str) -> bool:
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


def _embedded(function: Callable[..., Any], other: str, around: tuple[Any, ...] = ()) -> Source | None:
    """The text of a function and of what it uses, called by another name if one is given.

    Arguments:
        function: the function.
        other: the other name; a lambda has none of its own.
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
        name = other or OTHER
        lines = [f"{name} = {ast.unparse(lambdas[0])}"]
        tree = lambdas[0]  # the line may be a call, which names more
    else:
        assert isinstance(tree, ast.Module)
        definition = tree.body[0]
        if not isinstance(definition, ast.FunctionDef):
            return None
        definition.decorator_list = []
        if other:
            _rename(definition, other)
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
        found = _embedded(value, name if value.__name__ != name else "", around)
        return None if found is None or found.missing else "\n".join(found.lines).strip("\n")
    if held and module != "__main__":
        return f"from {module} import {qualname}" + ("" if qualname == name else f" as {name}")
    try:
        return f"{name} = {value!r}" if ast.literal_eval(repr(value)) == value else None
    except (ValueError, SyntaxError, TypeError):
        return None


def _is_dotted(name: str) -> bool:
    return all(part.isidentifier() and not keyword.iskeyword(part) for part in name.split("."))

"""Files that somebody else wrote: recorded failures, changed as an attacker or a broken disk would change them."""

import copy
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hypothesis import strategies as st

from shardproof.properties.cases.chain import LINKS

MARK = "pwned"
"""What every payload holds: nothing but the text of a string may ever hold it."""

PAYLOADS = (
    f'"); import os; os.system("touch {MARK}") #',
    f"'); __import__('os').system('touch {MARK}') #",
    f'"""\nimport os; os.system("touch {MARK}")\n"""',
    f"x\nopen('{MARK}', 'w')",
    f"x\r\nopen('{MARK}', 'w')\u2028{MARK}()\u2029{MARK}()\x0b\x0c{MARK}()",
    f"\\\n{MARK}\\",
    f"{{open('{MARK}', 'w')}}",
    f"\x00{MARK}",
    f"\x1b]0;{MARK}\x07\x1b[2J",
    f"\u202e{MARK}",
    f"\ud800{MARK}",
    f"../../{MARK}",
    f"raises UnwrittenRead {MARK}",
    f"aborts the process {MARK}",
    f"gradient {MARK}",
    MARK,
    f"{MARK}_" * 60_000,
    f"__import__('{MARK}')",
    f"os.system('touch {MARK}')",
)
OTHERS: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 3, 7, 64, 4096, 10**6, 2**31, 2**63, 10**40, -(10**40), 1.5, -0.0, 1e308,
    float("nan"), float("inf"), "", "tp", "class", "os", "os.path", "subprocess", "__main__", "builtins", "system",
    [], [[]], {}, [0], ["tp", "tp"], ["dp"], [[0, 0]], [[0, 1], [1, 0]], {"a": 1}, [None], "jit", "vmap",
    "bfloat16", "exact", "xla",
)  # fmt: skip


Chance = Any
"""A `random.Random` whose numbers Hypothesis draws."""


@st.composite
def hostile_files(draw: st.DrawFn, originals: Sequence[str]) -> bytes:
    """Recorded failures, changed in one to three places. Shrinks to the first of the originals."""
    text = draw(st.sampled_from(originals))
    chance: Chance = draw(st.randoms(use_true_random=False))
    if chance.random() < 0.2:
        return _damaged(text.encode(), chance)
    tree = json.loads(text)
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        chance.choice(CHANGES)(tree, chance)
    written = json.dumps(tree)
    if chance.random() < 0.1:  # the second of two equal names would win
        written = written.replace('"law"', f'"law": {json.dumps(chance.choice(PAYLOADS))}, "law"', 1)
    return written.encode("utf-8", "surrogatepass")


def _damaged(content: bytes, chance: Chance) -> bytes:
    at, to = sorted(chance.randrange(len(content)) for _ in range(2))
    kind = chance.randrange(4)
    if kind == 0:
        return content[:at]
    if kind == 1:
        return content[:at] + bytes([content[at] ^ 1 << chance.randrange(8)]) + content[at + 1 :]
    if kind == 2:
        return content[:to] + content[at:]
    return content[:at] + chance.choice(PAYLOADS).encode("utf-8", "surrogatepass") + content[at:]


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Every container of the tree with each of its keys."""
    for key in list(tree) if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ():
        yield tree, key
        yield from _places(tree[key])


def _somewhere(tree: Any, chance: Chance) -> tuple[Any, Any]:
    return chance.choice(list(_places(tree)) or [(tree, "case")])


def _another(tree: Any, chance: Chance) -> None:
    where, key = _somewhere(tree, chance)
    where[key] = copy.deepcopy(chance.choice((*PAYLOADS, *OTHERS)))


def _text(tree: Any, chance: Chance) -> None:
    texts = [(where, key) for where, key in _places(tree) if isinstance(where[key], str)]
    where, key = chance.choice(texts or [(tree, "law")])
    held, at = str(where.get(key, "") if isinstance(where, dict) else where[key]), chance.randint(0, 8)
    where[key] = held[:at] + chance.choice(PAYLOADS) + held[at:]


def _number(tree: Any, chance: Chance) -> None:
    numbers = [(where, key) for where, key in _places(tree) if type(where[key]) is int]
    for where, key in numbers and [chance.choice(numbers)]:
        where[key] += chance.choice((-2, -1, 1, 2, 5))


def _missing(tree: Any, chance: Chance) -> None:
    where, key = _somewhere(tree, chance)
    if len(where):
        del where[key]


def _more(tree: Any, chance: Chance) -> None:
    where, key = _somewhere(tree, chance)
    if isinstance(where, dict):
        where[chance.choice(PAYLOADS)] = copy.deepcopy(where.get(key))
    else:
        where.extend(copy.deepcopy(where) * chance.choice((1, 1, 50)))


def _moved(tree: Any, chance: Chance) -> None:
    (one, first), (other, second) = _somewhere(tree, chance), _somewhere(tree, chance)
    if first in (one if isinstance(one, dict) else range(len(one))) and second in (
        other if isinstance(other, dict) else range(len(other))
    ):
        one[first] = copy.deepcopy(other[second])


def _deep(tree: Any, chance: Chance) -> None:
    where, key = _somewhere(tree, chance)
    for _ in range(chance.choice((1, 3, 400))):
        where[key] = [where[key]] if key in (where if isinstance(where, dict) else range(len(where))) else []


def _renamed(tree: Any, chance: Chance) -> None:
    """An axis gets another name wherever it stands, so that the file may still be accepted."""
    names = [name for name in ("dp", "tp") if f'"{name}"' in json.dumps(tree)]
    if names:
        new = json.dumps(chance.choice((MARK, f"{MARK}_axis", "os", "jax", "mesh", "é", *PAYLOADS)))
        changed = json.loads(json.dumps(tree).replace(json.dumps(chance.choice(names)), new))
        tree.clear() if isinstance(tree, dict) else None
        tree.update(changed)


def _told(tree: Any, chance: Chance) -> None:
    """What may be any text is another: the file may still be accepted."""
    key = chance.choice(("finding", "headline", "name", "path"))
    where = tree if key in ("finding", "headline") else tree.get("implementation")
    if isinstance(where, dict):
        beginning = chance.choice(("", "aborts the process", "raises UnwrittenRead", "gradient "))
        where[key] = beginning + chance.choice(PAYLOADS)


def _seed(tree: Any, chance: Chance) -> None:
    for where, key in list(_places(tree)):
        if key == "seed":
            where[key] = chance.choice((0, 1, 5, 2**16, 2**32, 2**32 + 1, True, MARK))


def _chained(tree: Any, chance: Chance) -> None:
    """Another chain of transformations: too long, with links unknown, twice or in another place, or a right one."""
    case = tree.get("case")
    if isinstance(case, dict):
        links = [
            chance.choice((*LINKS, *LINKS, MARK, "jit", 1, None)) for _ in range(chance.choice((0, 1, 2, 3, 3, 9)))
        ]
        case["chain"] = chance.choice((links, links, "vmap", chance.choice(OTHERS)))


CHANGES: tuple[Callable[[Any, Chance], None], ...] = (
    _told, _told, _told, _told, _told, _told, _told, _seed, _seed, _chained, _chained,
    _another, _another, _text, _text, _number, _number, _number, _missing, _more, _moved, _deep, _renamed, _renamed,
)  # fmt: skip

EXECUTING = ("exec", "import", "subprocess.Popen", "ctypes.dlopen", "pty.spawn", "code.__new__", "shutil.", "socket.")
OPERATING = ("os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.remove", "os.rename", "os.mkdir")
MOST_FRAMES = 8
"""How far up a checker of types is looked for: what it calls itself is nearer."""
_seen: list[str] | None = None
_hooked = False


def _audit(event: str, args: tuple[Any, ...]) -> None:
    if _seen is None:
        return
    written = event == "open" and isinstance(args[1], str) and set(args[1]) & set("wax+")
    # a source may be parsed; to run it, it would have to be compiled under a name of a file, and executed
    compiled = event == "compile" and args[1] not in ("<unknown>", b"<unknown>")
    if (written or compiled or event.startswith((*EXECUTING, *OPERATING))) and not _checks_types():
        _seen.append(f"{event}{args!r}"[:200])


def _checks_types() -> bool:
    """Whether the code that runs is what checks annotations, which compiles a function for each that it meets."""
    frame = sys._getframe(2)
    for _ in range(MOST_FRAMES):
        if str(frame.f_globals.get("__name__")).partition(".")[0] in ("jaxtyping", "beartype"):
            return True
        if frame.f_back is None:
            return False
        frame = frame.f_back
    return False


@contextmanager
def watched() -> Iterator[list[str]]:
    """What Python's audit events tell of code that is run, imported, or written, until the block ends."""
    global _seen, _hooked
    if not _hooked:
        sys.addaudithook(_audit)
        _hooked = True
    seen = _seen = []
    try:
        yield seen
    finally:
        _seen = None

"""How near to the bounds of sampled roundings XLA comes, and how often something right would pass one."""

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import HealthCheck, Phase, given, seed, settings
from jax import Array as Block
from jax import lax

from shardproof.impl import attention, collectives
from shardproof.impl.collective_matmul.reduce_scatter import ring_matmul_reduce_scatter
from shardproof.impl.cross_entropy import vocab_parallel_cross_entropy
from shardproof.impl.moe import all_to_all_moe
from shardproof.oracles.dtypes import round_to, wide
from shardproof.oracles.layout import nan_equal
from shardproof.properties.cases.case import Case
from shardproof.properties.cases.data import Data
from shardproof.properties.communication.pictures import describe
from shardproof.properties.contracts import Scope
from shardproof.properties.contracts.described import Array
from shardproof.properties.contracts.numbers import operands
from shardproof.properties.engines import XlaEngine
from shardproof.properties.engines.engine import all_blocks, ready
from shardproof.properties.engines.simulate.env import Env
from shardproof.properties.performance.tables import markdown
from shardproof.properties.precision.arithmetic import Sampled
from shardproof.properties.precision.comparison import Reference
from shardproof.properties.precision.formats import COARSE, Format, Numbers, charges_of, round_at_random
from shardproof.properties.precision.judge import value_references
from shardproof.properties.precision.runs import Runs, run_samples
from shardproof.properties.programs.implementations import Implementation
from shardproof.properties.runner.programs import Program

STEPS = 5
"""The steps of the iteration of Newton and Schulz."""

EPSILON = 2.0**-7
BEST = 2


def layer_norm(x: Block, *, model: Any = ()) -> Block:
    """Rows less their mean, over their standard deviation, whose elements are sharded."""

    def mean(y: Block) -> Block:
        own = y.mean(axis=1, keepdims=True)
        return lax.pmean(own, model) if model else own

    x = x - mean(x)
    return x * lax.rsqrt(mean(x * x) + EPSILON)


def attended(q: Block, k: Block, v: Block) -> Block:
    """Attention to all positions."""
    weights = jax.nn.softmax(jnp.einsum("shd,thd->hst", q, k) / q.shape[-1] ** 0.5)
    return jnp.einsum("hst,thd->shd", weights, v)


def mixed(tokens: Block, router: Block, experts: Block) -> Block:
    """Each token through its best experts, weighed by the softmax of their logits."""
    best, chosen = lax.top_k(tokens @ router, BEST)
    gates = (jax.nn.one_hot(chosen, router.shape[1], dtype=best.dtype) * jax.nn.softmax(best)[..., None]).sum(axis=1)
    return jnp.einsum("te,td,edf->tf", gates, tokens, experts)


def orthogonalised(x: Block, *, model: Any = ()) -> Block:
    """An iterated polynomial that takes singular values to about 1 (Jordan et al. 2024), columns sharded."""

    def total(part: Block) -> Block:
        return lax.psum(part, model) if model else part

    x = x * lax.rsqrt(total((x * x).sum()))
    for _ in range(STEPS):
        square = total(x @ x.T)
        x = 3.4445 * x + (-4.775 * square + 2.0315 * square @ square) @ x
    return x


def scanned(x: Block, *, model: Any = ()) -> Block:
    """A linear recurrence along rows, each step through a tanh."""
    return lax.scan(lambda h, row: (jnp.tanh(0.5 * h + row),) * 2, jnp.zeros_like(x[0]), x)[1]


def _named(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return lambda *arguments, model: function(*arguments, model, **options)


def _losses(logits: Block, labels: Block) -> Block:
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=1)[:, 0]


SIZES = {"rows": 16, "n": 64, "t": 64, "long": 256, "v": 64, "s": 16, "h": 2, "d": 16, "e": 16, "f": 16}
"""The sizes of dimensions, which up to eight devices divide."""

DESCRIBED: dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[str | Array, ...], str]] = {
    "all-reduce": (
        lambda x, *, model: collectives.all_reduce(x[0], model),
        partial(jnp.sum, axis=0), ("@model rows n",), "rows n"
    ),
    "reduce-scatter": (
        lambda x, *, model: collectives.reduce_scatter(x[0], model, tiled=True),
        partial(jnp.sum, axis=0), ("@model rows n",), "rows@model n"
    ),
    "ring matmul": (_named(ring_matmul_reduce_scatter), jnp.matmul, ("rows n@model", "n@model d"), "rows@model d"),
    "long rows": (lambda x, *, model: lax.psum(x.sum(axis=1), model), partial(jnp.sum, axis=1), ("t long@model",), "t"),
    "cross-entropy": (
        _named(vocab_parallel_cross_entropy), _losses, ("t v@model", Array("t", "int32", below="v")), "t"
    ),
    "layer norm": (layer_norm, layer_norm, ("rows n@model",), "rows n@model"),
    "ring attention": (_named(attention.ring_attention), attended, ("s@model h d",) * 3, "s@model h d"),
    "mixture of experts": (
        _named(all_to_all_moe, top_k=BEST), mixed, ("rows@model d", "d e", "e@model d f"), "rows@model f"
    ),
    "Newton-Schulz": (orthogonalised, orthogonalised, ("rows n@model",), "rows n@model"),
    "scan": (scanned, scanned, ("rows n@model",), "rows n@model"),
}  # fmt: skip
"""The functions, and their references, arguments and results."""


def program(name: str, dtype: str) -> Program:
    """One of the programs, all floats of which have a dtype."""
    function, reference, arguments, results = DESCRIBED[name]
    words = " ".join(a if isinstance(a, str) else "" for a in arguments).replace("@model", "").split()
    sizes = {size: SIZES[size] for size in words}
    return Program(
        function, reference, arguments=arguments, results=results, sizes=sizes, dtypes=dtype, powers_of_two=("model",)
    )


DTYPES, MESHES = ("float32", "bfloat16"), ((8,), (4,), (2, 4), (2, 2, 2))
CASES, SETS, NEAREST = 2, 3, 16
"""The draws of each program: cases on each mesh, data sets of each, and runs that round to the nearest on these."""

TAIL = 0.001
"""The share of the largest ratios, whose tail is taken for that of a power law (Hill 1975)."""

NEGLIGIBLE = 1e-9
QUANTILES, LOWEST, HIGHEST = (0.1, 0.5, 0.99, 1.0), 1e-3, 2.0
ROW, LEFT, TOP, WIDTH = 22, 210, 66, 560
COLOURS = {"float32": "#0072b2", "bfloat16": "#d55e00"}


@dataclass(frozen=True)
class Nearest(Sampled):
    """Rounds as backends do: to the nearest number; sums in any order, and functions to a few units."""

    # where its numbers are from, and not from where samples take theirs
    random: np.random.Generator = field(default_factory=np.random.default_rng, compare=False)

    def _chance(self, env: Env, equation: Any, x: Numbers) -> Numbers:
        return self.random.random((self.samples * self.sets, *x.shape[1:]))

    def _round(self, env: Env, equation: Any, x: Numbers, to: Format) -> Numbers:
        return round_at_random(x, to, lambda x: np.full(x.shape, 0.5))

    def _noise(
        self, env: Env, equation: Any, x: Numbers, unit: float, size: Numbers, where: Numbers = np.True_
    ) -> Numbers:
        return super()._noise(env, equation, x, unit / COARSE, size, where)


@dataclass
class Ratios:
    """The errors of a program's elements in a dtype, over their bounds: 0 where they equal the reference, rounded."""

    name: str  # the program's
    dtype: str  # that of its floats
    xla: list[np.ndarray] = field(default_factory=list)  # the ratios of what XLA gives
    nearest: list[np.ndarray] = field(default_factory=list)  # those of runs that round to the nearest
    undecided: int = 0  # how many elements nothing is asked of, which are in neither


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `measure`."""
    parser.add_argument("--seed", type=int, default=0, help="what is drawn (default: %(default)s)")
    parser.add_argument("--program", choices=DESCRIBED, action="append", help="one of the programs (default: all)")
    parser.add_argument("--output", type=Path, default=Path("spread.svg"), help="the picture (default: %(default)s)")


def measure(options: argparse.Namespace) -> None:
    """Prints a table of the ratios of errors to bounds, and draws XLA's."""
    found = [ratios(name, dtype, options.seed) for name in options.program or DESCRIBED for dtype in DTYPES]
    print(table(found))
    for what in ("xla", "nearest"):
        each = np.concatenate([x for one in found for x in getattr(one, what)])
        print(f"{what}: {each.size:,} elements, {(each > 1).sum()} of them beyond, the largest {each.max():.2f}")
    mean = float(np.mean([rate(np.concatenate(one.nearest)) for one in found]))
    print(f"nearest, on an average of the rows: an element is beyond with a probability of {below(mean)}")
    plot(found, f"seed {options.seed}").save_svg(str(options.output))


def ratios(name: str, dtype: str, number: int) -> Ratios:
    """The ratios of a program in a dtype on cases drawn by a seed."""
    implementation, result = program(name, dtype).implementation, Ratios(name, dtype)
    for case in drawn(implementation, number):
        sets = [operands(case, data) for data in case.data]
        actual = map(ready("value", implementation, case, XlaEngine()).prepared, sets)
        for arrays, found, (right,) in zip(sets, actual, value_references(implementation, case, sets), strict=True):
            # runs that round to the nearest, and are independent of the judge's samples
            traced = Runs("value", implementation, case, [arrays]).program
            charges = charges_of(implementation, case, derivative=False)
            arithmetic = Nearest(charges=charges, random=np.random.default_rng(number))
            nearest = run_samples(traced, [arrays], arithmetic, NEAREST)[0][0]
            one = np.unique(right.exact, return_index=True)[1]  # replicas are one element
            held = one[~right.undecided.ravel()[one]]
            result.undecided += len(one) - len(held)
            result.xla.append(over_bound(right, all_blocks(case, found[0])).ravel()[held])
            result.nearest += [over_bound(right, all_blocks(case, x)).ravel()[held] for x in nearest]
    jax.clear_caches()
    return result


def drawn(implementation: Implementation, number: int) -> list[Case]:
    """The cases that a seed draws, on real numbers, without transformations: in some of these XLA:CPU ends."""
    found: list[Case] = []
    for sizes in MESHES:

        @seed(number)
        @settings(max_examples=CASES, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
        @given(implementation.contract.cases(Scope(sizes=sizes)))
        def draw(case: Case) -> None:
            first = 1000 * number + SETS * len(found)
            found.append(replace(case, data=tuple(Data("real", first + i) for i in range(SETS))))

        draw()
    return found


def over_bound(right: Reference, blocks: np.ndarray) -> np.ndarray:
    """Elementwise, the error over the bound."""
    assert right.judged is not None
    found = round_to(blocks, right.dtype)
    error = np.abs(found.astype(wide(right.dtype)) - right.exact).astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(nan_equal(found, right.rounded), 0.0, error / np.abs(right.judged.bound))


def rate(each: np.ndarray) -> float:
    """The probability that an element is beyond its bound, if the largest ratios thin out by a power law.

    Those are the largest of a share of all, and of those that are not 0 half of them at most.
    """
    if not each.any():
        return 0.0
    begin = max(np.quantile(each, 1 - TAIL), np.median(each[each > 0]))
    tail = np.log(each[each > begin] / begin)
    return float(tail.size / each.size * begin ** (1 / tail.mean())) if tail.size else 0.0


def below(number: float) -> str:
    """A small probability; of one that is smaller than an estimate can be, that it is."""
    return f"{number:.0e}" if number > NEGLIGIBLE else f"<{NEGLIGIBLE:.0e}"


def table(found: list[Ratios]) -> str:
    """A row for each program and dtype."""
    columns = ("program", "dtype", "elements", "undecided", "rounded as the reference", "median", "99%", "largest")
    rows = []
    for one in found:
        xla, nearest = np.concatenate(one.xla), np.concatenate(one.nearest)
        off = xla[xla > 0] if xla.any() else np.zeros(1)
        shown = [f"{np.quantile(off, q):.2f}" for q in (0.5, 0.99, 1.0)]
        equal, drawn = f"{(xla == 0).mean():.0%}", (f"{nearest.size:,}", f"{nearest.max():.2f}", below(rate(nearest)))
        rows.append((one.name, one.dtype, f"{xla.size:,}", f"{one.undecided:,}", equal, *shown, *drawn))
    return markdown((*columns, "runs' elements", "their largest", "rate beyond"), rows, left=2)


def plot(found: list[Ratios], title: str) -> Any:
    """A drawing: a row for each program and dtype, and the line beyond which an element is reported.

    Raises:
        ModuleNotFoundError: if drawsvg is not installed.
    """
    import drawsvg

    def at(ratio: float) -> float:
        share = math.log(max(ratio, LOWEST) / LOWEST) / math.log(HIGHEST / LOWEST)
        return round(LEFT + WIDTH * min(share, 1.0), 1)

    height = TOP + ROW * len(found)
    drawing = drawsvg.Drawing(LEFT + WIDTH + 30, height + 44)
    drawing.append(drawsvg.Rectangle(0, 0, "100%", "100%", fill="white"))

    def text(words: str, size: int, x: float, y: float, **options: Any) -> None:
        drawing.append(drawsvg.Text(words, size, x, y, font_family="sans-serif", **options))

    shown = "Errors of XLA over their bounds, of elements that differ from the reference, rounded"
    described = f"line: 10% to largest; bar: median to 99%; {title}"
    describe(drawing, shown, described)
    text(shown, 15, 14, 24)
    text(described, 12, 14, 44, fill="#666666")
    for ratio in (0.001, 0.01, 0.1, 1.0):
        colour, options = ("#cc0000", {"stroke_dasharray": "4 3"}) if ratio == 1 else ("#dddddd", {})
        drawing.append(drawsvg.Line(at(ratio), TOP - 6, at(ratio), height, stroke=colour, **options))
        text(f"{ratio:g}" + (": reported" if ratio == 1 else ""), 11, at(ratio), height + 18, text_anchor="middle")
    for i, one in enumerate(found):
        y, colour, xla = TOP + ROW * i + 8, COLOURS[one.dtype], np.concatenate(one.xla)
        text(f"{one.name}, {one.dtype}", 12, LEFT - 10, y + 4, text_anchor="end", fill=colour)
        if not xla.any():
            text("all as the reference, rounded", 11, LEFT + 8, y + 4, fill="#666666")
        else:
            low, middle, high, most = (at(float(np.quantile(xla[xla > 0], q))) for q in QUANTILES)
            drawing.append(drawsvg.Line(low, y, most, y, stroke=colour))
            drawing.append(drawsvg.Rectangle(middle, y - 4, max(round(high - middle, 1), 1), 8, fill=colour))
            drawing.append(drawsvg.Circle(most, y, 3, fill=colour))
    return drawing

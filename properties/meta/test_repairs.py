"""The change that makes a user's program right is named by its line, and the line that rounds too much; else none."""

import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from shardproof import Array, Program, check_program
from shardproof.impl.collectives import all_reduce
from shardproof.oracles.mesh import MeshCase
from shardproof.properties.cases.case import Case, Operand, Placement
from shardproof.properties.contracts import Scope
from shardproof.properties.engines import SimulateEngine
from shardproof.properties.engines.engine import trace
from shardproof.properties.engines.simulate import prepare
from shardproof.properties.engines.simulate.errors import location
from shardproof.properties.engines.simulate.jaxprs import equations
from shardproof.properties.laws import LAWS
from shardproof.properties.meta.brief import marked
from shardproof.properties.programs.built_in import IMPLEMENTATIONS
from shardproof.properties.programs.examples import example
from shardproof.properties.programs.program import Seen, forward
from shardproof.properties.report.diagnosis.changes import (
    EXCHANGE,
    NO_CHANGE,
    Change,
    numbers_by_the_mesh,
    run_in_doubles,
)
from shardproof.properties.report.diagnosis.diagnosis import diagnose
from shardproof.properties.report.diagnosis.runs import enlarge
from shardproof.properties.runner.search import find_violation


def bias_of_every_member(x: Any, w: Any, b: Any, *, model: Any) -> Any:
    """The bias goes into the sum over all participants."""
    return lax.psum(x @ w + b, model)


def unclipped(g: Any, *, shard: Any) -> Any:
    """Each participant has a norm of its own."""
    return g / jnp.sqrt(jnp.sum(g * g) + 1.0)


def softmax_of_own_maxima(x: Any, *, model: Any) -> Any:
    """Powers of different maxima are added up."""
    powers = jnp.exp(x - lax.stop_gradient(x).max(-1, keepdims=True))
    return powers / lax.psum(powers.sum(-1, keepdims=True), model)


def total_of_one_role(x: Any, *, data: Any, replica: Any) -> Any:
    """Differences along the other role are left out."""
    return jnp.tanh(lax.psum(x.sum((0, 2)), data))


def running_total(x: Any, *, data: Any) -> Any:
    """The totals of those before come round a ring, which counts by the tuple of its axes."""
    p, index = lax.axis_size(data), lax.axis_index(data)
    sums, passed = jnp.cumsum(x), jnp.sum(x)
    for step in range(1, p):
        passed = lax.ppermute(passed, data, [(i, (i + 1) % p) for i in range(p)])
        sums = sums + jnp.where(index >= step, passed, 0)
    return sums


def summed_twice(x: Any, *, data: Any) -> Any:
    """Adds up what was added up."""
    total = lax.pcast(lax.psum(jnp.sum(x, 0), data), data, to="varying")
    return jnp.tanh(lax.psum(total, data))


def ring_that_ends(x: Any, y: Any, *, data: Any) -> Any:
    """Products with what comes round a ring, which does not close."""
    p, total = lax.axis_size(data), 0 * (x @ y.T).sum()
    for _ in range(p):
        total = total + jnp.tanh(x @ y.T).sum()
        y = lax.ppermute(y, data, [(i, i + 1) for i in range(p - 1)])
    return lax.psum(total, data)


def halo_of_one_side(x: Any, *, data: Any) -> Any:
    """Both neighbours are the one before."""
    p = lax.axis_size(data)
    before = lax.ppermute(x[-1:], data, [(i, i + 1) for i in range(p - 1)])
    after = lax.ppermute(x[:1], data, [(i, i + 1) for i in range(p - 1)])
    return jnp.convolve(jnp.concatenate([before, x, after]), jnp.array([1.0, -2.0, 1.5], x.dtype), "valid")


def joined_in_another_order(x: Any, *, outer: Any, inner: Any) -> Any:
    """An all-to-all in two steps, the second of which joins pieces behind those of the first."""
    o, i = lax.axis_size(outer), lax.axis_size(inner)
    y = lax.all_to_all(x.reshape(-1, o, i, x.shape[1] // (o * i)), inner, split_axis=2, concat_axis=0)
    return lax.all_to_all(y, outer, split_axis=2, concat_axis=1).reshape(len(x) * o * i, -1)


def rolled_back(x: Any, *, data: Any) -> Any:
    """Each column meets the one behind it."""
    return jnp.tanh(x) * jnp.roll(x, -1, 1)


def prefix_of_those_and_itself(x: Any, *, data: Any) -> Any:
    """The totals of those before and of the participant itself."""
    index, totals = lax.axis_index(data), lax.all_gather(x.sum(), data)
    return jnp.cumsum(x) + jnp.where(jnp.arange(len(totals)) <= index, totals, 0).sum()


def labels_of_own_rows(image: Any, text: Any, *, data: Any) -> Any:
    """The right text of a row is numbered within the block, and all blocks were gathered."""
    scores = jax.nn.log_softmax(image @ lax.all_gather(text, data, tiled=True).T)
    return lax.pmean(-jnp.take_along_axis(scores, jnp.arange(len(image))[:, None], 1).mean(), data)


def feedback_of_the_mean(gradient: Any, error: Any, *, data: Any) -> Any:
    """The loss by compression is taken from what all participants sent, not from what this one did."""
    total = gradient + error
    sent = jnp.sign(total) * jnp.abs(total).mean()
    mean = lax.pmean(sent[0], data)
    return mean, total - mean


def feedback_of_rows(gradient: Any, error: Any) -> Any:
    """The same on whole arrays."""
    total = gradient + error
    sent = np.sign(total) * np.abs(total).mean(1, keepdims=True)
    return sent.mean(0), total - sent


def pairs_twice(x: Any, *, data: Any) -> Any:
    """The energy of pairs on different devices is counted twice, which on two devices is once for each."""
    every, index = lax.all_gather(x, data), lax.axis_index(data)
    others = jnp.where(jnp.arange(len(every)) != index, jnp.einsum("nd,pmd->p", x, every), 0).sum()
    return lax.psum(jnp.triu(x @ x.T, 1).sum() + others, data)


def positions_of_shorter_blocks(x: Any, valid: Any, *, data: Any) -> Any:
    """Blocks begin one element too early, which on blocks of one element looks like a range within the block."""
    positions = lax.axis_index(data) * (len(x) - 1) + jnp.arange(len(x))
    return jnp.where(valid[:, None], x * positions[:, None].astype(x.dtype), 0)


def quantized(x: Any, *, data: Any) -> Any:
    """A mean of whole numbers of steps, which is off by more than it may be where it cancels."""
    step = jnp.maximum(lax.pmax(jnp.abs(x).max(), data) / 127, 1e-6)
    return lax.pmean(jnp.round(x[0] / step), data) * step


COINCIDENCES: list[tuple[Any, Any, dict[str, Any]]] = [
    (
        pairs_twice,
        lambda x: jnp.triu(x @ x.T, 1).sum(),
        {"arguments": ("n@data d",), "results": "", "dtypes": "float32"},
    ),
    (
        positions_of_shorter_blocks,
        lambda x, valid: jnp.where(valid[:, None], x * jnp.arange(len(x))[:, None].astype(x.dtype), 0),
        {"arguments": ("n@data d", Array("n@data", "bool")), "results": "n@data d"},
    ),
    (quantized, lambda x: x.mean(0), {"arguments": ("@data n",), "results": "n", "within": 0.02, "dtypes": "float32"}),
]


@pytest.mark.parametrize(("function", "reference", "described"), COINCIDENCES)
def test_a_change_that_helps_by_coincidence_is_no_repair(function: Any, reference: Any, described: Any) -> None:
    """It makes two devices right, or blocks of one element, or a number that is nearly right by design."""
    text = reported(function, reference, **described)
    assert "blocks wrong" in text
    assert "one change makes it right" not in text


def norms_of_own_rows(x: Any, *, data: Any) -> Any:
    """Norms are added up in place of their squares."""
    return lax.psum(jnp.linalg.norm(x, axis=0), data)


def heads_in_another_order(x: Any, *, heads: Any) -> Any:
    """The last two dimensions are exchanged, in place of the first two."""
    return lax.psum(x.sum(0).transpose(0, 2, 1), heads)


def of_no_repair(x: Any, *, data: Any) -> Any:
    """Another function, whose participants need nothing of one another."""
    return lax.psum(jnp.sum(x**3, 0), data)


def places_among_own(expert: Any, w: Any, *, data: Any) -> Any:
    """The place of each token among the tokens of this participant that go to the same expert."""
    chosen = (expert[:, None] == jnp.arange(len(w))).astype(jnp.int32)
    return ((jnp.cumsum(chosen, 0) - 1) * chosen).sum(1)


def places_among_all(expert: Any, w: Any) -> Any:
    """The same on whole arrays."""
    return places_among_own(expert, w, data=())


def tempered_twice(x: Any, *, model: Any) -> Any:
    """A softmax at a temperature that is applied before the maximum is taken off, and behind it."""
    logits = x / 0.25
    powers = jnp.exp((logits - lax.pmax(lax.stop_gradient(logits).max(-1, keepdims=True), model)) / 0.25)
    return powers / lax.psum(powers.sum(-1, keepdims=True), model)


def pair_without_temperature(q: Any, k: Any, *, data: Any) -> Any:
    """A contrastive loss whose temperature is applied to what is summed alone."""
    logits = q @ lax.all_gather(k, data, tiled=True).T / 0.25
    return lax.pmean((jax.nn.logsumexp(logits, -1) - (q * k).sum(-1)).mean(), data)


def numbered_by_another_role(x: Any, w: Any, *, data: Any, model: Any) -> Any:
    """Each participant of one role takes the part of what it has that is numbered along the other."""
    n = w.shape[0] // lax.axis_size(model)
    part = lax.dynamic_slice_in_dim(w, lax.axis_index(data) % lax.axis_size(model) * n, n)
    return lax.psum(jnp.tanh(x) @ part, model)


def swaps_of_chains(x: Any, t: Any, *, chains: Any) -> Any:
    """Chains exchange what their own temperature makes of their energies, not the energies."""
    p, energies, heat = lax.axis_size(chains), (x * x).sum(1), 1 + t * t
    other = lax.ppermute(energies / heat, chains, [(i, (i + 1) % p) for i in range(p)])
    return energies / heat - other


def swaps_of_all(x: Any, t: Any) -> Any:
    """The same on whole arrays, with the energies of the chain before."""
    energies = (x * x).sum(1)
    return (energies - np.roll(energies, 1)) / (1 + t * t)


def positions_by_inner(x: Any, *, outer: Any, inner: Any) -> Any:
    """Rows are numbered by a tuple of axes in another order than theirs."""
    first = lax.axis_index((inner, outer)) * len(x)
    return jnp.tanh(x * (first + jnp.arange(len(x)))[:, None].astype(x.dtype))


def mean_of_inner(x: Any, *, outer: Any, inner: Any) -> Any:
    """A mean over one of two roles."""
    return jnp.tanh(lax.pmean(x[0], inner))


def total_over_outer(x: Any, *, outer: Any, inner: Any) -> Any:
    """A sum over the other role."""
    return jnp.tanh(lax.psum(x.sum(1), outer))


def gathered_by_inner(x: Any, *, outer: Any, inner: Any) -> Any:
    """Blocks are gathered in another order than theirs."""
    return jnp.cumsum(lax.all_gather(x, (inner, outer), tiled=True))


def contrast_of_own_rows(image: Any, text: Any, *, data: Any) -> Any:
    """A sigmoid loss of texts that go round a ring, a mean over the rows of a block in place of all."""
    p, total = lax.axis_size(data), -jax.nn.log_sigmoid((2 * jnp.eye(len(image)) - 1) * (2 * image @ text.T)).sum()
    for _ in range(1, p):
        text = lax.ppermute(text, data, [(i, (i + 1) % p) for i in range(p)])
        total = total - jax.nn.log_sigmoid(-2 * image @ text.T).sum()
    return lax.psum(total, data) / len(image)


def contrast_of_all(image: Any, text: Any) -> Any:
    """The same on whole arrays, a mean over all rows."""
    return -jax.nn.log_sigmoid((2 * np.eye(len(image)) - 1) * (2 * image @ text.T)).sum() / len(image)


NESTED: dict[str, Any] = {"one_axis": ["outer", "inner"], "dtypes": "float32"}


def dense_of(back: Any) -> Any:
    """A layer whose weights are sharded by columns, with a backward pass by hand."""

    def layer(x: Any, w: Any, *, data: Any, model: Any) -> Any:
        @jax.custom_vjp
        def dense(x: Any, w: Any) -> Any:
            return jnp.tanh(x @ w)

        def forth(x: Any, w: Any) -> Any:
            return dense(x, w), (x, w, dense(x, w))

        dense.defvjp(forth, functools.partial(back, data, model))
        return dense(x, w)

    return layer


def averaged_backward(data: Any, model: Any, kept: Any, ct: Any) -> Any:
    """The gradient of the weights is averaged."""
    x, w, y = kept
    g = ct * (1 - y * y)
    return lax.psum(g @ w.T, model), lax.pmean(x.T @ g, data)


def added_backward(data: Any, model: Any, kept: Any, ct: Any) -> Any:
    """The derivative of another function."""
    x, w, y = kept
    g = ct * (1 + y * y)
    return lax.psum(g @ w.T, model), lax.psum(x.T @ g, data)


def of_both_neighbours(x: Any, *, data: Any) -> Any:
    """Both are found in the order of the mesh."""
    p = lax.axis_size(data)
    onward = [(i, (i + 1) % p) for i in range(p)]
    return jnp.tanh(lax.ppermute(x, data, onward)) - lax.ppermute(x, data, [(to, source) for source, to in onward])


def centred(x: Any, *, data: Any) -> Any:
    """Its mean is taken for a constant."""
    return x - lax.stop_gradient(lax.pmean(x.mean(), data))


PROGRAMS: dict[str, tuple[Any, Any, dict[str, Any], str]] = {
    "a mean in a backward pass": (
        dense_of(averaged_backward),
        lambda x, w: jnp.tanh(x @ w),
        {"arguments": ("n@data k", "k m@model"), "results": "n@data m@model", "laws": "gradient", "dtypes": "float32"},
        r"psum over '\w+' in place of the pmean at test_repairs.py:\d+:\d+ \(averaged_backward\)",
    ),
    "a sign in a backward pass": (
        dense_of(added_backward),
        lambda x, w: jnp.tanh(x @ w),
        {"arguments": ("n@data k", "k m@model"), "results": "n@data m@model", "laws": "gradient", "dtypes": "float32"},
        r"sub in place of add at test_repairs.py:\d+:\d+ \(added_backward\)",
    ),
    "a constant": (
        centred,
        lambda x: x - x.mean(),
        {"arguments": ("n@data",), "results": "n@data", "laws": "gradient", "dtypes": "float32"},
        r"no stop_gradient at test_repairs.py:\d+:\d+ \(centred\)",
    ),
    "a temperature": (
        swaps_of_chains,
        swaps_of_all,
        {"arguments": ("@chains d", "@chains"), "results": "@chains", "one_axis": "chains", "dtypes": "float32"},
        r"div at test_repairs.py:\d+:\d+ \(swaps_of_chains\) behind ppermute at test_repairs.py:.*, not before it",
    ),
    "numbers by a tuple": (
        positions_by_inner,
        lambda x: np.tanh(x * np.arange(len(x))[:, None].astype(x.dtype)),
        {"arguments": ("n@outer@inner k",), "results": "n@outer@inner k", **NESTED},
        r"axis_index along \('\w+', '\w+'\) in place of what add at .* \(positions_by_inner\) gives",
    ),
    "a mean of one role": (
        mean_of_inner,
        lambda x: np.tanh(x.mean(0)),
        {"arguments": ("@outer@inner k",), "results": "k", **NESTED},
        r"the mean by the psum at .* \(mean_of_inner\) over '\w+' and '\w+', not over '\w+' alone",
    ),
    "another role": (
        total_over_outer,
        lambda x: np.tanh(x.sum(1)),
        {"arguments": ("n@outer k@inner",), "results": "n@outer", **NESTED},
        r"the psum at test_repairs.py:\d+:\d+ \(total_over_outer\) over '\w+', not over '\w+'",
    ),
    "a divisor": (
        contrast_of_own_rows,
        contrast_of_all,
        {"arguments": ("n@data d", "n@data d"), "results": "", "one_axis": "data", "dtypes": "float32"},
        r"pmean over '\w+' in place of the psum at test_repairs.py:\d+:\d+ \(contrast_of_own_rows\)",
    ),
    "a gather": (
        gathered_by_inner,
        np.cumsum,
        {"arguments": ("n@outer@inner",), "results": "n", **NESTED},
        r"the all_gather at .* \(gathered_by_inner\) over \('\w+', '\w+'\), not over \('\w+', '\w+'\)",
    ),
    "a bias": (
        bias_of_every_member,
        lambda x, w, b: x @ w + b,
        {"arguments": ("n k@model", "k@model m", "m"), "results": "n m"},
        r"add at test_repairs.py:\d+:\d+ \(bias_of_every_member\) behind psum at .*, not before it",
    ),
    "labels": (
        labels_of_own_rows,
        lambda image, text: -jnp.diag(jax.nn.log_softmax(image @ text.T)).mean(),
        {"arguments": ("n@data d", "n@data d"), "results": "", "one_axis": "data"},
        r"iota at test_repairs.py:\d+:\d+ \(labels_of_own_rows\) counted from where the block begins along '\w+', not",
    ),
    "an operand": (
        feedback_of_the_mean,
        feedback_of_rows,
        {"arguments": ("@data n", "@data n"), "results": ("n", "@data n"), "dtypes": "float32"},
        r"what mul at test_repairs.py:\d+:\d+ \(feedback_of_the_mean\) gives as second operand of sub at test_repairs",
    ),
    "a norm": (
        unclipped,
        lambda g: g / jnp.sqrt(jnp.sum(g * g) + 1.0),
        {"arguments": ("n@shard",), "results": "n@shard"},
        r"psum over '\w+' of what reduce_sum at test_repairs.py:\d+:\d+ \(unclipped\) gives",
    ),
    "a norm in JAX": (
        norms_of_own_rows,
        lambda x: jnp.sqrt((x * x).sum(0)),
        {"arguments": ("n@data k",), "results": "k"},
        r"sqrt at test_repairs.py:\d+:\d+ \(norms_of_own_rows\) behind psum at .*, not before it",
    ),
    "an order of dimensions": (
        heads_in_another_order,
        lambda x: x.sum(0).transpose(1, 0, 2),
        {"arguments": ("n@heads k k k",), "results": "k k k", "dtypes": "float32"},
        r"transpose at test_repairs.py:\d+:\d+ \(heads_in_another_order\) with the permutation \(1, 0, 2\) in place of",
    ),
    "a maximum": (
        softmax_of_own_maxima,
        lambda x: jax.nn.softmax(x, -1),
        {"arguments": ("n k@model",), "results": "n k@model"},
        r"pmax over '\w+' of what reduce_max at test_repairs.py:\d+:\d+ \(softmax_of_own_maxima\) gives",
    ),
    "a role": (
        total_of_one_role,
        lambda x: jnp.tanh(x.sum((0, 2))),
        {"arguments": ("n@data k r@replica",), "results": "k"},
        r"psum at test_repairs.py:\d+:\d+ \(total_of_one_role\) over '\w+' and '\w+', not over '\w+' alone",
    ),
    "an order": (
        running_total,
        np.cumsum,
        {"arguments": ("n@data",), "results": "n@data"},
        r"ppermute at test_repairs.py:\d+:\d+ \(running_total\) numbered by \('\w+', '\w+'\), .* the order of the mesh",
    ),
    "an order, twice": (
        of_both_neighbours,
        lambda x: np.tanh(np.roll(x, 1, 0)) - np.roll(x, -1, 0),
        {"arguments": ("@data k",), "results": "@data k"},
        r"ppermute at .* numbered by \('\w+', '\w+'\), .* the order of the mesh, \(.*\); and 1 more",
    ),
    "a sum too many": (
        summed_twice,
        lambda x: jnp.tanh(x.sum(0)),
        {"arguments": ("n@data k",), "results": "k"},
        r"(no psum|pmean over '\w+' in place of the psum) at test_repairs.py:\d+:\d+ \(summed_twice\)",
    ),
    "a ring": (
        ring_that_ends,
        lambda x, y: jnp.tanh(x @ y.T).sum(),
        {"arguments": ("n@data k", "n@data k"), "results": "", "dtypes": "float32"},
        r"the ppermute at test_repairs.py:\d+:\d+ \(ring_that_ends\) that sends block i to \(i \+ 1\) % p, with p=2",
    ),
    "a halo": (
        halo_of_one_side,
        lambda x: np.convolve(np.pad(x, 1), np.array([1, -2, 1.5]), "valid"),
        {"arguments": ("n@data",), "results": "n@data", "one_axis": ["data"], "dtypes": "float32"},
        r"the ppermute at test_repairs.py:\d+:\d+ \(halo_of_one_side\) with source and destination swapped",
    ),
    "a number": (
        numbered_by_another_role,
        lambda x, w: jnp.tanh(x) @ w,
        {"arguments": ("n@data k@model", "k m"), "results": "n@data m", "dtypes": "float32"},
        r"axis_index at test_repairs.py:\d+:\d+ \(numbered_by_another_role\) along '\w+' in place of '\w+'",
    ),
    "a running count": (
        places_among_own,
        places_among_all,
        {
            "arguments": (Array("t@data", "int32", below="experts"), "experts"),
            "results": Array("t@data", "int32"),
            "dtypes": "float32",
        },
        r"cumsum at test_repairs.py:\d+:\d+ \(places_among_own\) continued from the block before along '\w+'",
    ),
    "a scale too many": (
        tempered_twice,
        lambda x: jax.nn.softmax(x / 0.25, -1),
        {"arguments": ("n k@model",), "results": "n k@model", "dtypes": "float32"},
        r"no div at test_repairs.py:\d+:\d+ \(tempered_twice\): its first operand as it is",
    ),
    "a scale too few": (
        pair_without_temperature,
        lambda q, k: -jnp.diag(jax.nn.log_softmax(q @ k.T / 0.25)).mean(),
        {"arguments": ("n@data d", "n@data d"), "results": "", "one_axis": "data", "dtypes": "float32"},
        r"what \w+ at test_repairs.py:\d+:\d+ \(pair_without_temperature\) gives divided by 0.25",
    ),
    "a dimension": (
        joined_in_another_order,
        lambda x: x,
        {"arguments": ("n@outer@inner k",), "results": "n k@outer@inner"},
        r"the all_to_all at test_repairs.py:\d+:\d+ \(joined_in_another_order\) with another concat_axis: 0",
    ),
    "a roll": (
        rolled_back,
        lambda x: np.tanh(x) * np.roll(x, 1, 1),
        {"arguments": ("n@data k",), "results": "n@data k"},
        r"the roll at test_repairs.py:\d+:\d+ \(rolled_back\) the other way",
    ),
    "a prefix": (
        prefix_of_those_and_itself,
        np.cumsum,
        {"arguments": ("n@data",), "results": "n@data"},
        r"the comparison at test_repairs.py:\d+:\d+ \(prefix_of_those_and_itself\) false where both sides are equal",
    ),
}


@pytest.mark.parametrize("name", marked(PROGRAMS, ["a role", "a norm in JAX", "a halo", "a temperature", "a constant"]))
def test_the_line_and_the_change_are_reported(name: str) -> None:
    """In the report of a check, where nothing else is known."""
    function, reference, described, output = PROGRAMS[name]
    if name.startswith("an order") and jax.__version_info__ >= (0, 11):
        pytest.skip("this version lowers no tuple that is not in the order of the mesh")
    text = reported(function, reference, max_examples=12, random_seed=3, **described)
    found = re.search(r"one change makes it right: (.*)", text)
    assert found is not None, text
    assert re.search(output, found[1]), found[1]


def test_what_no_change_makes_right_is_not_reported() -> None:
    """Another formula is what it is."""
    described: dict[str, Any] = {"arguments": ("n@data k",), "results": "k", "max_examples": 4, "random_seed": 3}
    assert "one change" not in reported(of_no_repair, lambda x: jnp.sin(x).sum(0), **described)


def mean_of_masked(x: Any, mask: Any, *, data: Any) -> Any:
    """Each participant divides by the number that it has itself."""
    kept = mask.astype(x.dtype)
    return lax.pmean((x * kept).sum() / jnp.maximum(kept.sum(), 1), data)


def whole_mean_of_masked(x: Any, mask: Any) -> Any:
    """The same on whole arrays."""
    return (x * mask).sum() / np.maximum(mask.sum(), 1)


def test_what_makes_only_larger_blocks_right_is_no_change() -> None:
    """The mean of the numbers is less than one on the reported case, where few are masked."""
    described = {"arguments": ("b@data", Array("b@data", "int32", below=2)), "results": "", "dtypes": "float32"}
    assert "one change" not in reported(mean_of_masked, whole_mean_of_masked, **described)


def twice_whatever_the_scale(x: Any, *, data: Any, scale: int) -> Any:
    """The scale is not that of the argument."""
    return lax.psum(jnp.tanh(x).sum(0) * 2, data)


def test_what_makes_one_option_right_is_no_change() -> None:
    """No scale at all is right where it is one."""
    described = {"arguments": ("n@data k",), "results": "k", "dtypes": "float32", "options": {"scale": (1, 3)}}
    text = reported(twice_whatever_the_scale, lambda x, *, scale: scale * np.tanh(x).sum(0), **described)
    assert "scale=1" in text
    assert "one change" not in text


def reads_further(x: Any, table: Any, *, data: Any) -> Any:
    """The rows of a table from one further on."""
    return x + lax.dynamic_slice_in_dim(table, lax.axis_index(data) * len(x) + 1, len(x))


def writes_behind(x: Any, *, data: Any) -> Any:
    """Each block is written where the next one belongs."""
    place, p = lax.axis_index(data) + 1, lax.axis_size(data)
    empty = lax.pcast(jnp.zeros((p * len(x), *x.shape[1:]), x.dtype), data, to="varying")
    return lax.psum(lax.dynamic_update_slice_in_dim(empty, x, place * len(x), 0), data)


def counted_in_bytes(x: Any, *, data: Any) -> Any:
    """A sum of bytes, in bytes."""
    return lax.psum((x + 100).sum(0, dtype=jnp.uint8), data).astype(jnp.int32)


def masked_by_infinity(x: Any, mask: Any, *, data: Any) -> Any:
    """A softmax of the masked, of which there may be none."""
    masked = jnp.where(mask, x, -jnp.inf)
    weights = jnp.exp(masked - lax.pmax(masked.max(), data))
    return weights / lax.psum(weights.sum(), data)


def masked_by_zero(x: Any, mask: Any) -> Any:
    """The same, and zeros where there is none."""
    weights = np.where(mask, np.exp(x - x.max()), 0)
    return weights / np.maximum(weights.sum(), np.finfo(np.float32).tiny)


ROW: dict[str, Any] = {"arguments": ("s@data d",), "results": "s@data d"}
STARTS = r"clamped: the start of dynamic_(update_)?slice at test_repairs.py:\d+:\d+ .* is 2, beyond the"


@pytest.mark.parametrize(
    ("function", "reference", "described", "expected"),
    [
        (reads_further, np.add, {**ROW, "arguments": ("s@data d", "s d")}, STARTS),
        (writes_behind, lambda x: x, {**ROW, "results": "s d"}, STARTS),
        (
            counted_in_bytes,
            lambda x: (x + 100).sum(0, dtype=np.int32),
            {"arguments": (Array("s@data", "uint8"),), "results": Array("", "int32"), "gradients": False},
            r"wraps: \w+ at test_repairs.py:\d+:\d+ \(counted_in_bytes\) is \d+, and \d+ in uint8",
        ),
        (
            masked_by_infinity,
            masked_by_zero,
            {"arguments": ("s@data", Array("s@data", "bool")), "results": "s@data"},
            r"NaN: .*\n.* the first is made by sub at test_repairs.py:\d+:\d+ \(masked_by_infinity\)",
        ),
    ],
)
def test_what_a_run_in_doubles_records_is_reported(
    function: Any, reference: Any, described: Any, expected: str
) -> None:
    """Starts beyond the last at which a slice fits, wraps and the first NaN, each with its line."""
    program = Program(function, reference, **described, one_axis=("data",), dtypes="float32")
    scope = Scope(max_devices=4, available=4)
    found = find_violation([LAWS["value"]], program.implementation, SimulateEngine(), scope, max_examples=50)
    assert found.violation is not None
    assert re.search(expected, "\n ".join(diagnose(found.violation)))


def test_the_line_is_in_the_function_that_is_checked() -> None:
    """A collective is named by the line that calls its wrapper: of an implementation here, or of a user's function."""
    case = example("matmul_reduce_scatter", MeshCase(("tp",), (4,)), "tp")
    own = next(one for one in IMPLEMENTATIONS if one.contract is case.contract)
    made = equations(trace(forward(case, own, Seen()), case.mesh))
    (place,) = [location(e) for e in made if e.primitive.name in EXCHANGE]
    assert "/impl/collective_matmul/naive.py:" in place

    def sums(x: Any) -> Any:
        return all_reduce(x, "tp")

    mesh = jax.sharding.AbstractMesh((2,), ("tp",), axis_types=(jax.sharding.AxisType.Auto,))
    mapped = jax.shard_map(sums, mesh=mesh, in_specs=jax.P("tp"), out_specs=jax.P())
    (place,) = [location(e) for e in equations(jax.make_jaxpr(mapped)(jnp.ones(2))) if e.primitive.name in EXCHANGE]
    assert re.search(r"/test_repairs\.py:\d+:\d+ \(.*sums\)$", place)


def test_a_number_in_the_order_of_the_mesh() -> None:
    """By that in the order of the tuple."""
    mesh = MeshCase(("dp", "tp"), (2, 3))
    assert numbers_by_the_mesh(mesh, ("tp", "dp")) == [0, 3, 1, 4, 2, 5]
    assert numbers_by_the_mesh(mesh, ("dp", "tp")) == [0, 1, 2, 3, 4, 5]


def test_a_changed_program() -> None:
    """Changed equations compute something else, and the others what they did."""
    mesh = jax.sharding.AbstractMesh((2, 2), ("dp", "tp"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    function = jax.shard_map(
        lambda x: lax.psum(x * 2.0, "dp")[None],
        mesh=mesh,
        in_specs=jax.P(("dp", "tp")),
        out_specs=jax.P(("dp", "tp")),
        check_vma=False,
    )
    x = np.arange(4, dtype=np.float32)
    program = prepare(function, x)
    places = {e.primitive.name: id(e) for e in program.equations}

    def run(change: Change) -> list[float]:
        (result,) = run_in_doubles(program, x, change=change)
        return [float(v) for v in result.ravel()]

    assert run(NO_CHANGE) == [4, 8, 4, 8]
    assert run(Change(frozenset({places["psum"]}), (("axes", ("dp", "tp")),))) == [12, 12, 12, 12]
    assert run(Change(frozenset({places["psum"]}), (("axes", ()),))) == [0, 2, 4, 6]
    assert run(Change(frozenset({places["psum"]}), (("axes", ()),), "pmean", ("dp",))) == [2, 4, 2, 4]
    assert run(Change(frozenset({places["mul"]}), (), "once", ("tp",))) == [2, 4, 2, 4]
    assert run(Change(frozenset({places["mul"]}), operand=0)) == [2, 4, 2, 4]
    assert run(Change(frozenset({places["mul"]}), times=0.5)) == [2, 4, 2, 4]
    assert run(Change(frozenset({places["mul"]}), (), "pmax", ("tp",))) == [8, 8, 8, 8]


@pytest.mark.parametrize("reverse", [False, True])
def test_a_running_result_that_goes_on(reverse: bool) -> None:
    """It goes on from block to block in the order of the tuple, from the end where it is reversed."""
    mesh = jax.sharding.AbstractMesh((2, 3), ("dp", "tp"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    x = np.arange(24, dtype=np.float32).reshape(2, 12) % 7
    for run, right in ((lax.cumsum, np.add), (lax.cummax, np.maximum)):
        own = functools.partial(run, axis=1, reverse=reverse)
        spec = jax.P(None, ("tp", "dp"))
        program = prepare(jax.shard_map(own, mesh=mesh, in_specs=spec, out_specs=spec), x)
        place = next(id(e) for e in program.equations if e.primitive.name.startswith("cum"))
        (result,) = run_in_doubles(program, x, change=Change(frozenset({place}), then="whole", axes=("tp", "dp")))
        order = slice(None, None, -1 if reverse else 1)
        np.testing.assert_array_equal(result, right.accumulate(x[:, order], axis=1)[:, order])


ROWS: dict[str, Any] = {"arguments": ("n@data k",), "results": "n@data k", "dtypes": "float32"}


def shares(x: Any) -> Any:
    """The programs on whole arrays."""
    return jax.nn.softmax(32 * x, -1)


def of_narrow_logits(x: Any, *, data: Any) -> Any:
    """A softmax of logits of 16 bits."""
    narrow = (32 * x).astype(jnp.bfloat16)
    return jax.nn.softmax(narrow.astype(x.dtype), -1)


def of_narrow_logits_and_factors(x: Any, *, data: Any) -> Any:
    """Before that, what 16 bits hold is cast."""
    factor = jnp.asarray(32, jnp.bfloat16).astype(x.dtype)
    return jax.nn.softmax((factor * x).astype(jnp.bfloat16).astype(x.dtype), -1)


def narrow_at_the_end(x: Any, *, data: Any) -> Any:
    """The result was of 16 bits."""
    return shares(x).astype(jnp.float16).astype(x.dtype)


def of_another_base(x: Any, *, data: Any) -> Any:
    """Two is raised to a power, and what is 1 in any case is cast."""
    one = jnp.ones((), jnp.bfloat16).astype(x.dtype)
    return one * jnp.exp2(32 * x) / jnp.exp2(32 * x).sum(-1, keepdims=True)


def summed_narrowly(x: Any, *, data: Any) -> Any:
    """A sum over devices in 16 bits."""
    return jnp.tanh(lax.psum(jnp.sum(x, 0).astype(jnp.bfloat16), data).astype(x.dtype))


def added_narrowly(x: Any, *, data: Any) -> Any:
    """A sum that a loop carries in 16 bits."""
    return lax.psum(lax.scan(lambda total, row: (total + row, None), 0 * x[0], x)[0], data)


def reported(function: Any, reference: Any, **described: Any) -> str:
    """The report of a check."""
    with pytest.raises(AssertionError) as caught:
        check_program(function, reference, **{"laws": "value", "max_examples": 20, "random_seed": 5, **described})
    return str(caught.value)


@pytest.mark.parametrize(
    ("function", "line", "dtype"),
    [
        (of_narrow_logits, 2, "bfloat16"),
        (of_narrow_logits_and_factors, 3, "bfloat16"),
        (narrow_at_the_end, 2, "float16"),
    ],
)
def test_the_cast_is_reported(function: Any, line: int, dtype: str) -> None:
    """By its line, in a function that is right in double precision."""
    number = function.__code__.co_firstlineno + line
    place = rf"convert_element_type at test_repairs.py:{number}:\d+ \({function.__name__}\)"
    text = reported(function, shares, **ROWS)
    assert re.search(rf"rounded too much: .*; {place} rounds to {dtype}$", text, re.MULTILINE), text


def test_a_cast_before_a_sum_is_reported() -> None:
    """Of a result that is not sharded, too."""
    described = {**ROWS, "results": "k"}
    text = reported(summed_narrowly, lambda x: jnp.tanh(x.sum(0)), **described)
    place = r"(convert_element_type|psum) at test_repairs.py:\d+:\d+ \(summed_narrowly\)"
    assert re.search(rf"rounded too much: .*; {place} rounds to bfloat16$", text, re.MULTILINE), text


def test_a_narrow_accumulator_is_reported() -> None:
    """By the line that adds, however large the error is, where a wider accumulator is stated."""
    stated = {"arguments": ("n@data k",), "results": "k", "dtypes": "bfloat16", "accumulator": "float32"}
    text = reported(added_narrowly, lambda x: x.sum(0), **stated)
    place = rf"add at test_repairs.py:{added_narrowly.__code__.co_firstlineno + 2}:\d+"
    assert re.search(
        rf"rounded too much: in double precision .*; {place} .* rounds to bfloat16$", text, re.MULTILINE
    ), text


def test_what_is_wrong_in_double_precision_is_no_rounding() -> None:
    """Another formula is one, whatever is cast in it."""
    assert "rounded too much" not in reported(of_another_base, shares, **ROWS)


def test_sizes_that_are_stated_stay_as_they_are_where_blocks_are_enlarged() -> None:
    """So do a kernel, and the one row of each participant; what is not served is not run."""

    def totals(x: Any, kernel: Any, taps: Any, *, data: Any) -> Any:
        return lax.psum(x[0] * kernel.sum() * taps.sum(), data)

    def serves(n: int) -> bool:
        return n < 10

    for most, block in ((None, (1, 11)), (serves, None)):
        program = Program(
            totals, lambda x, kernel, taps: x.sum(0) * kernel.sum() * taps.sum(),
            arguments=("@data n", "3 3", "k"), results="n", sizes={"k": 2}, serves=most,
        )  # fmt: skip
        axes = Placement((("dp",), ())), Placement(((), ())), Placement(((),))
        blocks = zip(((1, 1), (3, 3), (2,)), axes, strict=True)
        operands = tuple(Operand(shape, "float32", placement) for shape, placement in blocks)
        mesh, roles = MeshCase(("dp",), (2,)), (("data", ("dp",)),)
        case = Case(program.contract, mesh, ("dp",), operands, roles=roles)
        larger = enlarge(case, program.implementation)
        assert (larger and [o.block for o in larger.operands]) == (block and [block, (3, 3), (2,)])

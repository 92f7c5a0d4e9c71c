"""How many structures a law draws for an implementation on an engine: the one place that says so."""

from collections.abc import Mapping

from shardproof.properties.laws.law import Law
from shardproof.properties.programs.implementations import IMPLEMENTATIONS

XLA = 0.06
"""XLA's part of a law's structures: compiling one costs many times what interpreting it does (`python -m
shardproof.properties.benchmark simulate`), and the law of agreement has a larger share."""

LEAST = 2
"""What everything gets; a user's function one more, since the first that Hypothesis tries is the simplest of all."""

SHARES: Mapping[str, Mapping[str, float]] = {
    # of a user's function nothing is known; a case without jit, or compiled with its gradients, takes as long as fifty;
    # under what takes derivatives of one operand alone, or of two calls, bugs are met late, as are errors of many kinds
    "user": {
        "simulate": 1.0,
        "xla": 1.0,
        "eager": 0.4,
        "agreement": 0.5,
        "transformation": 1.25,
        "transformed gradient": 1.6,
        "error": 1.5,
    },
    # a collective of `jax.lax`
    "lax": {"simulate": 0.11, "xla": 0.09, "scale": 0.06},
    # nineteen hand-written algorithms, which share their pieces
    "algorithm": {"simulate": 0.03, "xla": 0.03, "value": 0.12},
    # a product that communicates, then multiplies: made of collectives that were checked by themselves
    "naive": {"simulate": 0.06, "xla": 0.04, "scale": 0.03},
    # an operation made of a collective or two
    "operation": {"simulate": 0.07, "xla": 0.04, "value": 0.1, "scale": 0.03},
    # one that is no sum of products, each data set of which is interpreted twice more, in double precision
    "nonlinear": {"simulate": 0.04, "xla": 0.03, "scale": 0.02, "value": 0.085, "gradient": 0.06},
    # one that is nonlinear, of so many steps that a case takes long
    "sequences": {"simulate": 0.04, "xla": 0.03, "scale": 0.02, "value": 0.06, "gradient": 0.055},
    # two that are nonlinear, of a product and a loss that were checked by themselves
    "fused": {"simulate": 0.02, "xla": 0.02, "scale": 0.01, "value": 0.06, "gradient": 0.025},
    # one that is nonlinear, and moves what it decides to move: nine ways for the same
    "routed": {"simulate": 0.02, "xla": 0.02, "scale": 0.01, "value": 0.1, "gradient": 0.07},
    # what goes with that: losses of its router, other experts, experts that choose; of parts that were checked there
    "routers": {"simulate": 0.01, "xla": 0.01, "value": 0.015, "gradient": 0.02},
    # one of loops, which the interpreter runs step by step, and compilers slowly
    "layers": {"simulate": 0.02, "xla": 0.02, "value": 0.06, "gradient": 0.03, "overlap": 0.05},
    # one that is meant on whole arrays, which a compiler may take to pieces
    "whole": {"simulate": 0.02, "xla": 0.02, "value": 0.08, "gradient": 0.075},
    # products that overlap, over two dozen: one pair of loops, and each compilation takes a second
    "overlapped": {"simulate": 0.02, "xla": 0.02, "value": 0.025, "communication": 0.03, "overlap": 0.12},
}
"""What a form of implementation gets of what a law grants: by engine, or on the first engine of a law that is named by
that, which is more where bugs of this form are found late, and less where a case takes long: as much as catches all of
`shardproof.properties.mutants` with the catalogue's own seed."""


EQUATIONS = 30_000
"""The most equations of all structures of a law of large meshes, if there are more than `FEWEST` of these."""

FEWEST = 4
"""What is drawn however many equations there are."""

WEIGHTS: Mapping[str, float] = {
    "nonlinear": 0.5,
    "sequences": 0.1,
    "fused": 0.4,
    "whole": 0.2,
    "layers": 0.8,
    "routed": 0.11,
    "routers": 0.08,
}
"""What part `check` draws, of a contract whose own implementations are of a form that takes long: so that it has its
verdict on most right functions within a minute. `pytest --impl` draws all."""

OF_VALUES: Mapping[str, float] = {"sequences": 0.4}
"""The same of values, by which most bugs are found, so that it draws all but where these alone take longer."""


def structures(law: Law, examples: int, engine: str, form: str = "user", contract: str = "") -> int:
    """How many structures there are.

    Arguments:
        law: the law, which says what it is granted of the examples.
        examples: the profile's `max_examples`.
        engine: the engine's name.
        form: one of `SHARES`.
        contract: for `check`, of which operation a user's function is; by default all are drawn.
    """
    shares = SHARES[form]
    share = shares.get(law.name, shares[engine]) if engine == law.engines[0] else shares[engine]
    if law.name != "error":  # for which nothing is computed
        share *= weight(contract, OF_VALUES if law.name == "value" else WEIGHTS)
    least = LEAST + (form == "user")
    return max(least, round(examples * law.share * share * (XLA if engine == "xla" else 1)))


def within(structures: int, equations: int) -> int:
    """How many of the structures of a law of large meshes are interpreted, of a function with many equations there.

    Arguments:
        structures: how many the law grants.
        equations: how many a forward pass on the largest mesh may have; 0 if that is not known.
    """
    return min(structures, max(FEWEST, EQUATIONS // equations)) if equations else structures


def weight(contract: str, weights: Mapping[str, float]) -> float:
    """What `check` draws of the examples for a function of a contract: by the form of our first one of it."""
    return weights.get(next((one.form for one in IMPLEMENTATIONS if one.contract == contract), ""), 1)

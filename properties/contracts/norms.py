"""The contracts of global_norm and rms_norm, which are no sums of products."""

import math

import numpy as np

from shardproof.impl import norms as implementations
from shardproof.oracles import norms
from shardproof.properties.cases.case import Case
from shardproof.properties.contracts.contract import Claim, Contract, Option, at_least_a_byte, of_type
from shardproof.properties.contracts.costs import replica_bytes, replicas, transposed
from shardproof.properties.contracts.forbidden import longer
from shardproof.properties.contracts.operation import INDEPENDENT, operation

FEATURES = frozenset({"empty_blocks", "explained_errors", "replicated_operands", "x64"})
OF_TOKENS = FEATURES | {INDEPENDENT, "any_rank"}
KINDS = ("exact", "real", "distinct", "scaled", "nan")

EPSILON = Option(of_type(float), lambda case, value: value >= 0, (1e-6, 1e-5, 1e-3, 0.5, 1e-12, 0.0))


def _begun(x: np.ndarray) -> np.ndarray:
    """The array with ones for the zeros in its first columns, so that no block of it is all zeros."""
    first = np.arange(x.shape[-1]) == 0
    return np.where(first & (x == 0), np.ones((), x.dtype), x)


def _some_larger(case: Case, arrays: list[np.ndarray]) -> list[np.ndarray]:
    x = _begun(*arrays)  # where all of an array is zero, its norm has no derivative, and implementations choose one
    fits = x.dtype == np.float16 and x.size < 2000 and np.abs(x).max(initial=0) < 16
    # squares overflow in float16, and the norm does not
    return [x * np.float16(64) if fits and np.count_nonzero(x > 0) % 2 else x]


def _defined(case: Case, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Without epsilon no token is all zeros; with it every other one is, of a third of the data sets without NaN."""
    x, scale = arrays
    if not case.keywords["epsilon"]:
        return [_begun(x), scale]
    zeros = np.arange(x.shape[-2])[:, None] % 2 == 0
    some = np.signbit(x).sum() % 3 == 0 and not np.isnan(x.astype(np.float64)).any()
    return [np.where(zeros & some, np.zeros((), x.dtype), x), scale]


TOKENS = "tokens*sum_itemsize(x)"
MEET = ("x", "scale")
"""Either may be the same where the other one varies, and they meet in the accumulator's dtype."""

CONTRACTS: tuple[Contract, ...] = (
    operation(
        "global_norm",
        norms.global_norm,
        {"x": "rows@axis_name columns"},
        invariant=True,
        kinds=(*KINDS, "zeros"),
        features=FEATURES,
        adapt=_some_larger,
        accumulator="float32",
        usual_sizes={"rows": 8192, "columns": 1024},
        implementations={
            "squares": Claim(
                implementations.global_norm, communication=transposed("all_reduce=1,bytes=sum_itemsize(x)")
            )
        },
    ),
    operation(
        "rms_norm",
        norms.rms_norm,
        {"x": "leading tokens features@axis_name", "scale": "features@axis_name"},
        options={"epsilon": EPSILON},
        kinds=KINDS,
        features=OF_TOKENS,
        violations=(longer("scale", 1, 0),),
        adapt=_defined,
        accumulator="float32",
        usual_sizes={"tokens": 2048, "features": 8192},
        least=at_least_a_byte(0),
        usual={"epsilon": 1e-6},
        sizes={"tokens": lambda case: math.prod(case.operands[0].block[:-1])},
        implementations={
            "squares": Claim(
                implementations.rms_norm,
                # the cotangent of a token's sum has a term from every feature
                communication=f"all_reduce=1,bytes={TOKENS};grad:all_reduce=2+{replicas(*MEET)},"
                f"bytes=2*{TOKENS}+{replica_bytes(*MEET, wide=True)}",
            )
        },
    ),
)

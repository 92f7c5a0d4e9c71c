"""The contract of global_moe_layer: a mixture of experts on whole arrays, whatever shares them.

Tokens are shared over data and expert axes, experts over the latter alone, and a capacity is that of all tokens: what
comes of it does not depend on the mesh.
"""

import dataclasses

from shardproof.impl import moe as implementations
from shardproof.oracles.moe.whole import whole_moe_layer
from shardproof.properties.cases.case import Case
from shardproof.properties.contracts import moe, moe_claims
from shardproof.properties.contracts.call import Option, of_type
from shardproof.properties.contracts.contract import Claim, Contract
from shardproof.properties.contracts.described import Signature
from shardproof.properties.contracts.drawing import floats
from shardproof.properties.contracts.roles import Conditions
from shardproof.properties.contracts.token_classes import clear
from shardproof.properties.contracts.whole import whole_contract

FEATURES = frozenset({"explained_errors", "x64"})

SIGNATURE = Signature.of(
    ["tokens", "router_weights", "expert_weights"],
    ["tokens@data@expert features", "features experts", "experts@expert features outputs"],
    "tokens@data@expert outputs",
    more=("data", "expert"),
)
POLICIES = ("probability", "position", "choice")
"""Those that do not depend on the mesh."""


CLAIMS = {"all_to_all": moe_claims.BUFFERS, "ring": moe_claims.RING, "sorted": moe_claims.WEIGHTS}
"""One for each way on which something travels: to fixed places, one after the other, and no token at all."""


def _possible(case: Case) -> Case:
    """No more choices than there are experts."""
    own = dataclasses.replace(case, contract=CONTRACT)
    return own.with_params(top_k=min(case.keywords["top_k"], case.operands[1].block[1]))


WHOLE = whole_contract(
    "global_moe_layer",
    SIGNATURE,
    whole_moe_layer,
    conditions=Conditions(
        most=moe.MOST_MEMBERS,
        optional=frozenset({"data"}),
        options={"top_k": (1, 2, 3), "capacity": (None, 1, 2, 3, 6, 0), "policy": POLICIES},
    ),
    dtypes=floats,
    kinds=("real", "distinct"),
    features=FEATURES,
    violations=tuple(v for v in moe.SHARED["violations"] if v.argument not in ("over", "capacity_per_sender", "chunk")),
    shapes=(*moe.USUAL, ((64, 1024, 1024), 0, "")),
    usual=moe.OPTIONS,
    accumulator="float32",
    options={
        **{name: moe.SHARED["options"][name] for name in ("top_k", "capacity")},
        "policy": Option(of_type(str), lambda case, value: value in POLICIES),
    },
    generic=False,
    sizes=moe_claims.SIZES,
)


CONTRACT: Contract = dataclasses.replace(
    WHOLE,
    cases=lambda scope: WHOLE.cases(scope).map(_possible),
    adapt=clear,
    call=dataclasses.replace(WHOLE.call, roles=("expert", "data")),  # one axis alone is that of experts
    implementations={
        name: Claim(implementations.__dict__[f"global_{name}_moe"], FEATURES, communication=claim, whole=True)
        for name, claim in CLAIMS.items()
    },
)

"""Planted bugs of shard_load_balancing_loss and shard_router_z_loss."""

from jax import Array, lax

from shardproof.impl import router_losses
from shardproof.impl.collectives import ring_shift, varying
from shardproof.properties.mutants.axes import AxisName
from shardproof.properties.mutants.catalogue import formula_of, mutant


def alone(x: Array, axis_name: AxisName) -> Array:
    """The sum over a shard: its own."""
    return x


def own_axes(x: Array) -> tuple[str, ...]:
    """The axes along which shards differ."""
    return tuple(sorted(varying(x)))


@mutant("shard_router_z_loss", smallest=(2,))
def shard_z_of_all(logits: Array) -> Array:
    """Takes the mean over the tokens of all shards."""
    axes = own_axes(logits)
    own = router_losses.shard_router_z_loss(logits)
    return lax.pmean(own, axes) if axes else own


@mutant(
    "shard_load_balancing_loss",
    law="communication",
    smallest=(2,),
    communication=formula_of("shard_load_balancing_loss", "sums"),
)
def shard_balance_sent_there_and_back(logits: Array, *, top_k: int) -> Array:
    """Sends the logits to another device, and back."""
    return router_losses.shard_load_balancing_loss(there_and_back(logits), top_k=top_k)


def there_and_back(x: Array) -> Array:
    """The values that go to the next shard, and return."""
    axes = own_axes(x)
    for offset in (1, -1) if axes and lax.axis_size(axes) > 1 else ():
        x = ring_shift(x, axes, offset=offset)
    return x

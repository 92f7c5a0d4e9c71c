"""The loss of a model under every parallelisation: the same function of the same arrays, laid out in different ways."""

from shardproof.impl.losses.data_parallel import data_parallel, one_device
from shardproof.impl.losses.fully_sharded import fsdp_2d, fsdp_2d_remat, fsdp_rows, fsdp_rows_remat
from shardproof.impl.losses.parallelisation import Parallelisation
from shardproof.impl.losses.tensor_parallel import fsdp_tensor_parallel, fsdp_tensor_parallel_remat, tensor_parallel

PARALLELISATIONS: dict[str, Parallelisation] = {
    each.name: each
    for each in (
        one_device,
        data_parallel,
        fsdp_rows,
        fsdp_rows_remat,
        fsdp_2d,
        fsdp_2d_remat,
        tensor_parallel,
        fsdp_tensor_parallel,
        fsdp_tensor_parallel_remat,
    )
}
"""All of them by their names."""

__all__ = [
    "PARALLELISATIONS",
    "Parallelisation",
    "data_parallel",
    "fsdp_2d",
    "fsdp_2d_remat",
    "fsdp_rows",
    "fsdp_rows_remat",
    "fsdp_tensor_parallel",
    "fsdp_tensor_parallel_remat",
    "one_device",
    "tensor_parallel",
]

"""What a script tells JAX before it uses it: as it was where the law failed."""

from collections.abc import Sequence

import jax

from shardproof.properties.programs.precision import of_products
from shardproof.properties.report.scripts.literals import quoted


def options(devices: Sequence[int], *, in_doubles: bool) -> list[str]:
    """The lines that set them."""
    platform = getattr(jax.config, "jax_platforms", None) or "cpu"
    told: dict[str, str] = {}
    if platform == "cpu":
        told |= {"jax_platforms": quoted("cpu"), "jax_num_cpu_devices": str(max(devices) + 1)}
    if in_doubles:
        told["jax_enable_x64"] = "True"
    if (precision := of_products()) is not None:
        told["jax_default_matmul_precision"] = quoted(precision)
    return [f"jax.config.update({quoted(name)}, {value})" for name, value in told.items()]

"""Parts of claims of communication (see `Expectation.parse`)."""


def transposed(text: str) -> str:
    """The claim of a collective whose gradient sends as much: a permute's transpose is a permute."""
    return f"{text};grad:{text}"


def added_up(*names: str, wide: bool = False) -> str:
    """The sums of the gradients of replicas: an operand is cast to varying as it comes in, or once it is `wide`."""
    return f"all_reduce={replicas(*names)},all_reduce_bytes={replica_bytes(*names, wide=wide)}"


def replicas(*names: str) -> str:
    """The number of the operands that are replicated."""
    return "+".join(f"replicated({name})" for name in names)


def replica_bytes(*names: str, wide: bool = False) -> str:
    """The bytes of the replicated ones."""
    return "+".join(
        f"replicated({name})*{f'elements({name})*sum_itemsize({name})' if wide else name}" for name in names
    )

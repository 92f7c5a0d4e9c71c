"""What an implementation may claim beyond its contract's signature."""

FEATURES: dict[str, str] = {
    "any_rank": "Tokens, ids and values to be averaged may have further leading dimensions: `[B, T, V_Y]`.",
    "batch_dimensions": "The left operand has further leading dimensions.",
    "bool_sum": "Sums and means of bool count in int32, and in float32.",
    "chunks": "`chunk`: how many pairs a participant sends to another at a time; the result does not depend on it.",
    "empty_blocks": "Blocks may have no element.",
    "explained_errors": "What the contract forbids raises a ValueError naming the argument, its value and the mesh.",
    "first_senders": "The policy `sender`: the first participants fill a device's buffer.",
    "gates_of_all": "`over='all'`: gates are the softmax over all logits, which is not renormalised over the chosen.",
    "groups": "`axis_index_groups` of equal length, of logical indices.",
    "narrow_accumulation": "16-bit floats are added up in 16 bits: the bound on the error is that of their own dtype.",
    "invalid_indices": "Indices may be out of range.",
    "nan_logits": "A token's logits may be NaN, which counts as minus infinity.",
    "nan_tokens": "A token may be NaN, which makes its own result NaN where an expert keeps it, and no other's.",
    "negative_dimensions": "Dimensions may be counted from the back.",
    "operands_apart": "Operands may vary along different axes beside those of the tuple, weights where data does not.",
    "replicated_operands": "Operands may be the same along some axes of the tuple, or all of them.",
    "sender_capacity": "`capacity_per_sender`: the most that a participant sends to an expert; it drops the others.",
    "several_layers": "A participant may have several layers, every p-th of all: its r-th is the layer r p + i.",
    "trees": "The operand may be a pytree of arrays.",
    "uneven_groups": "`axis_index_groups` of different lengths, where a result's shape does not depend on it.",
    "x64": "float64, int64, uint64 and complex128, under `jax.enable_x64`.",
}
"""What an implementation may serve beyond the contract's signature; nothing is assumed of a user's function."""

CONCESSIONS = frozenset({"narrow_accumulation"})
"""Features that draw nothing more: they ask for less, so that `all` does not mean them."""

KEYWORDS = {
    "chunks": "chunk",
    "gates_of_all": "over",
    "groups": "axis_index_groups",
    "sender_capacity": "capacity_per_sender",
    "uneven_groups": "axis_index_groups",
}
"""The keyword arguments that a function must have which claims a feature, beside those of its contract."""

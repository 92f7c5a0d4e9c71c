"""Defects that are met by their scripts, and excuse no case."""

from shardproof.properties.known_defects.defect import Defect

RECORDED = (
    Defect(
        "special_loops_type",
        "expi and random.binomial raise where an operand varies: their loops begin with constants.",
    ),
    Defect(
        "argsort_type",
        "argsort of what varies is typed as the same everywhere: out_specs=P() is accepted, and residuals are wrong.",
    ),
    Defect(
        "random_parameters_type", "random.gamma and random.beta raise where a parameter varies and the key does not."
    ),
    Defect(
        "x64_constant",
        "A NumPy constant keeps the dtype of its first trace while a program holds it: jit fails after enable_x64.",
    ),
    Defect(
        "custom_jvp_branch",
        "The gradient of a vmap of a cond raises if a branch's custom_jvp has a mapped tangent, but no mapped result.",
    ),
    Defect(
        "nested_shard_map_gradient",
        "The gradient of a shard_map inside of another raises, or hangs: residuals name axes of the outer one.",
    ),
    Defect(
        "empty_explicit_shards",
        "An empty array sharded over an explicit axis has shards of the global shape and cannot be read.",
        seen_on=("0.10.2",),
    ),
    Defect(
        "varying_predicate_type",
        "What a varying predicate or trip count chooses is typed invariant: cond, switch, while_loop, fori_loop.",
    ),
    Defect("pure_callback_type", "The result of a pure_callback on a varying operand is typed invariant."),
    Defect(
        "psum_repeated_axis",
        "psum, pmax and all_gather over a tuple that names an axis twice abort the process instead of raising.",
        seen_on=("0.11.2", "0.12.0.1"),
    ),
    Defect(
        "negative_scatter_dimension",
        "psum_scatter and all_to_all accept negative dimensions while tracing and fail while lowering.",
        seen_on=("0.10.2",),
    ),
    Defect(
        "pmax_groups_type", "pmax with axis_index_groups is typed invariant although the groups hold different values."
    ),
    Defect(
        "pmax_empty_axes",
        "pmax and pmin over an empty axis tuple raise where types are checked; psum and pmean do nothing.",
        seen_on=("0.10.2",),
    ),
    Defect(
        "ppermute_tuple_order",
        "ppermute over a tuple out of mesh order numbers devices in mesh order (0.10) or is refused (0.12).",
    ),
    Defect(
        "pbroadcast_axis_name",
        "pbroadcast over one named axis iterates over the letters of the name and raises NameError.",
    ),
    Defect(
        "grad_of_psum_unchecked",
        "With check_vma=False, the gradient taken inside shard_map of a psum is silently wrong.",
    ),
    Defect(
        "pmean_uneven_groups",
        "pmean over axis_index_groups of different sizes divides the sum of each by the size of the first.",
    ),
    Defect(
        "vmap_ppermute_tuple", "ppermute over a tuple of a vmapped axis and a mesh axis silently drops the vmapped one."
    ),
    Defect(
        "vmap_ppermute_partial",
        "ppermute over a vmapped axis fails an assertion unless every participant sends, and zero-fills nothing.",
    ),
    Defect(
        "vmap_spmd_scan",
        "vmap with spmd_axis_name of a shard_map that has a loop, a branch or remat in it raises for its types.",
    ),
    Defect(
        "vmap_axis_name_checked",
        "Inside shard_map with check_vma=True, collectives over a named axis of vmap fail an assertion.",
    ),
    Defect("int2_all_gather", "XLA:CPU: all_gather of int2 returns garbage, or crashes on larger blocks."),
    Defect("int2_all_to_all", "XLA:CPU: all_to_all of int2 aborts the process."),
    Defect(
        "divergent_cond_gradient",
        "The gradient of a cond whose predicate varies waits for ever where one branch uses a replica.",
    ),
    Defect(
        "divergent_ppermute",
        "XLA:CPU: a ppermute over one axis, under a predicate that differs only along another, never ends.",
    ),
    Defect("scatter_empty_index", "XLA:CPU: scatter_add with empty index vectors writes to the wrong elements."),
    Defect("reduce_while_loop", "XLA:CPU: compiling lax.reduce with a while_loop in its function aborts the process."),
    Defect(
        "exp2_bfloat16",
        "exp2 of a bfloat16 is lowered to exp of x times a rounded log(2), and is up to six percent off.",
    ),
    Defect(
        "device_put_waits",
        "device_put to other devices waits for its operand, on the host, unless they are to hold the same parts of it.",
    ),
    Defect(
        "dot_general_batch_type",
        "On explicit axes dot_general types a batch dimension by its left operand alone: an axis of the right is lost.",
        seen_on=("0.10.2",),
    ),
    Defect(
        "reshape_axis_of_one",
        "On explicit axes a split or merge fails an assertion if an axis of one device is last and parts are one row.",
    ),
    Defect(
        "reshape_beside_ones",
        "On explicit axes a split beside dimensions of one element fails an assertion, or is refused.",
        seen_on=("0.10.2",),
    ),
    Defect(
        "reshape_to_ones",
        "On explicit axes a merge that adds dimensions of one element raises IndexError.",
        seen_on=("0.11.2", "0.12.0.1"),
    ),
    Defect(
        "reshard_over_another_axis",
        "XLA sends up to 1.5 times what a gather takes where axes of two give way to one, in another dimension.",
    ),
)

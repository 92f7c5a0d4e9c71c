"""Defects that are met by their scripts, and excuse no case."""

import re

from shardproof.properties.known_defects.defect import MOST, Defect

TEXT = """
special_loops_type: expi and random.binomial raise where an operand varies: their loops begin with constants.
argsort_type:
    argsort of what varies is typed as the same everywhere: out_specs=P() is accepted, and residuals are wrong.
random_parameters_type: random.gamma and random.beta raise where a parameter varies and the key does not.
x64_constant: A NumPy constant keeps the dtype of its first trace while a program holds it: jit fails after enable_x64.
custom_jvp_branch:
    The gradient of a vmap of a cond raises if a branch's custom_jvp has a mapped tangent, but no mapped result.
nested_shard_map_gradient:
    The gradient of a shard_map inside of another raises, or hangs: residuals name axes of the outer one.
empty_explicit_shards on 0.10.2:
    An empty array sharded over an explicit axis has shards of the global shape and cannot be read.
varying_predicate_type:
    What a varying predicate or trip count chooses is typed invariant: cond, switch, while_loop, fori_loop.
pure_callback_type: The result of a pure_callback on a varying operand is typed invariant.
psum_repeated_axis on 0.11.2, 0.12.0.1:
    psum, pmax and all_gather over a tuple that names an axis twice abort the process instead of raising.
negative_scatter_dimension on 0.10.2:
    psum_scatter and all_to_all accept negative dimensions while tracing and fail while lowering.
pmax_groups_type: pmax with axis_index_groups is typed invariant although the groups hold different values.
pmax_empty_axes on 0.10.2:
    pmax and pmin over an empty axis tuple raise where types are checked; psum and pmean do nothing.
ppermute_tuple_order: ppermute over a tuple out of mesh order numbers devices in mesh order (0.10) or is refused (0.12).
pbroadcast_axis_name: pbroadcast over one named axis iterates over the letters of the name and raises NameError.
grad_of_psum_unchecked: With check_vma=False, the gradient taken inside shard_map of a psum is silently wrong.
pmean_uneven_groups: pmean over axis_index_groups of different sizes divides the sum of each by the size of the first.
vmap_ppermute_tuple: ppermute over a tuple of a vmapped axis and a mesh axis silently drops the vmapped one.
vmap_ppermute_partial:
    ppermute over a vmapped axis fails an assertion unless every participant sends, and zero-fills nothing.
vmap_spmd_scan: vmap with spmd_axis_name of a shard_map that has a loop, a branch or remat in it raises for its types.
vmap_axis_name_checked: Inside shard_map with check_vma=True, collectives over a named axis of vmap fail an assertion.
int2_all_gather: XLA:CPU: all_gather of int2 returns garbage, or crashes on larger blocks.
int2_all_to_all: XLA:CPU: all_to_all of int2 aborts the process.
divergent_cond_gradient: The gradient of a cond whose predicate varies waits for ever where one branch uses a replica.
divergent_ppermute: XLA:CPU: a ppermute over one axis, under a predicate that differs only along another, never ends.
scatter_empty_index: XLA:CPU: scatter_add with empty index vectors writes to the wrong elements.
reduce_while_loop: XLA:CPU: compiling lax.reduce with a while_loop in its function aborts the process.
exp2_bfloat16: exp2 of a bfloat16 is lowered to exp of x times a rounded log(2), and is up to six percent off.
device_put_waits:
    device_put to other devices waits for its operand, on the host, unless they are to hold the same parts of it.
dot_general_batch_type on 0.10.2:
    On explicit axes dot_general types a batch dimension by its left operand alone: an axis of the right is lost.
reshape_axis_of_one:
    On explicit axes a split or merge fails an assertion if an axis of one device is last and parts are one row.
reshape_beside_ones on 0.10.2:
    On explicit axes a split beside dimensions of one element fails an assertion, or is refused.
reshape_to_ones on 0.11.2, 0.12.0.1: On explicit axes a merge that adds dimensions of one element raises IndexError.
reshard_over_another_axis:
    XLA sends up to 1.5 times what a gather takes where axes of two give way to one, in another dimension.
"""
"""Of each the name, the versions that it was seen on if they are other ones than of most, and the sentence."""

RECORDED = tuple(
    Defect(name, sentence, tuple(versions.split(", ")) if versions else MOST)
    for name, versions, sentence in re.findall(r"^(\w+)(?: on (.+))?:\s+(.+)", TEXT, re.MULTILINE)
)

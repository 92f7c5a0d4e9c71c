"""Operations on each element, and what makes arrays of nothing."""

from shardproof.properties.conformance.drawing import Drawing, Unsuited
from shardproof.properties.conformance.operations.parts import array, choice, draws, like, sizes, whole
from shardproof.properties.conformance.operations.table import Call, operation


def _unary(names: str, of: str, template: str = "lax.{name}({{0}})", **how: bool) -> None:
    for name in names.split():
        operation(name, template.format(name=name), weight=1, keeps="all", **how)(draws(array(0, 3, of=of)))


_unary("lgamma digamma", "float", "lax.{name}(abs({{0}}) + 1)", exact=False)  # they have poles
_unary("neg abs square", "number")
_unary("sign", "number", continuous=False)
_unary("floor ceil round is_finite", "float", continuous=False)
_unary("exp exp2 expm1 log log1p sin cos tan tanh asin acos atan sinh cosh asinh acosh atanh", "float", exact=False)
_unary("sqrt rsqrt cbrt logistic erf erfc erf_inv bessel_i0e bessel_i1e", "float", exact=False)
_unary("population_count clz bitwise_not", "integer", continuous=False)
_unary("gelu", "float", "jax.nn.gelu({{0}}, approximate=False)", exact=False)
_unary("sinc", "float", "jnp.sinc({{0}})", exact=False)
_unary("real imag conj", "complex")
for _name in ("exp", "log", "sqrt", "tanh", "sin"):
    _unary(f"complex_{_name}", "complex", f"lax.{_name}({{{{0}}}})", exact=False)


def _binary(names: str, of: str, **how: bool) -> None:
    for name in names.split():
        operation(name, f"lax.{name}({{0}}, {{1}})", weight=1, keeps="all", **how)(draws(array(0, 3, of=of), like()))


_binary("add sub mul", "ring")
_binary("max min", "ordered")
_binary("eq ne lt le gt ge", "number", continuous=False)
_binary("bitwise_and bitwise_or bitwise_xor", "bits", continuous=False)
_binary("atan2 nextafter", "float", exact=False, continuous=False)

for _name in ("div", "rem"):
    operation(_name, f"lax.{_name}({{0}}, {{1}})", exact=_name == "rem", continuous=False, weight=1)(
        draws(array(0, 3, of="number"), like(data=(1, 3)))
    )

for _name, _template in {
    "igamma": "lax.igamma({0}, {1} + 1)",
    "igammac": "lax.igammac({0}, {1} + 1)",
    "zeta": "lax.zeta({0} + 1, {1} + 1)",
    "polygamma": "lax.polygamma({1}, {0})",
    "betainc": "lax.betainc({0}, {1} + 1, 1 / ({0} + {1} + 1))",
    "hypot": "jnp.hypot({0}, {1})",
    "logaddexp": "jnp.logaddexp({0}, {1})",
    "pow": "{0} ** {1}",
}.items():
    operation(_name, _template, exact=False, continuous=_name != "pow", weight=1)(
        draws(array(0, 3, dtype="float32", data=(1, 3)), like(data=(0, 3)))
    )

for _name in ("gcd", "divmod"):
    operation(_name, f"{'*' * (_name == 'divmod')}jnp.{_name}({{0}}, {{1}})", continuous=False, weight=1)(
        draws(array(0, 3, dtypes=("int32", "uint32")), like(data=(1, 3)))
    )

for _name in ("shift_left", "shift_right_arithmetic", "shift_right_logical"):
    operation(_name, f"lax.{_name}({{0}}, {{1}})", continuous=False, weight=1)(
        draws(array(0, 3, of="integer"), like(data=(0, 3)))
    )

operation("integer_pow", "lax.integer_pow({0}, {y})", weight=1)(draws(array(0, 3, of="number"), y=whole(0, 3)))


@operation("broadcasted", "{0} {sign} {1}", weight=2, keeps="all")
def _broadcasted(d: Drawing) -> Call:
    x = d.array(1, 3, of="ring")
    shape = [1 if d.chance(3) else size for size in d[x].shape]
    keep = d.integer(0, len(shape))
    return [x, d.array(shape=shape[len(shape) - keep :], dtype=d[x].dtype)], {"sign": d.one_of("+*-")}


@operation("clamp", "lax.clamp({0}, {1}, {2})", weight=2)
def _clamped(d: Drawing) -> Call:
    x = d.array(0, 3, of="number")
    shapes = [() if d.chance(2) else d[x].shape for _ in range(2)]
    low, high = (d.array(shape=shape, dtype=d[x].dtype) for shape in shapes)
    return [low, x, high], {}


@operation("select_n", "lax.select_n({0}, {1}, {2})", weight=2)
def _selected(d: Drawing) -> Call:
    x = d.array(0, 3)
    shape = d[x].shape
    return [d.array(shape=() if d.chance(3) else shape, dtype="bool"), x, d.array(shape=shape, dtype=d[x].dtype)], {}


operation("select_of_three", "lax.select_n({1}, {0}, {2}, {0})", weight=1)(
    draws(array(0, 3), like(dtype="int32", data=(0, 2)), like())
)


@operation("convert_element_type", "lax.convert_element_type({0}, jnp.{dtype})", continuous=False, weight=2)
def _converted(d: Drawing) -> Call:
    x = d.array(0, 3, of="any", data=(0, 7))
    kept = ("float32", "int32", "int8", "uint8", "bfloat16", "float16", "int4", "uint4", "bool")
    return [x], {"dtype": d.one_of(kept)} if d[x].dtype != "complex64" else {"dtype": "complex64"}


@operation("bitcast_convert_type", "lax.bitcast_convert_type({0}, jnp.{dtype})", exact=False, continuous=False)
def _bitcast(d: Drawing) -> Call:
    x = d.array(1, 3, dtype=d.one_of(("int32", "float32", "int8", "uint8", "int16", "uint32")))
    widths = {"int8": 8, "uint8": 8, "int16": 16, "uint16": 16, "int32": 32, "uint32": 32, "float32": 32}
    ratio = widths[d[x].dtype]
    to = d.one_of(("int32", "int8", "uint8", "int16", "uint32"))
    if widths[to] > ratio and d[x].shape[-1] != widths[to] // ratio:
        x = d.new((*d.shape(1, 2), widths[to] // ratio), d[x].dtype)
    return [x], {"dtype": to}


operation("reduce_precision", "lax.reduce_precision({0}, {e}, {m})", exact=False, continuous=False, weight=1)(
    draws(array(0, 3, dtype="float32"), e=whole(4, 8), m=whole(2, 10))
)
operation("complex", "lax.complex({0}, {1})", weight=1)(draws(array(0, 3, dtype="float32"), like()))


@operation("iota", "lax.broadcasted_iota(jnp.{dtype}, {shape}, {dimension}, out_sharding={to})")
def _counted(d: Drawing) -> Call:
    shape = d.shape()
    dtype = d.one_of(("int32", "float32", "uint8", "int8", "bfloat16", "int4"))
    return [], {"dtype": dtype, "shape": list(shape), "dimension": d.integer(0, len(shape) - 1), "to": d.out(shape)}


operation("full", "jnp.full({shape}, {value}, jnp.{dtype})", weight=1)(
    draws(shape=sizes(), value=whole(0, 3), dtype=choice("float32", "int32", "int4"))
)
operation("triangle", "jnp.{which}({0}, {k})")(draws(array(2, 3), which=choice("tril", "triu"), k=whole(-3, 3)))
operation("stop_gradient", "lax.stop_gradient({0})", weight=1)(draws(array(0, 3)))
operation("optimization_barrier", "*lax.optimization_barrier(({0}, {1}))", weight=1)(draws(array(0, 3), array(0, 3)))


@operation("nan_to_num", "jnp.nan_to_num({0} / {1})", exact=False, weight=1)
def _quotient(d: Drawing) -> Call:
    x = d.array(0, 2, dtype="float32")
    if not d[x].shape:
        raise Unsuited
    return [x, d.array(shape=d[x].shape[-1:], dtype="float32", data=(1, 4))], {}

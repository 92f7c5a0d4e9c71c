"""Operations on each element, and what makes arrays of nothing."""

from shardproof.properties.conformance.drawing import Drawing, Unsuited
from shardproof.properties.conformance.operations.table import Call, operation


def _unary(name: str, of: str, template: str = "", **how: bool) -> None:
    @operation(name, template or f"lax.{name}({{0}})", weight=1, keeps="all", **how)
    def draw(d: Drawing) -> Call:
        return [d.array(0, 3, of=of)], {}


_unary("lgamma", "float", "lax.lgamma(abs({0}) + 1)", exact=False)  # it has poles
_unary("digamma", "float", "lax.digamma(abs({0}) + 1)", exact=False)
for _name in ("neg", "abs", "sign", "square"):
    _unary(_name, "number", continuous=_name != "sign")
for _name in ("floor", "ceil", "round", "is_finite"):
    _unary(_name, "float", continuous=False)
for _name in (
    *("exp", "exp2", "expm1", "log", "log1p", "sin", "cos", "tan", "tanh", "asin", "atan", "sinh", "cosh", "asinh"),
    *(
        "acosh",
        "sqrt",
        "rsqrt",
        "cbrt",
        "logistic",
        "erf",
        "erfc",
        "erf_inv",
        "bessel_i0e",
        "bessel_i1e",
        "acos",
        "atanh",
    ),
):
    _unary(_name, "float", exact=False)
for _name in ("population_count", "clz", "bitwise_not"):
    _unary(_name, "integer", continuous=False)
for _name, _template in (("gelu", "jax.nn.gelu({0}, approximate=False)"), ("sinc", "jnp.sinc({0})")):
    _unary(_name, "float", _template, exact=False)
for _name in ("exp", "log", "sqrt", "tanh", "sin"):
    _unary(f"complex_{_name}", "complex", f"lax.{_name}({{0}})", exact=False)
for _name in ("real", "imag", "conj"):
    _unary(_name, "complex")


def _binary(name: str, of: str, **how: bool) -> None:
    @operation(name, f"lax.{name}({{0}}, {{1}})", weight=1, keeps="all", **how)
    def draw(d: Drawing) -> Call:
        x = d.array(0, 3, of=of)
        return [x, d.array(shape=d[x].shape, dtype=d[x].dtype)], {}


for _name in ("add", "sub", "mul"):
    _binary(_name, "ring")
for _name in ("max", "min"):
    _binary(_name, "ordered")
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    _binary(_name, "number", continuous=False)
for _name in ("bitwise_and", "bitwise_or", "bitwise_xor"):
    _binary(_name, "bits", continuous=False)
for _name in ("atan2", "nextafter"):
    _binary(_name, "float", exact=False, continuous=False)


@operation("div", "lax.div({0}, {1})", exact=False, continuous=False, weight=1)
@operation("rem", "lax.rem({0}, {1})", continuous=False, weight=1)
def _divided(d: Drawing) -> Call:
    x = d.array(0, 3, of="number")
    return [x, d.array(shape=d[x].shape, dtype=d[x].dtype, data=(1, 3))], {}


@operation("igamma", "lax.igamma({0}, {1} + 1)", exact=False, weight=1)
@operation("igammac", "lax.igammac({0}, {1} + 1)", exact=False, weight=1)
@operation("zeta", "lax.zeta({0} + 1, {1} + 1)", exact=False, weight=1)
@operation("polygamma", "lax.polygamma({1}, {0})", exact=False, weight=1)
@operation("betainc", "lax.betainc({0}, {1} + 1, 1 / ({0} + {1} + 1))", exact=False, weight=1)
@operation("hypot", "jnp.hypot({0}, {1})", exact=False, weight=1)
@operation("logaddexp", "jnp.logaddexp({0}, {1})", exact=False, weight=1)
@operation("pow", "{0} ** {1}", exact=False, continuous=False, weight=1)
def _power(d: Drawing) -> Call:
    x = d.array(0, 3, dtype="float32", data=(1, 3))
    return [x, d.array(shape=d[x].shape, dtype="float32", data=(0, 3))], {}


@operation("gcd", "jnp.gcd({0}, {1})", continuous=False, weight=1)
@operation("divmod", "*jnp.divmod({0}, {1})", continuous=False, weight=1)
def _whole(d: Drawing) -> Call:
    x = d.array(0, 3, dtype=d.one_of(("int32", "uint32")))
    return [x, d.array(shape=d[x].shape, dtype=d[x].dtype, data=(1, 3))], {}


@operation("shift_left", "lax.shift_left({0}, {1})", continuous=False, weight=1)
@operation("shift_right_arithmetic", "lax.shift_right_arithmetic({0}, {1})", continuous=False, weight=1)
@operation("shift_right_logical", "lax.shift_right_logical({0}, {1})", continuous=False, weight=1)
def _shifted(d: Drawing) -> Call:
    x = d.array(0, 3, of="integer")
    return [x, d.array(shape=d[x].shape, dtype=d[x].dtype, data=(0, 3))], {}


@operation("integer_pow", "lax.integer_pow({0}, {y})", weight=1)
def _integer_power(d: Drawing) -> Call:
    return [d.array(0, 3, of="number")], {"y": d.integer(0, 3)}


@operation("broadcasted", "{0} {sign} {1}", weight=2)
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


@operation("select_of_three", "lax.select_n({0}, {1}, {2}, {1})", weight=1)
def _selected_of_three(d: Drawing) -> Call:
    x = d.array(0, 3)
    which = d.array(shape=d[x].shape, dtype="int32", data=(0, 2))
    return [which, x, d.array(shape=d[x].shape, dtype=d[x].dtype)], {}


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


@operation("reduce_precision", "lax.reduce_precision({0}, {e}, {m})", exact=False, continuous=False, weight=1)
def _fewer_bits(d: Drawing) -> Call:
    return [d.array(0, 3, dtype="float32")], {"e": d.integer(4, 8), "m": d.integer(2, 10)}


@operation("complex", "lax.complex({0}, {1})", weight=1)
def _of_parts(d: Drawing) -> Call:
    x = d.array(0, 3, dtype="float32")
    return [x, d.array(shape=d[x].shape, dtype="float32")], {}


@operation("iota", "lax.broadcasted_iota(jnp.{dtype}, {shape}, {dimension}, out_sharding={to})")
def _counted(d: Drawing) -> Call:
    shape = d.shape()
    dtype = d.one_of(("int32", "float32", "uint8", "int8", "bfloat16", "int4"))
    return [], {"dtype": dtype, "shape": list(shape), "dimension": d.integer(0, len(shape) - 1), "to": d.out(shape)}


@operation("full", "jnp.full({shape}, {value}, jnp.{dtype})", weight=1)
def _full(d: Drawing) -> Call:
    return [], {"shape": list(d.shape()), "value": d.integer(0, 3), "dtype": d.one_of(("float32", "int32", "int4"))}


@operation("triangle", "jnp.{which}({0}, {k})")
def _triangle(d: Drawing) -> Call:
    return [d.array(2, 3)], {"which": d.one_of(("tril", "triu")), "k": d.integer(-3, 3)}


@operation("stop_gradient", "lax.stop_gradient({0})", weight=1)
def _stopped(d: Drawing) -> Call:
    return [d.array(0, 3)], {}


@operation("optimization_barrier", "*lax.optimization_barrier(({0}, {1}))", weight=1)
def _barrier(d: Drawing) -> Call:
    return [d.array(0, 3), d.array(0, 3)], {}


@operation("nan_to_num", "jnp.nan_to_num({0} / {1})", exact=False, weight=1)
def _quotient(d: Drawing) -> Call:
    x = d.array(0, 2, dtype="float32")
    if not d[x].shape:
        raise Unsuited
    return [x, d.array(shape=d[x].shape[-1:], dtype="float32", data=(1, 4))], {}

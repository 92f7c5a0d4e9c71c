"""How a script takes derivatives: in forward and in reverse mode, as the chain says."""

from shardproof.properties.cases.chain import Chain

BESIDE_ZEROS = '''def beside_zeros(derivative):
    """The derivative along a direction as the second of a batch, of which the first is none."""

    def batched(*directions):
        both = jax.tree.map(lambda d: jnp.stack([jnp.zeros_like(d), d]), directions)
        return jax.tree.map(lambda y: y[1], jax.vmap(derivative)(*both))

    return batched'''


ONE_AT_A_TIME = '''def one_at_a_time(pull, f, xs):
    """The gradient of each operand, of which alone the function is differentiated."""

    def of(i):
        return pull(lambda x: f(*xs[:i], x, *xs[i + 1 :]), xs[i])

    pulls = [of(i) for i in range(len(xs))]
    return lambda cts: tuple(gradient for each in pulls for gradient in each(cts))'''


def pushed(chain: Chain, function: str, xs: str, tangents: str) -> str:
    """The tangents of the results. `xs` and `tangents` are texts of tuples."""
    push = f"lambda *ds: jax.jvp({function}, {xs}, ds)[1]"
    if "linearize" in chain:
        push = f"jax.linearize({function}, *{xs})[1]"
    elif "jacobian" not in chain:
        return f"jax.jvp({function}, {xs}, {tangents})[1]"
    return f"{_mapped(chain, push)}(*{tangents})"


def pulled(chain: Chain, function: str, xs: str, cotangents: str) -> str:
    """The gradients, a tuple. `xs` is the text of a tuple."""
    if "apart" in chain:
        pull = f"one_at_a_time(lambda f, *xs: {_pull(chain, 'f', 'xs')}, {function}, {xs})"
    else:
        pull = _pull(chain, function, xs)
    return f"{_mapped(chain, pull)}({cotangents})"


def _pull(chain: Chain, function: str, xs: str) -> str:
    if "linearize" in chain:
        return f"jax.linear_transpose(jax.linearize({function}, *{xs})[1], *{xs})"
    return f"jax.vjp({function}, *{xs})[1]"


def _mapped(chain: Chain, derivative: str) -> str:
    return f"beside_zeros({derivative})" if "jacobian" in chain else derivative

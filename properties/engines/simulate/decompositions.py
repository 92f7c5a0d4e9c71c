"""Matrix decompositions and triangular solves, in doubles, rounded once to the traced dtype.

Matrices are the last two dimensions. Signs and pivots are LAPACK's, which XLA calls on a CPU; where it fails, or a
matrix is not finite, all results are NaN.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.linalg

from shardproof.oracles.dtypes import is_float
from shardproof.properties.engines.simulate.env import Env, Rule, result_dtype, rule

Matrices = np.ndarray


def in_doubles(x: Matrices) -> Matrices:
    """Matrices in the widest floats of LAPACK."""
    return x.astype(np.complex128 if x.dtype.kind == "c" else np.float64, copy=False)


def adjoint(x: Matrices) -> Matrices:
    """The conjugate transpose."""
    return np.conj(np.swapaxes(x, -1, -2))


def decomposition(function: Callable[..., Any]) -> Rule:
    """The rule of a function of matrices, whose keyword arguments are the equation's parameters."""

    def run(env: Env, equation: Any, x: np.ndarray) -> list[np.ndarray]:
        finite = np.isfinite(in_doubles(x)).all(axis=(-2, -1))
        matrices = np.where(finite[..., None, None], in_doubles(x), 0)
        results = []
        for i, found in enumerate(function(matrices, **equation.params)):
            known = finite.reshape(finite.shape + (1,) * (found.ndim - finite.ndim))
            whole = np.where(known, found, np.nan) if is_float(result_dtype(equation, i)) else found
            results.append(whole.astype(result_dtype(equation, i)))
        return results

    return run


def cholesky(x: Matrices) -> list[Matrices]:
    """The lower triangular L with L L^H = x; only the lower triangle of x is read."""
    factor = np.zeros_like(x)
    for j in range(x.shape[-1]):
        column = x[..., j:, j] - np.einsum("...ik,...k->...i", factor[..., j:, :j], np.conj(factor[..., j, :j]))
        pivot = column[..., :1].real
        factor[..., j:, j] = column / np.sqrt(np.where(pivot > 0, pivot, np.nan))
    failed = np.isnan(factor).any(axis=(-2, -1), keepdims=True)
    return [np.where(failed, np.nan, factor)]


def qr(x: Matrices, *, full_matrices: bool, pivoting: bool, **_: Any) -> list[Matrices]:
    """Q and R; with pivoting also the columns of x that those of Q R are."""
    if not pivoting:
        return list(np.linalg.qr(x, mode="complete" if full_matrices else "reduced"))
    mode = "full" if full_matrices else "economic"
    each = [scipy.linalg.qr(one, mode=mode, pivoting=True) for one in x.reshape(-1, *x.shape[-2:])]
    return [np.stack(part).reshape(*x.shape[:-2], *part[0].shape) for part in zip(*each, strict=True)]


def geqrf(x: Matrices) -> list[Matrices]:
    """R, below it the vectors of the reflections of which Q is the product, and their factors."""
    reflections, factors = np.linalg.qr(x, mode="raw")
    return [np.swapaxes(reflections, -1, -2), factors]


def eigh(x: Matrices, *, lower: bool, subset_by_index: tuple[int, int] | None, **_: Any) -> list[Matrices]:
    """Eigenvectors and ascending eigenvalues of Hermitian matrices; only one triangle is read."""
    found, vectors = np.linalg.eigh(x, UPLO="L" if lower else "U")
    wanted = slice(*(subset_by_index or (None,)))
    return [vectors[..., wanted], found[..., wanted]]


def svd(
    x: Matrices, *, full_matrices: bool, compute_uv: bool, subset_by_index: tuple[int, int] | None, **_: Any
) -> list[Matrices]:
    """Descending singular values, and the left and right singular vectors."""
    wanted = slice(*(subset_by_index or (None,)))
    if not compute_uv:
        return [np.linalg.svd(x, compute_uv=False)[..., wanted]]
    left, found, right = np.linalg.svd(x, full_matrices=full_matrices)
    if subset_by_index is None:
        return [found, left, right]
    return [found[..., wanted], left[..., wanted], right[..., wanted, :]]


def lu(x: Matrices) -> list[Matrices]:
    """L below U, the row that each row was exchanged with, and the permutation of all exchanges."""
    factors, rows = x.copy(), x.shape[-2]
    steps = min(x.shape[-2:])
    pivots = np.zeros((*x.shape[:-2], steps), np.int64)
    for k in range(steps):
        size = np.abs(factors[..., k:, k].real) + np.abs(factors[..., k:, k].imag)  # as LAPACK measures
        pivots[..., k] = k + np.argmax(size, axis=-1)
        order = transposed(rows, k, pivots[..., k])
        factors = np.take_along_axis(factors, order[..., None], axis=-2)
        pivot = factors[..., k, None, k]
        scaled = factors[..., k + 1 :, k] / np.where(pivot == 0, 1, pivot)
        factors[..., k + 1 :, k] = scaled
        factors[..., k + 1 :, k + 1 :] -= scaled[..., None] * factors[..., k, None, k + 1 :]
    return [factors, pivots, permutation(pivots, rows)]


def transposed(rows: int, first: int, second: np.ndarray) -> np.ndarray:
    """0, 1, 2, … with `first` and `second` exchanged: `[*second.shape, rows]`."""
    order = np.broadcast_to(np.arange(rows), (*second.shape, rows)).copy()
    order[..., first] = second
    np.put_along_axis(order, second[..., None], first, axis=-1)
    return order


def permutation(pivots: np.ndarray, rows: int) -> np.ndarray:
    """The permutation of the rows by exchanges `[…, k]`, one after the other."""
    result = np.broadcast_to(np.arange(rows), (*pivots.shape[:-1], rows))
    for k in range(pivots.shape[-1]):
        result = np.take_along_axis(result, transposed(rows, k, pivots[..., k].astype(np.int64)), axis=-1)
    return result


for _function in (cholesky, qr, geqrf, eigh, svd, lu):
    rule(_function.__name__)(decomposition(_function))


@rule("lu_pivots_to_permutation")
def lu_pivots_to_permutation(env: Env, equation: Any, pivots: np.ndarray) -> np.ndarray:
    """The permutation of exchanges of rows."""
    return permutation(pivots, equation.params["permutation_size"]).astype(result_dtype(equation))


def reflect(vectors: Matrices, factors: np.ndarray, x: Matrices, *, adjoint_of: bool = False) -> Matrices:
    """Q x, or Q^H x, where Q is the product of reflections 1 - factor v v^H."""
    count = factors.shape[-1]
    for i in range(count) if adjoint_of else reversed(range(count)):
        v = np.where(np.arange(vectors.shape[-2]) > i, vectors[..., i], np.arange(vectors.shape[-2]) == i)[..., None]
        factor = factors[..., i, None, None]
        x = x - (np.conj(factor) if adjoint_of else factor) * v @ (adjoint(v) @ x)
    return x


@rule("householder_product")
def householder_product(env: Env, equation: Any, vectors: np.ndarray, factors: np.ndarray) -> np.ndarray:
    """The first columns of the product of reflections."""
    first = np.eye(*vectors.shape[-2:])
    return reflect(in_doubles(vectors), in_doubles(factors), first).astype(result_dtype(equation))


@rule("ormqr")
def ormqr(env: Env, equation: Any, vectors: np.ndarray, factors: np.ndarray, x: np.ndarray) -> np.ndarray:
    """A matrix times the product of reflections, or its adjoint, from the left or the right."""
    left, inverse = equation.params["left"], equation.params["transpose"]
    matrix = in_doubles(x) if left else adjoint(in_doubles(x))
    product = reflect(in_doubles(vectors), in_doubles(factors), matrix, adjoint_of=inverse == left)
    return (product if left else adjoint(product)).astype(result_dtype(equation))


@rule("triangular_solve")
def triangular_solve(env: Env, equation: Any, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """X with op(a) X = b, or X op(a) = b, by substitution; the other triangle of `a` is not read."""
    params = equation.params
    a, b = in_doubles(a), in_doubles(b)
    a = np.conj(a) if params["conjugate_a"] else a
    turned = params["transpose_a"] == params["left_side"]
    a = np.swapaxes(a, -1, -2) if turned else a
    b = b if params["left_side"] else np.swapaxes(b, -1, -2)
    upwards = params["lower"] == turned
    if upwards:
        a, b = np.flip(a, (-1, -2)), np.flip(b, -2)
    x = np.zeros((*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), *b.shape[-2:]), b.dtype)
    for i in range(a.shape[-1]):
        left = b[..., i, :] - np.einsum("...k,...kn->...n", a[..., i, :i], x[..., :i, :])
        x[..., i, :] = left if params["unit_diagonal"] else left / a[..., i, i, None]
    x = np.flip(x, -2) if upwards else x
    return (x if params["left_side"] else np.swapaxes(x, -1, -2)).astype(result_dtype(equation))


@rule("symmetric_product")
def symmetric_product(env: Env, equation: Any, a: np.ndarray, c: np.ndarray) -> np.ndarray:
    """The product of a matrix with its transpose, and another matrix, each times a number."""
    exact = in_doubles(a)
    product = equation.params["alpha"] * exact @ np.swapaxes(exact, -1, -2) + equation.params["beta"] * in_doubles(c)
    return product.astype(result_dtype(equation))

"""Matrix decompositions and triangular solves, in doubles, rounded once to the traced dtype.

Matrices are the last two dimensions. Signs and pivots are LAPACK's, which XLA calls on a CPU; where it fails, or a
matrix is not finite, all results are NaN.
"""

import math
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


def of_each(function: Callable[[Matrices], tuple[Any, ...]], x: Matrices) -> list[Matrices]:
    """The results of a function of one matrix, which gives several arrays, for each of many."""
    matrices = x.reshape(math.prod(x.shape[:-2]), *x.shape[-2:])
    each = list(map(function, matrices if len(matrices) else np.zeros((1, *x.shape[-2:]), x.dtype)))  # for the shapes
    parts = (np.stack(part)[: len(matrices)] for part in zip(*each, strict=True))
    return [part.reshape(*x.shape[:-2], *part.shape[1:]) for part in parts]


def cholesky(x: Matrices) -> list[Matrices]:
    """The lower triangular L with L L^H = x; only the lower triangle of x is read."""
    factor = scipy.linalg.get_lapack_funcs("potrf", (x,))

    def decompose(one: Matrices) -> tuple[Matrices]:
        found, failed = factor(one, lower=True)
        return (np.full_like(one, np.nan) if failed else found,)

    return of_each(decompose, x)


def qr(x: Matrices, *, full_matrices: bool, pivoting: bool, **_: Any) -> list[Matrices]:
    """Q and R; with pivoting also the columns of x that those of Q R are."""
    if not pivoting:
        return list(np.linalg.qr(x, mode="complete" if full_matrices else "reduced"))
    mode = "full" if full_matrices else "economic"
    return of_each(lambda one: scipy.linalg.qr(one, mode=mode, pivoting=True), x)


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
    factor = scipy.linalg.get_lapack_funcs("getrf", (x,))
    factors, pivots = of_each(lambda one: factor(one)[:2] if one.size else (one, np.zeros(0, int)), x)
    return [factors, pivots, permutation(pivots, x.shape[-2])]


def permutation(pivots: np.ndarray, rows: int) -> np.ndarray:
    """The permutation of the rows by exchanges `[…, k]`, one after the other."""
    result = np.broadcast_to(np.arange(rows), (*pivots.shape[:-1], rows)).copy()
    for k in range(pivots.shape[-1]):
        other, first = pivots[..., k, None].astype(np.int64), result[..., k, None].copy()
        result[..., k, None] = np.take_along_axis(result, other, axis=-1)
        np.put_along_axis(result, other, first, axis=-1)
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
    a, b = in_doubles(np.conj(a) if params["conjugate_a"] else a), in_doubles(b)
    solve = scipy.linalg.get_blas_funcs("trsm", (a, b))
    lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = (np.broadcast_to(x, lead + x.shape[-2:]) for x in (a, b))
    x = np.empty(b.shape, np.result_type(a, b))
    names = {"side": not params["left_side"], "lower": params["lower"], "diag": params["unit_diagonal"]}
    for i in np.ndindex(lead):
        x[i] = solve(1.0, a[i], b[i], trans_a=params["transpose_a"], **names)
    return x.astype(result_dtype(equation))


@rule("symmetric_product")
def symmetric_product(env: Env, equation: Any, a: np.ndarray, c: np.ndarray) -> np.ndarray:
    """The product of a matrix with its transpose, and another matrix, each times a number."""
    exact = in_doubles(a)
    product = equation.params["alpha"] * exact @ np.swapaxes(exact, -1, -2) + equation.params["beta"] * in_doubles(c)
    return product.astype(result_dtype(equation))

"""A layer and its loss on whole arrays: what they are in whichever mode they are sharded, and the gradient of the loss.

`Y = relu(X W_in + b_in) W_out + b_out`; the loss is the mean over rows of the squared differences to targets, added up.
"""

import numpy as np
from jaxtyping import Shaped

Parameters = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""W_in[D, F], b_in[F], W_out[F, E], b_out[E]."""


def mlp(x: Shaped[np.ndarray, "B D"], parameters: Parameters) -> Shaped[np.ndarray, "B E"]:
    """The layer."""
    w_in, b_in, w_out, b_out = parameters
    return np.maximum(x @ w_in + b_in, 0) @ w_out + b_out


def loss(x: Shaped[np.ndarray, "B D"], targets: Shaped[np.ndarray, "B E"], parameters: Parameters) -> np.ndarray:
    """The mean over rows of the squared differences, added up over columns."""
    return np.asarray(np.square(mlp(x, parameters) - targets).sum() / x.shape[0])


def loss_gradient(
    x: Shaped[np.ndarray, "B D"], targets: Shaped[np.ndarray, "B E"], parameters: Parameters
) -> tuple[np.ndarray, ...]:
    """By x, the targets, and each parameter; where the hidden values are not above zero the layer does not change."""
    w_in, b_in, w_out, _ = parameters
    before = x @ w_in + b_in
    of_result = 2 * (mlp(x, parameters) - targets) / x.shape[0]
    of_hidden = of_result @ w_out.T * (before > 0)
    of_w_out, of_w_in = np.maximum(before, 0).T @ of_result, x.T @ of_hidden
    return of_hidden @ w_in.T, -of_result, of_w_in, of_hidden.sum(axis=0), of_w_out, of_result.sum(axis=0)

"""The sum of the clients' quadratics, and its minimizers; see `fed_fisher.py`.

  letter  name   meaning
  H       apply  sum_i p_i F_i, symmetric, positive semidefinite: v -> H v
  r       r      sum_i p_i F_i w_i
  w_bar   start  sum_i p_i w_i

The minimum is where H w = r. All minimizers here stay in w_bar + range(H), and
thus lead to the one closest to w_bar.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from models.layers import Layer, matrix_of
from tff_fedfish.methods.one_shot.curvature import layer_product
from tff_fedfish.methods.one_shot.uploads import (
  Uploads,
  Weights,
  fisher_sums,
  kfac_shapes,
)

_TOLERANCE = 1e-5

Tensors = tuple[tf.Tensor, ...]


class Quadratic(NamedTuple):
  """H and r."""

  apply: Callable[[Tensors], Tensors]
  r: Tensors

  def residual_norm(self, w: Tensors) -> float:
    """Returns |H w - r|; its squares are summed in float64."""
    return _norm(_plus(self.r, -1.0, self.apply(w)))


def of_diagonals(uploads: Uploads, start: Weights) -> Quadratic:
  """Returns the quadratic of diagonals, summed one client at a time."""
  mass, r = (
    tuple(map(tf.constant, sums)) for sums in fisher_sums(uploads, start)
  )
  return Quadratic(lambda v: tuple(map(tf.multiply, mass, v)), r)


def of_layers(
  layers: Sequence[Layer], uploads: Uploads, positions: Mapping[str, int]
) -> Quadratic:
  """Returns the quadratic of K-FAC factors, in V of each layer.

  Their factors of all clients are held. `positions` are those of weights by
  name, in the model.
  """
  factors = {}
  r = tuple(_load(layer, uploads, positions, factors) for layer in layers)

  def apply(v):
    products = []
    for layer, matrix in zip(layers, v, strict=True):
      # One after the other: those of all clients take memory.
      with tf.control_dependencies(products[-1:]):
        products.append(layer_product(layer, factors, matrix))
    return tuple(products)

  return Quadratic(apply, r)


def _load(layer, uploads, positions, factors):
  """Adds all clients' factors, of p_i F_i, to those; returns r."""
  names = [name for name in (layer.kernel, layer.bias) if name is not None]
  rows, r = {name: [] for name in kfac_shapes([layer])}, 0.0
  for i, share in enumerate(np.float32(uploads.shares)):
    weights, summary = uploads.part(i, [positions[n] for n in names], [*rows])
    for name, tensor in summary.items():
      # Of A (x) G the share is in G.
      is_inputs = name.startswith('inputs/')
      rows[name].append(tensor if is_inputs else share * tensor)
    matrix = matrix_of(layer, dict(zip(names, weights, strict=True)))
    own = {name: tensors[i:] for name, tensors in rows.items()}
    r += layer_product(layer, own, tf.constant(matrix))
  while rows:
    # Of one name at a time. Not `tf.constant`, which makes two copies.
    name, tensors = rows.popitem()
    factors[name] = tf.stack(tensors)
  return r


def closed_form(quadratic: Quadratic, start: Tensors) -> Tensors:
  """Returns the minimizer where H is diagonal; w_bar stays where it is 0."""
  mass = quadratic.apply(tuple(map(tf.ones_like, start)))
  return tuple(
    tf.where(m > 0, tf.math.divide_no_nan(s, m), average)
    for m, s, average in zip(mass, quadratic.r, start, strict=True)
  )


def adam_as_coded(
  quadratic: Quadratic,
  start: Tensors,
  *,
  is_root_inside: bool,
  num_steps: int,
  learning_rate: float,
  check_every: int,
  visit: Callable[[int, Tensors], None],
) -> Tensors:
  """Takes Adam-like steps from w_bar, as the authors' code does.

    g = H w - r,   m <- g + 0.9 m,   v <- g^2 + 0.99 v
    w <- w - eta m / (sqrt(v) + 0.01)   for a diagonal H
    w <- w - eta m / sqrt(v + 0.01)     root inside, for K-FAC

  There are no factors 1 - beta and no bias correction. The first rule is Adam
  with beta_1 = 0.9, beta_2 = 0.99 and epsilon = 1e-3 without the correction.

  `visit` is called with the number of updates made and the weights: after the
  first update, after every `check_every` further ones, and after the last.
  """

  def update(w, m, v):
    if is_root_inside:
      return w - learning_rate * m / tf.sqrt(v + 0.01)
    return w - learning_rate * m / (tf.sqrt(v) + 0.01)

  def step(w, m, v):
    g = _plus(quadratic.apply(w), -1.0, quadratic.r)
    m = _plus(g, 0.9, m)
    v = _plus(tuple(map(tf.square, g)), 0.99, v)
    return tuple(map(update, w, m, v)), m, v

  # The updates between two visits are one graph.
  @tf.function(autograph=False)
  def advance(num_updates, w, m, v):
    return tf.while_loop(
      lambda *_: True,
      step,
      (w, m, v),
      maximum_iterations=num_updates,
      parallel_iterations=1,
    )

  zeros = tuple(map(tf.zeros_like, start))
  state, num_done = (start, zeros, zeros), 0
  for num_wanted in (*range(1, num_steps, check_every), num_steps):
    state = advance(tf.constant(num_wanted - num_done), *state)
    num_done = num_wanted
    visit(num_done, state[0])
  return state[0]


def conjugate_gradient(
  quadratic: Quadratic, start: Tensors, max_steps: int
) -> Tensors:
  """Finds the minimizer by conjugate gradients.

  In the variant of conjugate residuals (Stiefel, 1955), where |r - H w| never
  grows. Rounding gives r a part outside range(H), which adds up in the
  directions of the plain variant and carries its weights off.

  It stops when the residual is 1e-5 of that of w_bar, or below the rounding of
  r and H w_bar, or when the curvature along it is not positive, or less than a
  matrix of condition 1 / epsilon has (Kantorovich's inequality).
  """
  apply, r = quadratic

  @tf.function(autograph=False)
  def advance(w, residual, direction, product, curvature):
    """`product` is H times the direction."""
    length = curvature / _dot(product, product)
    w = _plus(w, length, direction)
    residual = _plus(residual, -length, product)
    residual_product = apply(residual)
    next_curvature = _dot(residual, residual_product)
    ratio = next_curvature / curvature
    direction = _plus(residual, ratio, direction)
    product = _plus(residual_product, ratio, product)
    return w, residual, direction, product, next_curvature

  start_product = apply(start)
  residual = _plus(r, -1.0, start_product)
  epsilon = float(np.finfo(start[0].dtype.as_numpy_dtype).eps)
  rounding = epsilon * (_norm(r) ** 2 + _norm(start_product) ** 2) ** 0.5
  goal = max(_TOLERANCE * _norm(residual), rounding)
  product = apply(residual)
  state = start, residual, residual, product, _dot(residual, product)
  for _ in range(max_steps):
    _, residual, _, product, curvature = state
    norm = _norm(residual)
    least = 2 * epsilon**0.5 * norm * _norm(product)
    # Written so that NaN stops, too.
    if norm <= goal or not curvature > least:
      break
    state = advance(*state)
  return state[0]


def _plus(first, factor, second):
  return tuple(
    a + tf.cast(factor, a.dtype) * b for a, b in zip(first, second, strict=True)
  )


def _dot(first, second):
  return tf.add_n(
    [
      tf.reduce_sum(tf.cast(a, tf.float64) * tf.cast(b, tf.float64))
      for a, b in zip(first, second, strict=True)
    ]
  )


def _norm(tensors):
  return float(_dot(tensors, tensors)) ** 0.5

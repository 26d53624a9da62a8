"""Minimizers of the sum of the clients' quadratics.

Jhunjhunwala et al. (2024), FedFisher, equations 6 and 7 and lemma 1:

  minimize  sum_i p_i (w - w_i)^T F_i (w - w_i),   which is where  H w = r

  letter  name    meaning
  w       -       weights, w_i those of client i
  p_i     -       share of client i in the examples
  H       apply   sum_i p_i F_i, symmetric, positive semidefinite: v -> H v
  r       r       sum_i p_i F_i w_i
  w_bar   start   sum_i p_i w_i

H may be singular. Of all minimizers the one closest to w_bar has the smallest
sum_i p_i |w - w_i|^2; gradient descent, and every method whose iterates stay in
w_bar + range(H), leads from w_bar to it.

`Weights` are flat tuples of float32 tensors; `apply` takes and returns them.
"""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from tff_fedfish.errors import require, require_one_of

Weights = tuple[tf.Tensor, ...]
Apply = Callable[[Weights], Weights]

ROOTS = ('outside', 'inside')


def adam_as_coded(
  apply: Apply,
  r: Weights,
  start: Weights,
  *,
  root: str,
  num_steps: int,
  learning_rate: float,
  check_every: int,
  visit: Callable[[int, Weights], None],
) -> Weights:
  """Takes Adam-like steps from w_bar, as the authors' code does.

    g = H w - r,   m <- g + 0.9 m,   v <- g^2 + 0.99 v
    w <- w - eta m / (sqrt(v) + 0.01)   root 'outside', for a diagonal H
    w <- w - eta m / sqrt(v + 0.01)     root 'inside', for K-FAC

  There are no factors 1 - beta and no bias correction. The first rule is Adam
  with beta_1 = 0.9, beta_2 = 0.99 and epsilon = 1e-3 without the correction.

  Args:
    apply: H; it is traced once, the updates between two visits are one graph.
    r: As above.
    start: w_bar.
    root: One of `ROOTS`.
    num_steps: Updates, >= 1.
    learning_rate: eta.
    check_every: Updates between two visits, >= 1.
    visit: Called with the number of updates made and the weights: after the
      first update, after every `check_every` further ones, and after the last.

  Returns:
    The weights after the last update.

  Raises:
    ValueError: If `root`, `num_steps` or `check_every` is out of range.
  """
  require_one_of('root', root, ROOTS)
  require(num_steps >= 1, 'num_steps', 'at least 1', num_steps)
  require(check_every >= 1, 'check_every', 'at least 1', check_every)

  def update(w, m, v):
    if root == 'outside':
      return w - learning_rate * m / (tf.sqrt(v) + 0.01)
    return w - learning_rate * m / tf.sqrt(v + 0.01)

  def step(w, m, v):
    g = _plus(apply(w), -1.0, r)
    m = _plus(g, 0.9, m)
    v = _plus(tuple(map(tf.square, g)), 0.99, v)
    return tuple(map(update, w, m, v)), m, v

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
  state = tuple(start), zeros, zeros
  num_done = 0
  for num_wanted in (*range(1, num_steps, check_every), num_steps):
    state = advance(tf.constant(num_wanted - num_done), *state)
    num_done = num_wanted
    visit(num_done, state[0])
  return state[0]


def conjugate_gradient(
  apply: Apply,
  r: Weights,
  start: Weights,
  *,
  max_steps: int,
  tolerance: float,
) -> tuple[Weights, float]:
  """Finds the minimizer closest to w_bar by conjugate gradients.

  In the variant of conjugate residuals (Stiefel, 1955), where |r - H w| never
  grows. Rounding gives r a part outside range(H), which adds up in the
  directions of the plain variant and carries its weights off.

  It stops early when the residual falls below the rounding of r and H w_bar, or
  when the curvature along it is not positive, or less than a matrix of
  condition 1 / epsilon has (Kantorovich's inequality).

  Args:
    apply: H; it is traced once for all steps.
    r: As above.
    start: w_bar.
    max_steps: Most steps, >= 0, with a product by H each; three come on top.
    tolerance: Relative residual at which it stops, >= 0.

  Returns:
    The solution, in w_bar + range(H) but for rounding, and its relative
    residual |r - H w| / |r - H w_bar|, 0.0 if w_bar is a minimizer. Dot
    products are formed in float64.

  Raises:
    ValueError: If `max_steps` or `tolerance` is negative.
  """
  require(max_steps >= 0, 'max_steps', 'at least 0', max_steps)
  require(tolerance >= 0, 'tolerance', 'at least 0', tolerance)

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
  first_norm = _norm(residual)
  epsilon = float(np.finfo(start[0].dtype.as_numpy_dtype).eps)
  rounding = epsilon * (_norm(r) ** 2 + _norm(start_product) ** 2) ** 0.5
  goal = max(tolerance * first_norm, rounding)
  product = apply(residual)
  state = tuple(start), residual, residual, product, _dot(residual, product)
  for _ in range(max_steps):
    _, residual, _, product, curvature = state
    norm = _norm(residual)
    least = 2 * epsilon**0.5 * norm * _norm(product)
    # Written so that NaN stops, too.
    if norm <= goal or not curvature > least:
      break
    state = advance(*state)
  w = state[0]
  last_norm = _norm(_plus(r, -1.0, apply(w)))
  return w, last_norm / first_norm if first_norm else 0.0


def residual_norm(apply: Apply, r: Weights, weights: Weights) -> float:
  """Returns |r - H w|, formed in float64."""
  return _norm(_plus(r, -1.0, apply(weights)))


def closed_form(mass: Weights, weighted: Weights, start: Weights) -> Weights:
  """Returns the minimizer closest to w_bar where H is diagonal.

  Args:
    mass: The diagonal of H, >= 0.
    weighted: r.
    start: w_bar, which stays where the mass is 0.
  """
  return tuple(
    tf.where(m > 0, tf.math.divide_no_nan(s, m), average)
    for m, s, average in zip(mass, weighted, start, strict=True)
  )


def _plus(first: Weights, factor, second: Weights) -> Weights:
  return tuple(
    a + tf.cast(factor, a.dtype) * b for a, b in zip(first, second, strict=True)
  )


def _dot(first: Weights, second: Weights) -> tf.Tensor:
  return tf.add_n(
    [
      tf.reduce_sum(tf.cast(a, tf.float64) * tf.cast(b, tf.float64))
      for a, b in zip(first, second, strict=True)
    ]
  )


def _norm(weights: Weights) -> float:
  return float(_dot(weights, weights)) ** 0.5

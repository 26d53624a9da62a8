"""TCT's local least squares: closed form, steps, and the joint solution."""

import gram_reference as reference
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tff_fedfish.methods.tct import gram_regression as gram

# Of two features: no normalization.
_NONE = np.zeros(2), np.ones(2)


def _solve(features, mean, std, *arguments, **options):
  basis = gram.gram_basis(features, mean, std)
  return reference.local_solution(
    features, mean, std, basis, *arguments, **options
  )


def _problem(num_rows=9, num_features=5, num_classes=3, seed=0):
  """Returns features, mean, std, Y, V_0 and h."""
  random = np.random.default_rng(seed)
  features = random.normal(2.0, 3.0, size=[num_rows, num_features])
  labels = random.integers(num_classes, size=num_rows)
  shape = num_features + 1, num_classes
  return (
    features,
    features.mean(axis=0),
    features.std(axis=0),
    reference.targets_of(labels, num_classes),
    random.normal(size=shape),
    random.normal(size=shape),
  )


def test_vector_v14():
  # (1, 2), (3, 2) and (5, 2): sums 9 and 6, squares 35 and 12;
  # 35/3 - 9 = 8/3 and 12/3 - 4 = 0, which counts as 1.
  features = np.array([[1.0, 2.0], [3.0, 2.0], [5.0, 2.0]])
  sums = features.sum(axis=0)
  mean, std = gram.normalization(3, sums, np.square(features).sum(axis=0))
  np.testing.assert_allclose(mean, [3, 2])
  np.testing.assert_allclose(std, [(8 / 3) ** 0.5, 1])
  np.testing.assert_allclose(
    (features[:2] - mean) / std, [[-1.2247448714, 0], [0, 0]], atol=1e-9
  )
  np.testing.assert_allclose(
    reference.targets_of([2], 4), [[-0.25, -0.25, 0.75, -0.25]]
  )


def test_a_constant_feature_counts_as_deviation_1_whatever_its_rounding():
  values = np.full([7, 1], 0.1)
  sums, squares = values.sum(axis=0), np.square(values).sum(axis=0)
  assert gram.normalization(7, sums, squares)[1] == 1.0


@pytest.mark.parametrize('solver', [_solve, reference.local_steps])
@pytest.mark.parametrize(
  ('loss_scale', 'factor'), [('half_mean', 1), ('mean', 2), ('sum', 4)]
)
def test_one_step_by_hand(solver, loss_scale, factor):
  # Rows (1, 0), (2, 1); Y = (1, -1); V = (1, 2), bias 3; two rows, so that
  # 'sum' is 4 times 'half_mean'.
  # Z V - Y = (1 + 3 - 1, 2 + 2 + 3 + 1) = (3, 8)
  # Z^T of it = (3 + 16, 8, 11), by n = 2: (9.5, 4, 5.5)
  # V - 0.1 (factor (9.5, 4, 5.5) - (1, 2, 4))
  gradient = factor * np.array([9.5, 4.0, 5.5])
  expected = np.array([1, 2, 3]) - 0.1 * (gradient - [1, 2, 4])
  found = solver(
    np.array([[1.0, 0.0], [2.0, 1.0]]),
    *_NONE,
    np.array([[1.0], [-1.0]]),
    np.array([[1.0], [2.0], [3.0]]),
    np.array([[1.0], [2.0], [4.0]]),
    num_steps=1,
    step_size=0.1,
    loss_scale=loss_scale,
  )
  np.testing.assert_allclose(found[:, 0], expected, rtol=1e-12)


# Fewer and more rows than features; 500 steps as published.
@pytest.mark.parametrize('num_rows', [1, 4, 40])
@pytest.mark.parametrize('loss_scale', gram.LOSS_SCALES)
@pytest.mark.parametrize('num_steps', [1, 2, 500])
def test_closed_form_is_the_steps(num_rows, loss_scale, num_steps):
  problem = _problem(num_rows, num_features=12)
  problem[2][problem[2] == 0] = 1.0
  options = dict(
    num_steps=num_steps,
    step_size=0.02 / (num_rows if loss_scale == 'sum' else 1),
    loss_scale=loss_scale,
  )
  found = _solve(*problem, **options)
  expected = reference.local_steps(*problem, **options)
  np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)
  assert np.abs(found - problem[4]).max() > 1e-3


def test_outside_the_rows_the_correction_adds_up():
  # One row (1, 1), bias in V's last row. Along (1, -1, 0) there is no gradient:
  # V grows by M eta h = 50 * 0.1 * 2.
  options = dict(num_steps=50, step_size=0.1)
  direction = np.array([[1.0], [-1.0], [0.0]])
  for solver in (_solve, reference.local_steps):
    found = solver(
      np.array([[1.0, 1.0]]),
      *_NONE,
      np.array([[0.0]]),
      np.zeros([3, 1]),
      2 * direction,
      **options,
    )
    np.testing.assert_allclose(found, 10 * direction, atol=1e-12)


def test_rank_deficient_features():
  features, *_, targets, start, h = _problem(30, num_features=6)
  # Rows twice, a feature twice, one that is constant.
  features = np.concatenate([features, features])
  features[:, 1], features[:, 4] = features[:, 0], 7.0
  mean, std = features.mean(axis=0), features.std(axis=0)
  std[4] = 1.0
  basis = gram.gram_basis(features, mean, std)
  # Four features of rank, and the bias.
  assert np.sum(basis.values > 1e-9 * basis.values[-1]) == 5
  problem = features, mean, std, np.concatenate([targets] * 2), start, h
  options = dict(num_steps=500, step_size=0.3)
  np.testing.assert_allclose(
    _solve(*problem, **options),
    reference.local_steps(*problem, **options),
    atol=1e-7,
  )


@pytest.mark.parametrize('dtype', [np.float16, np.float32])
@pytest.mark.parametrize('type_of_start', [np.float32, np.float64])
def test_blocks_are_the_whole(dtype, type_of_start):
  features, mean, std, targets, start, h = _problem(700, num_features=40)
  features = features.astype(dtype)
  start, h = (0.1 * x.astype(type_of_start) for x in (start, h))
  options = dict(num_steps=500, step_size=0.05)
  whole = _solve(features, mean, std, targets, start, h, **options)
  blocks = [features[:1], features[1:299], features[299:299], features[299:]]
  found = _solve(blocks, mean, std, targets, start, h, **options)
  steps = reference.local_steps(blocks, mean, std, targets, start, h, **options)
  assert whole.dtype == steps.dtype == type_of_start
  np.testing.assert_allclose(found, whole, rtol=1e-5, atol=1e-5)
  np.testing.assert_allclose(found, steps, rtol=1e-5, atol=1e-5)
  exact = _solve(
    features.astype(float), mean, std, targets, *map(np.float64, (start, h)),
    **options,
  )  # fmt: skip
  np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-5)


def test_gram_basis_by_chunks_of_columns(monkeypatch):
  features, mean, std, *_ = _problem(8, num_features=11)
  z = np.concatenate([(features - mean) / std, np.ones([8, 1])], axis=1)
  # Three columns at a time, the last time two.
  monkeypatch.setattr(gram, '_CHUNK_SIZE', 24)
  values, vectors = gram.gram_basis([features[:3], features[3:]], mean, std)
  np.testing.assert_allclose((vectors * values) @ vectors.T, z @ z.T)
  np.testing.assert_allclose(vectors.T @ vectors, np.eye(8), atol=1e-12)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 600), st.floats(0.0, 2.0))
def test_power_sums(num_steps, x):
  powers = np.power(1 - x, np.arange(num_steps))
  found = gram.power_sums(np.array([x, 0.0]), num_steps)
  np.testing.assert_allclose(
    found,
    [
      [powers.sum(), num_steps],
      [np.cumsum(powers)[:-1].sum(), num_steps * (num_steps - 1) / 2],
    ],
    rtol=1e-8,
    atol=1e-8,
  )


def test_diverging_steps_are_not_finite_and_do_not_warn():
  problem = _problem(4)
  options = dict(num_steps=4000, step_size=50.0)
  assert not np.all(np.isfinite(_solve(*problem, **options)))
  assert not np.all(np.isfinite(reference.local_steps(*problem, **options)))


class _Client:
  """A client of the convex stage, algorithm 2."""

  def __init__(self, features, mean, std, targets, start, **options):
    self.data = features, mean, std, gram.gram_basis(features, mean, std)
    self.targets, self.options = targets, options
    self.h, self.last = np.zeros_like(start), start

  def next(self, weights):
    """Returns V-hat after a round from W."""
    distance = self.options['num_steps'] * self.options['step_size']
    self.h = self.h + (weights - self.last) / distance
    self.last = reference.local_solution(
      *self.data, self.targets, weights, self.h, **self.options
    )
    return self.last


def test_vector_v8_through_the_regression():
  # a_k (x - c_k) with a = (1, 2), c = (0, 3): rows z = +-sqrt(a), y = z c.
  # The bias stays 0, as rows of both signs cancel.
  clients = []
  for a, c in ((1.0, 0.0), (2.0, 3.0)):
    z = a**0.5 * np.array([[1.0], [-1.0]])
    clients.append(
      _Client(
        z,
        np.zeros(1),
        np.ones(1),
        c * z,
        np.zeros([2, 1]),
        num_steps=2,
        step_size=0.1,
      )
    )
  weights = np.zeros([2, 1])
  rounds = [
    ((0, 0), (0, 1.08), 0.54),
    ((2.7, -2.7), (0.9504, 0.9396), 0.945),
    ((2.673, -2.673), (1.27332, 1.20366), 1.23849),
    ((2.49885, -2.49885), (1.4779584, 1.4228406), 1.4503995),
  ]
  for corrections, models, server in rounds:
    weights = np.mean([client.next(weights) for client in clients], axis=0)
    np.testing.assert_allclose(
      [client.h[0, 0] for client in clients], corrections, atol=1e-9
    )
    np.testing.assert_allclose(
      [client.last[0, 0] for client in clients], models, atol=1e-9
    )
    np.testing.assert_allclose(weights[:, 0], [server, 0], atol=1e-9)
  for _ in range(200):
    weights = np.mean([client.next(weights) for client in clients], axis=0)
  # (1 * 0 + 2 * 3) / 3; FedAvg would stay at 1.9636.
  np.testing.assert_allclose(weights[0], [2.0], atol=1e-9)


@pytest.mark.parametrize('num_features', [6, 60])
def test_clients_reach_the_joint_least_squares(num_features):
  # Three clients, each with one class of three mostly: all differ. With 60
  # features there are fewer rows: the joint solution is that of least norm.
  random = np.random.default_rng(2)
  num_rows = np.array([7, 12, 20])
  shares = num_rows / num_rows.sum()
  features, targets = [], []
  for client_num, count in enumerate(num_rows):
    features.append(random.normal(client_num, 1.0, size=[count, num_features]))
    labels = np.where(random.random(count) < 0.7, client_num, 0)
    targets.append(reference.targets_of(labels, 3))
  rows, all_targets = np.concatenate(features), np.concatenate(targets)
  mean, std = gram.normalization(
    len(rows), rows.sum(axis=0), np.square(rows).sum(axis=0)
  )
  weights = np.zeros([num_features + 1, 3])
  clients = [
    _Client(x, mean, std, y, weights, num_steps=20, step_size=1 / num_features)
    for x, y in zip(features, targets, strict=True)
  ]
  drifts, sizes = [], []
  for _ in range(1500):
    models = [client.next(weights) for client in clients]
    weights = np.tensordot(shares, models, axes=1)
    corrections = np.stack([client.h for client in clients])
    drifts.append(np.abs(np.tensordot(shares, corrections, axes=1)).max())
    sizes.append(np.abs(corrections).max())
  # sum q h = 0 in every round, with unequal q.
  assert max(drifts) < 1e-10
  assert max(sizes) > 1e-2
  z = np.concatenate([(rows - mean) / std, np.ones([len(rows), 1])], axis=1)
  expected = np.linalg.lstsq(z, all_targets, rcond=None)[0]
  np.testing.assert_allclose(z @ weights, z @ expected, atol=1e-5)
  if num_features == 6:
    np.testing.assert_allclose(weights, expected, atol=1e-5)
  # It stays there, whereas no client's own solution is the joint one.
  for client in clients:
    np.testing.assert_allclose(client.next(weights), weights, atol=1e-5)
    x, targets_of_client = client.data[0], client.targets
    own = np.linalg.lstsq(
      np.concatenate([(x - mean) / std, np.ones([len(x), 1])], axis=1),
      targets_of_client,
      rcond=None,
    )[0]
    assert np.abs(z @ own - z @ expected).max() > 0.05


def test_arguments_are_checked():
  with pytest.raises(ValueError, match='`count` must be at least 1, found 0'):
    gram.normalization(0, np.zeros(2), np.zeros(2))
  words = '`features` must be those of at least one row, found 0'
  with pytest.raises(ValueError, match=words):
    gram.gram_basis([], *_NONE)
  words = "`loss_scale` must be one of half_mean, mean, sum, found 'half'"
  with pytest.raises(ValueError, match=words):
    reference.local_steps(
      *_problem(), num_steps=1, step_size=0.1, loss_scale='half'
    )

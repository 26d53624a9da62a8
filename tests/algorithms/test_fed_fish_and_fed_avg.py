"""FedFish and FedAvg as learning processes, against hand and against TFF."""

import functools

import linear_models
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_fedfish.methods.fed_avg import build_fed_avg
from tff_fedfish.methods.fed_fish import fisher_diagonal
from tff_fedfish.methods.fed_fish.process import build_fed_fish
from tff_fedfish.runtime.in_process_context import set_in_process_context

_UNIFORM = tff.learning.ClientWeighting.UNIFORM


@pytest.fixture(autouse=True, scope='module')
def _in_process():
  set_in_process_context()
  yield
  _process.cache_clear()


# Building a process and tracing its graphs takes seconds, and neither changes
# afterwards: equal arguments, found equal by identity, share one.
_adam = functools.cache(linear_models.adam)
_sgd = functools.cache(linear_models.sgd)
_linear_model = functools.cache(linear_models.linear_model)
_scalar_model = functools.cache(linear_models.scalar_model)
_table_model = functools.cache(linear_models.table_model)


def _build(build, *, model=None, server=None, **options):
  return build(
    model or _linear_model(2),
    client_optimizer=_sgd(0.1),
    server_optimizer=server or _sgd(1.0),
    **options,
  )


_process = functools.cache(_build)


def _clients(sizes=(3, 7, 4), num_features=2):
  random = np.random.RandomState(4)
  clients = []
  for size in sizes:
    x = random.normal(size=(size, num_features)).astype(np.float32)
    y = (x @ np.arange(1, num_features + 1) + random.normal(size=size)) * 0.5
    clients.append((x, y.astype(np.float32)))
  return clients


def _datasets(clients, batch_size=2):
  return [linear_models.batches(x, y, batch_size) for x, y in clients]


def _run(build, datasets, num_rounds=3, is_patched=False, **options):
  """Runs a process; what is built under a monkeypatch is not shared."""
  make = _build if is_patched else _process
  process = make(build, **(dict(num_local_epochs=2) | options))
  state = process.initialize()
  output = None
  for _ in range(num_rounds):
    output = process.next(state, datasets)
    state = output.state
  weights = process.get_model_weights(state)
  return [np.asarray(w) for w in weights.trainable], output, process


def _by_numpy(
  clients,
  *,
  estimator,
  reduction,
  uniform,
  is_normalized=False,
  num_rounds=3,
):
  """FedFish with a float64 loop, batch size 2, E = 2, rates 0.1 and 1."""

  def gradient(theta, x, y):
    residual = x @ theta[:2] + theta[2] - y
    return 2 * np.append(x.T @ residual, residual.sum()) / len(y)

  theta = np.zeros(3)
  for _ in range(num_rounds):
    numerator, mass = np.zeros(3), np.zeros(3)
    for x, y in clients:
      parts = [(x[i : i + 2], y[i : i + 2]) for i in range(0, len(y), 2)]
      local, last_epoch = theta.copy(), np.zeros(3)
      for epoch in range(2):
        for part in parts:
          g = gradient(local, *part)
          last_epoch += g**2 if epoch == 1 else 0
          local -= 0.1 * g
      if estimator == 'extra_pass':
        diagonal = sum(gradient(local, *p) ** 2 for p in parts)
      elif estimator == 'last_epoch':
        diagonal = last_epoch
      else:
        diagonal = sum(
          gradient(local, x[i : i + 1], y[i : i + 1]) ** 2
          for i in range(len(y))
        )
      num_batches = len(y) if estimator == 'example_sq' else len(parts)
      diagonal = diagonal / (num_batches if reduction == 'mean' else 1)
      # The kernel and the bias are tensors of their own.
      if is_normalized:
        diagonal = np.append(diagonal[:2] / diagonal[:2].mean(), 1.0)
      diagonal[:2] += 1e-8 * diagonal[:2].mean()
      diagonal[2] += 1e-8 * diagonal[2]
      weight = 1 if uniform else len(y)
      numerator += weight * diagonal * (theta - local)
      mass += weight * diagonal
    theta = theta - numerator / mass
  return theta


class TestFedFish:
  @pytest.mark.parametrize(
    ('uniform', 'reduction', 'estimator'),
    [
      (False, 'sum', 'extra_pass'),
      (False, 'sum', 'last_epoch'),
      (False, 'mean', 'extra_pass'),
      (False, 'mean', 'last_epoch'),
      (True, 'sum', 'extra_pass'),
      (True, 'mean', 'extra_pass'),
      # How clients are weighted does not depend on how Fisher is estimated.
      pytest.param(True, 'sum', 'last_epoch', marks=pytest.mark.slow),
      pytest.param(True, 'mean', 'last_epoch', marks=pytest.mark.slow),
    ],
  )
  def test_equals_numpy(self, estimator, reduction, uniform):
    clients = _clients()
    weights, _, _ = _run(
      build_fed_fish,
      _datasets(clients),
      fisher_estimator=estimator,
      fisher_reduction=reduction,
      **(dict(client_weighting=_UNIFORM) if uniform else {}),
    )
    expected = _by_numpy(
      clients, estimator=estimator, reduction=reduction, uniform=uniform
    )
    # Wrong variants differ from the right one by 1e-2 and more.
    np.testing.assert_allclose(
      np.append(*weights), expected, rtol=1e-5, atol=1e-6
    )

  def test_normalization_equals_numpy(self):
    clients = _clients()
    weights, _, _ = _run(
      build_fed_fish,
      _datasets(clients),
      fisher_normalization='tensor_mean',
    )
    options = dict(estimator='extra_pass', reduction='sum', uniform=False)
    np.testing.assert_allclose(
      np.append(*weights),
      _by_numpy(clients, is_normalized=True, **options),
      rtol=1e-5,
      atol=1e-6,
    )

  def test_example_sq_equals_numpy(self):
    clients = _clients()
    weights, _, _ = _run(
      build_fed_fish, _datasets(clients), fisher_estimator='example_sq'
    )
    expected = _by_numpy(
      clients, estimator='example_sq', reduction='sum', uniform=False
    )
    np.testing.assert_allclose(np.append(*weights), expected, rtol=1e-5)

  def test_one_round_by_hand(self):
    # Client 1: data (1,2), (2,2), (3,3) in batches of 2, E = 2:
    # delta -0.99975, F 0.250630453125, n 3 (see test_local_training).
    # Client 2: data (1, -1), E = 2: theta -0.1, -0.19; delta 0.19;
    # gradient at -0.19 is 0.81, F 0.6561, n 1.
    # g = (3 * 0.250630453125 * -0.99975 + 0.6561 * 0.19)
    #     / (3 * 0.250630453125 + 0.6561)
    #   = (-0.751703386 + 0.124659) / 1.407991359 = -0.445346...
    datasets = [
      linear_models.batches([1.0, 2.0, 3.0], [2.0, 2.0, 3.0], 2),
      linear_models.batches([1.0], [-1.0], 2),
    ]
    (theta,), _, _ = _run(
      build_fed_fish,
      datasets,
      num_rounds=1,
      model=_scalar_model(),
    )
    numerator = 3 * 0.250630453125 * -0.99975 + 0.6561 * 0.19
    mass = 3 * 0.250630453125 + 0.6561
    np.testing.assert_allclose(theta, -numerator / mass, rtol=1e-5)
    np.testing.assert_allclose(theta, 0.445346, atol=1e-6)

  def test_one_client_is_that_client(self):
    (dataset,) = _datasets(_clients((5,)))
    fish, _, _ = _run(build_fed_fish, [dataset], num_rounds=1)
    average, _, _ = _run(build_fed_avg, [dataset], num_rounds=1)
    for one, other in zip(fish, average, strict=True):
      np.testing.assert_allclose(one, other, rtol=1e-6)

  def test_equal_fishers_equal_fed_avg(self, monkeypatch):
    # With every diagonal a constant, the process itself must be FedAvg.
    monkeypatch.setattr(
      fisher_diagonal,
      'fisher_diagonal_from_sums',
      lambda sums, *options, **_: tf.nest.map_structure(
        lambda s: tf.fill(s.shape, 7.0), sums.squared_gradients
      ),
    )
    datasets = _datasets(_clients())
    fish, _, _ = _run(build_fed_fish, datasets, is_patched=True)
    monkeypatch.undo()
    average, _, _ = _run(build_fed_avg, datasets)
    for one, other in zip(fish, average, strict=True):
      np.testing.assert_allclose(one, other, rtol=1e-5)

  def test_scaling_all_fishers_changes_nothing(self, monkeypatch):
    datasets = _datasets(_clients())
    plain, _, _ = _run(build_fed_fish, datasets)
    original = fisher_diagonal.fisher_diagonal_from_sums
    monkeypatch.setattr(
      fisher_diagonal,
      'fisher_diagonal_from_sums',
      lambda sums, *options, **named: tf.nest.map_structure(
        lambda f: 1024.0 * f, original(sums, *options, **named)
      ),
    )
    scaled, _, _ = _run(build_fed_fish, datasets, is_patched=True)
    for one, other in zip(plain, scaled, strict=True):
      np.testing.assert_array_equal(one, other)

  def test_zero_mass_coordinate_keeps_the_servers_value(self):
    # Bin 2 is seen by nobody, bin 0 by the first client alone.
    datasets = [
      linear_models.batches([0, 1, 0], [1.0, 2.0, 1.5], 2),
      linear_models.batches([1, 3], [4.0, 2.0], 2),
    ]
    (theta,), _, _ = _run(
      build_fed_fish,
      datasets,
      num_rounds=1,
      model=_table_model(4),
      relative_floor=0.0,
      num_local_epochs=1,
    )
    assert theta[2] == 0.0
    # Bin 0 is client 1's own result, undiluted: batch {0: 1, 1: 2} then
    # {0: 1.5}: 0.1 * 1/2 = 0.05, then 0.05 + 0.1 * 1.45 = 0.195.
    np.testing.assert_allclose(theta[0], 0.195, rtol=1e-5)
    # FedAvg dilutes it: (3 * 0.195 + 2 * 0) / 5.
    (average,), _, _ = _run(
      build_fed_avg,
      datasets,
      num_rounds=1,
      model=_table_model(4),
      num_local_epochs=1,
    )
    np.testing.assert_allclose(average[0], 0.117, rtol=1e-5)

  def test_client_whose_product_overflows_counts_as_absent(self):
    clients = _clients()
    # Finite delta and Fisher, but w F delta is beyond float32.
    huge = (clients[1][0] * 200, clients[1][1])
    found, output, _ = _run(
      build_fed_fish,
      _datasets([clients[0], huge, clients[2]]),
      num_rounds=1,
      num_local_epochs=1,
    )
    expected, _, _ = _run(
      build_fed_fish,
      _datasets([clients[0], clients[2]]),
      num_rounds=1,
      num_local_epochs=1,
    )
    assert output.metrics['aggregator']['num_overflowing_clients'] == 1
    assert (
      output.metrics['client_work']['clients']['num_non_finite_clients'] == 0
    )
    for one, other in zip(found, expected, strict=True):
      np.testing.assert_array_equal(one, other)

  @pytest.mark.parametrize(
    ('options', 'message'),
    [
      (dict(fisher_estimator='extra'), "`fisher_estimator` .*found 'extra'"),
      (dict(fisher_reduction='max'), "one of sum, mean, found 'max'"),
      (
        dict(fisher_normalization='sum'),
        "`fisher_normalization` .*one of none, tensor_mean, found 'sum'",
      ),
      (dict(num_local_epochs=0), '`num_local_epochs` .* found 0'),
      (dict(relative_floor=-1.0), '`relative_floor` .* found -1.0'),
    ],
  )
  def test_wrong_arguments(self, options, message):
    with pytest.raises(ValueError, match=message):
      _run(build_fed_fish, [], num_rounds=0, **options)


@pytest.mark.parametrize('build', [build_fed_avg, build_fed_fish])
class TestBothMethods:
  def test_non_finite_client_counts_as_absent(self, build):
    clients = _clients()
    bad_x = clients[1][0].copy()
    bad_x[2, 0] = np.nan
    with_bad = [clients[0], (bad_x, clients[1][1]), clients[2]]
    found, output, _ = _run(build, _datasets(with_bad))
    expected, clean, _ = _run(build, _datasets([clients[0], clients[2]]))
    for one, other in zip(found, expected, strict=True):
      np.testing.assert_array_equal(one, other)
    counts = output.metrics['client_work']['clients']
    assert counts['num_non_finite_clients'] == 1
    assert (
      clean.metrics['client_work']['clients']['num_non_finite_clients'] == 0
    )

  def test_empty_client_counts_as_absent(self, build):
    clients = _clients()
    empty = (np.zeros([0, 2], np.float32), np.zeros([0], np.float32))
    found, output, _ = _run(build, _datasets([clients[0], empty, clients[2]]))
    expected, _, _ = _run(build, _datasets([clients[0], clients[2]]))
    for one, other in zip(found, expected, strict=True):
      np.testing.assert_array_equal(one, other)
    assert output.metrics['client_work']['clients']['num_empty_clients'] == 1

  @pytest.mark.parametrize('cohort', ['none', 'empty', 'non_finite'])
  def test_cohort_without_information_leaves_the_server(self, build, cohort):
    process = _process(build, num_local_epochs=1, server=_adam(0.1))
    # Two rounds first, so that Adam has momentum that would move the weights.
    state = process.initialize()
    for _ in range(2):
      state = process.next(state, _datasets(_clients())).state
    nan = (np.full([3, 2], np.nan, np.float32), np.zeros([3], np.float32))
    empty = (np.zeros([0, 2], np.float32), np.zeros([0], np.float32))
    datasets = _datasets(
      {'none': [], 'empty': [empty], 'non_finite': [nan]}[cohort]
    )
    output = process.next(state, datasets)
    before = tf.nest.flatten([state.global_model_weights, state.finalizer])
    after = tf.nest.flatten(
      [output.state.global_model_weights, output.state.finalizer]
    )
    for one, other in zip(before, after, strict=True):
      np.testing.assert_array_equal(one, other)
    assert output.metrics['finalizer']['update_is_all_zero'] == 1
    assert output.metrics['finalizer']['update_is_non_finite'] == 0

  def test_learning_rates_can_be_set_between_rounds(self, build):
    datasets = _datasets(_clients())
    _, output, process = _run(build, datasets, num_rounds=1)
    hparams = process.get_hparams(output.state)
    assert hparams['client_work']['learning_rate'] == np.float32(0.1)
    hparams['client_work']['learning_rate'] = np.float32(0.0)
    frozen = process.next(process.set_hparams(output.state, hparams), datasets)
    # A client that does not move has delta 0: the round changes nothing.
    assert frozen.metrics['finalizer']['update_is_all_zero'] == 1
    hparams['client_work']['learning_rate'] = np.float32(0.1)
    hparams['finalizer']['learning_rate'] = np.float32(0.5)
    full = process.next(output.state, datasets).state
    half = process.next(
      process.set_hparams(output.state, hparams), datasets
    ).state
    start, whole, part = (
      process.get_model_weights(s).trainable[0]
      for s in (output.state, full, half)
    )
    np.testing.assert_allclose(part - start, (whole - start) / 2, rtol=1e-5)


class TestFedAvg:
  @pytest.mark.parametrize('server', [_sgd(0.7), _adam(0.1)])
  def test_equals_tff(self, server):
    datasets = _datasets(_clients())
    ours, _, _ = _run(
      build_fed_avg, datasets, num_local_epochs=1, server=server
    )
    process = tff.learning.algorithms.build_weighted_fed_avg(
      _linear_model(2),
      client_optimizer_fn=_sgd(0.1),
      server_optimizer_fn=server,
    )
    state = process.initialize()
    for _ in range(3):
      state = process.next(state, datasets).state
    for one, other in zip(
      ours, process.get_model_weights(state).trainable, strict=True
    ):
      np.testing.assert_allclose(one, other, atol=1e-6)

  def test_weights_count_one_pass(self):
    # n = 1 and 3 rows: (1 * d1 + 3 * d2) / 4, whatever E.
    model = _scalar_model()
    datasets = [
      linear_models.batches([1.0], [1.0], 4),
      linear_models.batches([1.0] * 3, [2.0] * 3, 4),
    ]
    (theta,), output, _ = _run(
      build_fed_avg, datasets, num_rounds=1, model=model
    )
    # Two steps of rate 0.1 towards y from 0: 0.19 y. (0.19 + 3 * 0.38) / 4
    np.testing.assert_allclose(theta, 0.3325, rtol=1e-6)

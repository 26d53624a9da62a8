"""FedAvg against TFF's own; clients without information, also of FedFish."""

import functools

import linear_models
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_fedfish import build_fed_avg, build_fed_fish
from tff_fedfish.runtime.in_process_context import set_in_process_context


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


@functools.cache
def _process(build, *, model=None, server=None, **options):
  return build(
    model or _linear_model(2),
    client_optimizer=_sgd(0.1),
    server_optimizer=server or _sgd(1.0),
    **options,
  )


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


def _run(build, datasets, num_rounds=3, **options):
  process = _process(build, **(dict(num_local_epochs=2) | options))
  state = process.initialize()
  output = None
  for _ in range(num_rounds):
    output = process.next(state, datasets)
    state = output.state
  weights = process.get_model_weights(state)
  return [np.asarray(w) for w in weights.trainable], output, process


@pytest.mark.parametrize('build', [build_fed_avg, build_fed_fish])
class TestClientsWithoutInformation:
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

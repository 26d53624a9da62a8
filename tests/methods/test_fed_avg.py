"""FedAvg against TFF's own; clients without information, also of FedFish."""

import linear_models
import linear_rounds
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from linear_rounds import datasets, trained, weights

from tff_fedfish import build_fed_avg, build_fed_fish

# It has momentum, which would move weights that must stay.
_ADAM = linear_models.adam(0.1)
_clients = linear_models.three_clients


def _process(build):
  return linear_rounds.process(
    build, server_optimizer=_ADAM, num_local_epochs=2
  )


def _run(build, clients):
  return trained(_process(build), datasets(clients), num_rounds=3)


@pytest.mark.parametrize('build', [build_fed_avg, build_fed_fish])
class TestClientsWithoutInformation:
  def test_empty_and_non_finite_clients_count_as_absent(self, build):
    first, second, third = _clients()
    bad_x = second[0].copy()
    bad_x[2, 0] = np.nan
    empty = (np.zeros([0, 2], np.float32), np.zeros([0], np.float32))
    found, output = _run(build, [first, (bad_x, second[1]), empty, third])
    expected, clean = _run(build, [first, third])
    np.testing.assert_array_equal(found, expected)
    counts = ('num_empty_clients', 'num_non_finite_clients')
    for result, wanted in ((output, 1), (clean, 0)):
      metrics = result.metrics['client_work']['clients']
      assert [metrics[name] for name in counts] == [wanted, wanted]

  @pytest.mark.parametrize('cohort', ['none', 'empty', 'non_finite'])
  def test_cohort_without_information_leaves_the_server(self, build, cohort):
    process = _process(build)
    _, output = _run(build, _clients())
    state = output.state
    nan = (np.full([3, 2], np.nan, np.float32), np.zeros([3], np.float32))
    empty = (np.zeros([0, 2], np.float32), np.zeros([0], np.float32))
    cohort = {'none': [], 'empty': [empty], 'non_finite': [nan]}[cohort]
    output = process.next(state, datasets(cohort))
    before = tf.nest.flatten([state.global_model_weights, state.finalizer])
    after = tf.nest.flatten(
      [output.state.global_model_weights, output.state.finalizer]
    )
    for one, other in zip(before, after, strict=True):
      np.testing.assert_array_equal(one, other)
    assert output.metrics['finalizer']['update_is_all_zero'] == 1
    assert output.metrics['finalizer']['update_is_non_finite'] == 0

  def test_learning_rates_can_be_set_between_rounds(self, build):
    process, data = _process(build), datasets(_clients())
    state = process.initialize()
    hparams = process.get_hparams(state)
    assert hparams['client_work']['learning_rate'] == np.float32(0.1)
    hparams['client_work']['learning_rate'] = np.float32(0.0)
    frozen = process.next(process.set_hparams(state, hparams), data)
    # A client that does not move has delta 0: the round changes nothing.
    assert frozen.metrics['finalizer']['update_is_all_zero'] == 1
    hparams['client_work']['learning_rate'] = np.float32(0.1)
    hparams['finalizer']['learning_rate'] = np.float32(0.05)
    half = process.set_hparams(state, hparams)
    whole, part = (
      weights(process, process.next(s, data).state) for s in (state, half)
    )
    # The first step, from 0.
    np.testing.assert_allclose(part, whole / 2, rtol=1e-5)


def test_equals_tff():
  ours, _ = _run(build_fed_avg, _clients())
  process = tff.learning.algorithms.build_weighted_fed_avg(
    linear_models.linear_model(2),
    client_optimizer_fn=linear_models.sgd(0.1),
    server_optimizer_fn=_ADAM,
  )
  state = process.initialize()
  # TFF's clients pass over their data once.
  twice = [dataset.repeat(2) for dataset in datasets(_clients())]
  for _ in range(3):
    state = process.next(state, twice).state
  np.testing.assert_allclose(weights(process, state), ours, atol=1e-6)

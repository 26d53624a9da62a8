"""State in and out of a client, in our context and in TFF's."""

import collections

import linear_models
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tff_fedfish
from tff_fedfish.methods.fed_avg import build_fed_avg
from tff_fedfish.rounds.compose import compose
from tff_fedfish.rounds.kept import KeptSlot
from tff_fedfish.runtime import client_outputs
from tff_fedfish.runtime.client_data import ClientLoader
from tff_fedfish.runtime.in_process_context import set_in_process_context
from tff_fedfish.runtime.round_options import RoundOptions, use_round_options


@pytest.fixture(autouse=True)
def context():
  return set_in_process_context()


def _process():
  """FedAvg of theta; clients keep their model and count their rounds."""
  slots = {
    'model': KeptSlot(
      initial=lambda trainable: trainable,
      next=lambda client: client.local.trainable,
    ),
    'num_rounds': KeptSlot(
      initial=lambda unused_trainable: tf.constant(0),
      next=lambda client: client.start.kept['num_rounds'] + 1,
    ),
  }
  return compose(
    linear_models.scalar_model(),
    client_optimizer=linear_models.sgd(0.1),
    server_optimizer=linear_models.sgd(1.0),
    num_local_epochs=1,
    client_weighting=tff.learning.ClientWeighting.UNIFORM,
    make_update=lambda client: client.model_delta(),
    aggregation_factory=tff.aggregators.MeanFactory(no_nan_division=True),
    kept_slots=slots,
  )


def _argument(data, kept=None):
  """Returns a client's argument; `kept` is (theta, rounds) or None."""
  theta, num_rounds = kept or (0.0, 0)
  datasets = collections.OrderedDict(
    model=tf.data.Dataset.from_tensors((np.float32(theta),)),
    num_rounds=tf.data.Dataset.from_tensors((np.int32(num_rounds),)),
  )
  if kept is None:
    for name, dataset in datasets.items():
      datasets[name] = dataset.take(0)
  return collections.OrderedDict(data=data, state=datasets)


class _FailingClient(ClientLoader):
  def load(self):
    raise OSError('no such file')


def _clients():
  empty = linear_models.batches([], [], 2)
  infinite = linear_models.batches([1.0], [np.inf], 2)
  return [
    # theta - 0.1 mean(x (theta x - y)) = 0.1 (2 + 4) / 2 = 0.3
    _argument(linear_models.batches([1.0, 1.0], [2.0, 4.0], 2)),
    # 0.1 * 2 * -2 = -0.4; its rounds become 7 + 1.
    _argument(linear_models.batches([2.0], [-2.0], 2), (5.0, 7)),
    _argument(empty, (5.0, 7)),
    _argument(infinite, (5.0, 7)),
  ]


def test_outputs_of_a_round():
  process = _process()
  state = process.initialize()
  with tff_fedfish.collect_client_outputs() as outputs:
    result = process.next(state, _clients())
  assert [outputs[i]['is_valid'] for i in range(4)] == [1, 1, 0, 0]
  np.testing.assert_allclose(outputs[0]['model'], [0.3])
  np.testing.assert_allclose(outputs[1]['model'], [-0.4])
  assert [outputs[i]['num_rounds'] for i in range(2)] == [(1,), (8,)]
  assert result.metrics['client_work']['num_client_outputs'] == 4
  # (0.3 - 0.4) / 2
  (theta,) = process.get_model_weights(result.state).trainable
  np.testing.assert_allclose(theta, -0.05)
  # Unasked for, the round is the same.
  (unasked,) = process.get_model_weights(
    process.next(state, _clients()).state
  ).trainable
  assert unasked == theta


def test_types():
  process = _process()
  data = process.next.type_signature.parameter[1].member
  assert data.compact_representation() == (
    '<data=<x=float32[?],y=float32[?]>*,'
    'state=<model=<float32>*,num_rounds=<int32>*>>'
  )
  assert process.kept_specs == {
    'model': (tf.TensorSpec([], tf.float32),),
    'num_rounds': (tf.TensorSpec([], tf.int32),),
  }


def test_a_stateless_process_has_no_outputs():
  process = build_fed_avg(
    linear_models.scalar_model(),
    client_optimizer=linear_models.sgd(0.1),
    server_optimizer=linear_models.sgd(1.0),
  )
  clients = [linear_models.batches([1.0], [1.0], 1)]
  with tff_fedfish.collect_client_outputs() as outputs:
    process.next(process.initialize(), clients)
  assert not outputs


def test_what_receives_outputs_may_raise():
  process = _process()

  def on_client_output(index, unused_output):
    raise OSError(28, 'No space left on device', f'client {index}')

  options = RoundOptions(
    tolerates_failures=True, on_client_output=on_client_output
  )
  with use_round_options(options), pytest.raises(OSError, match='client 0'):
    process.next(process.initialize(), _clients())


def test_a_client_that_fails_has_no_output():
  process = _process()
  clients = [*_clients()[:2], _FailingClient()]
  options = RoundOptions(tolerates_failures=True, quorum=0.1)
  with (
    use_round_options(options),
    tff_fedfish.collect_client_outputs() as outputs,
  ):
    process.next(process.initialize(), clients)
  assert sorted(outputs) == [0, 1]


def test_a_computation_with_two_outputs():
  output = collections.OrderedDict([(client_outputs.FIELD, [np.int32])])
  twice = tff.to_type([output, [output]])
  with pytest.raises(ValueError, match="at most one 'client_output', found 2"):
    client_outputs.find(twice)

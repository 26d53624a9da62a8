"""Parts that all methods share: bounds, kept tensors, clients' models."""

import collections
import functools
import warnings

import linear_models
import linear_rounds
import numpy as np
import pytest
import stateful_rounds
import tensorflow as tf
import tensorflow_federated as tff
from linear_rounds import weights

import tff_fedfish
from tff_fedfish.fields import ConfigError
from tff_fedfish.optimizers import clip_to_norm
from tff_fedfish.rounds.client import KeptSlot
from tff_fedfish.rounds.compose import compose
from tff_fedfish.rounds.privacy import LocalPrivacy
from tff_fedfish.runtime.client_data import ClientLoader
from tff_fedfish.runtime.in_process_context import set_in_process_context
from tff_fedfish.runtime.round_options import RoundOptions, use_round_options


@pytest.fixture(autouse=True)
def context():
  """In process, and fails where TFF's own context takes over."""
  with warnings.catch_warnings():
    warnings.filterwarnings('error', message='.*cannot run in process')
    yield set_in_process_context()


def _process(build=tff_fedfish.build_fed_avg, **options):
  return linear_rounds.process(build, linear_models.scalar_model, **options)


def test_types_of_a_process_without_options():
  signature = _process().next.type_signature
  assert signature.result.state.compact_representation() == (
    '<global_model_weights=<trainable=<float32>,non_trainable=<>>,'
    'distributor=<>,client_work=<learning_rate=float32>,aggregator='
    '<value_sum_process=<>,weight_sum_process=<>>,'
    'finalizer=<learning_rate=float32>>@SERVER'
  )
  assert signature.result.metrics.compact_representation() == (
    '<distributor=<>,client_work=<train=<>,clients=<num_empty_clients=int32,'
    'num_non_finite_clients=int32>>,aggregator=<mean_value=<>,mean_weight=<>>,'
    'finalizer=<update_is_non_finite=int32,update_is_all_zero=int32>>@SERVER'
  )


@pytest.mark.parametrize(
  ('options', 'message'),
  [
    (
      {'num_local_epochs': True},
      '`num_local_epochs` must be an integer of at least 1, found True',
    ),
    (
      {'num_local_steps': 2.0},
      '`num_local_steps` must be an integer of at least 1 or None, found 2.0',
    ),
    (
      {'micro_batch_size': -1},
      '`micro_batch_size` must be an integer of at least 1 or None, found -1',
    ),
    (
      {'max_delta_norm': float('nan')},
      '`max_delta_norm` must be finite and above 0, or None, found nan',
    ),
  ],
)
def test_wrong_numbers(options, message):
  with pytest.raises(ValueError, match=message):
    _process(**options)


@pytest.mark.parametrize(
  ('build', 'options', 'message'),
  [
    (
      'prox',
      {'adaptation': 'fl4health', 'local_privacy': LocalPrivacy(1.0, 0.0, 2)},
      "`adaptation` must be 'none' with local_privacy, found 'fl4health'",
    ),
    ('sgd', {'num_local_epochs': 2}, '`num_local_epochs` must be 1, found 2'),
    ('sgd', {'num_local_steps': 2}, '`num_local_steps` must be None, found 2'),
    (
      'fish',
      {'fisher_estimator': 'second_moment'},
      '`client_optimizer` must be an Adam, found ',
    ),
  ],
)
def test_what_a_method_would_not_do(build, options, message):
  with pytest.raises(ValueError, match=message):
    _process(getattr(tff_fedfish, f'build_fed_{build}'), **options)


@pytest.mark.parametrize(
  ('build', 'options'),
  [('prox', {'adaptation': 'strict'}), ('fish', {'fisher_reduction': 'max'})],
)
def test_settings_that_a_method_does_not_have(build, options):
  ((name, value),) = options.items()
  with pytest.raises(ConfigError) as caught:
    _process(getattr(tff_fedfish, f'build_fed_{build}'), **options)
  assert f'`config.algorithm.{name}` must be one of ' in str(caught.value)
  assert f'found {value!r}' in str(caught.value)


def test_local_work_of_ones_own_is_not_private():
  options = dict(local_work=print, local_privacy=LocalPrivacy(1.0, 0.0, 2))
  with pytest.raises(ValueError, match='`local_work` must be None with local_'):
    _process(compose, **options)


def test_scaffold_has_no_bound():
  with pytest.raises(ValueError, match='`max_delta_norm` must be None, found'):
    _process(tff_fedfish.build_scaffold, max_delta_norm=1.0)


def test_wrong_types():
  with pytest.raises(TypeError, match='`client_weighting` must be a tff.learn'):
    _process(client_weighting='uniform')
  with pytest.raises(TypeError, match="unexpected keyword argument 'num_local"):
    _process(num_local_rounds=1)
  with pytest.raises(TypeError, match='FunctionalModel or a .*, found str'):
    tff_fedfish.build_fed_avg(
      'model',
      client_optimizer=linear_models.sgd(0.1),
      server_optimizer=linear_models.sgd(1.0),
    )


class TestMaxDeltaNorm:
  @pytest.mark.parametrize(
    ('delta', 'max_norm', 'expected'),
    [
      # sqrt(9 + 16 + 144) = 13, over both tensors; half of it is 6.5.
      (([3.0, -4.0], [[12.0]]), 6.5, ([1.5, -2.0], [[6.0]])),
      (([3.0, -4.0], [[12.0]]), 13.0, None),
      (([0.0, 0.0],), 1.0, None),
      # 6e38 is beyond float32, and so are the squares.
      (([3e38, 3e38, -3e38, 3e38],), 1.0, ([0.5, 0.5, -0.5, 0.5],)),
      (([1.0, np.inf], [2.0]), 0.5, ([np.nan, np.nan], [np.nan])),
    ],
  )
  def test_clip_to_norm(self, delta, max_norm, expected):
    tensors = tuple(tf.constant(t, tf.float32) for t in delta)
    found, is_clipped = tf.function(clip_to_norm)(tensors, max_norm)
    assert is_clipped == (expected is not None)
    for one, other in zip(found, expected or tensors, strict=True):
      # What is within the bound stays to the bit.
      rtol = 1e-6 if expected else 0
      np.testing.assert_allclose(one, other, rtol=rtol)

  def test_fed_avg_by_hand(self):
    # Two steps of rate 0.1 towards y from 0: theta_i = 0.19 y.
    # y = 1, n = 1: delta -0.19. y = -2, n = 3: delta 0.38, clipped to 0.25.
    # theta = -(1 * -0.19 + 3 * 0.25) / 4 = -0.14; unclipped it is -0.2375.
    datasets = [
      linear_models.batches([1.0], [1.0], 4),
      linear_models.batches([1.0] * 3, [-2.0] * 3, 4),
      # A client that is not finite counts as absent.
      linear_models.batches([1.0] * 5, [np.inf] * 5, 4),
    ]
    process = _process(num_local_epochs=2, max_delta_norm=0.25)
    output = process.next(process.initialize(), datasets)
    np.testing.assert_allclose(
      weights(process, output.state), [-0.14], rtol=1e-6
    )
    counts = output.metrics['client_work']['clients']
    assert counts['num_clipped_clients'] == 1
    assert counts['num_non_finite_clients'] == 1


class _FailingClient(ClientLoader):
  def load(self):
    raise OSError('no such file')


class TestKeptTensors:
  @pytest.fixture(scope='class')
  def process(self):
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
      client_weighting=tff.learning.ClientWeighting.UNIFORM,
      make_update=lambda client: client.model_delta(),
      kept_slots=slots,
    )

  def _clients(self, process):
    kept = {'model': (np.float32(5),), 'num_rounds': (np.int32(7),)}
    rows = [
      # theta - 0.1 mean(x (theta x - y)) = 0.1 (2 + 4) / 2 = 0.3
      ([1.0, 1.0], [2.0, 4.0], None),
      # 0.1 * 2 * -2 = -0.4; its rounds become 7 + 1.
      ([2.0], [-2.0], kept),
      ([], [], kept),
      ([1.0], [np.inf], kept),
    ]
    return [
      stateful_rounds.argument(process, linear_models.batches(x, y, 2), state)
      for x, y, state in rows
    ]

  def test_types(self, process):
    data = process.next.type_signature.parameter[1].member
    assert data.compact_representation() == (
      '<data=<x=float32[?],y=float32[?]>*,'
      'state=<model=<float32>*,num_rounds=<int32>*>>'
    )
    assert process.kept_specs == {
      'model': (tf.TensorSpec([], tf.float32),),
      'num_rounds': (tf.TensorSpec([], tf.int32),),
    }

  def test_outputs_of_a_round(self, process):
    state = process.initialize()
    with tff_fedfish.collect_client_outputs() as outputs:
      result = process.next(state, self._clients(process))
    assert [outputs[i]['is_valid'] for i in range(4)] == [1, 1, 0, 0]
    np.testing.assert_allclose(outputs[0]['model'], [0.3])
    np.testing.assert_allclose(outputs[1]['model'], [-0.4])
    assert [outputs[i]['num_rounds'] for i in range(2)] == [(1,), (8,)]
    assert result.metrics['client_work']['num_client_outputs'] == 4
    # (0.3 - 0.4) / 2; the same where outputs are not asked for.
    unasked = process.next(state, self._clients(process))
    for output in (result, unasked):
      np.testing.assert_allclose(weights(process, output.state), [-0.05])

  def test_failures(self, process):
    def on_client_output(index, unused_output):
      raise OSError(28, 'No space left on device', f'client {index}')

    state, clients = process.initialize(), self._clients(process)
    options = RoundOptions(
      tolerates_failures=True, on_client_output=on_client_output
    )
    with use_round_options(options), pytest.raises(OSError, match='client 0'):
      process.next(state, clients)
    # A client that fails has no output.
    clients = [*clients[:2], _FailingClient()]
    options = RoundOptions(tolerates_failures=True, quorum=0.1)
    with (
      use_round_options(options),
      tff_fedfish.collect_client_outputs() as outputs,
    ):
      process.next(state, clients)
    assert sorted(outputs) == [0, 1]

  def test_optimizer_state(self):
    # Rounds of one client, which becomes the server's model, go on with Adam's
    # moments and the steps that it counts.
    adam = linear_models.adam(0.1)
    rounds = stateful_rounds.Rounds(
      _process(
        client_optimizer=adam, num_local_epochs=3, keeps_optimizer_state=True
      )
    )
    dataset = linear_models.batches([1.0], [2.0], 1)
    theta = tf.constant(0.0)
    state = adam.initialize(tf.TensorSpec([], tf.float32))
    for _ in range(2):
      (found,) = rounds.run([dataset])
      for _ in range(3):
        state, theta = adam.next(state, theta, theta - 2)
      np.testing.assert_allclose(found, theta, rtol=2e-6)
    # The rate is that of the round, not the kept one.
    hparams = rounds.process.get_hparams(rounds.state)
    hparams['client_work']['learning_rate'] = 0.0
    rounds.state = rounds.process.set_hparams(rounds.state, hparams)
    np.testing.assert_array_equal(rounds.run([dataset]), [found])


class TestTrainedModels:
  def test_by_hand(self):
    # One step of 0.5 from theta = 0 on the mean of (theta x - y)^2 / 2:
    # gradients -(2 + 4) / 2 = -3 and 2 * 2 = 4. An infinite client has weight
    # 0 and sends nothing.
    process = _process(client_optimizer=linear_models.sgd(0.5))
    datasets = [
      linear_models.batches([1.0, 1.0], [2.0, 4.0], 2),
      linear_models.batches([2.0], [-2.0], 2),
      linear_models.batches([1.0], [np.inf], 2),
    ]
    state = process.initialize()
    *found, diverged = process.trained_models(state, datasets)
    assert [client['trainable'] for client in found] == [(1.5,), (-2.0,)]
    assert [client['update'] for client in found] == [(-1.5,), (2.0,)]
    assert [client['client_weight'] for client in found] == [2.0, 1.0]
    assert not np.isfinite(diverged['trainable'][0])
    assert (diverged['update'], diverged['client_weight']) == ((0.0,), 0.0)
    # The next model is their weighted mean, (2 * 1.5 - 2) / 3.
    after = process.next(state, datasets).state
    np.testing.assert_allclose(weights(process, after), [1 / 3], rtol=1e-6)
    # The rates of the round are those of the state.
    hparams = process.get_hparams(state)
    hparams['client_work']['learning_rate'] = 0.25
    slower = process.set_hparams(state, hparams)
    found = process.trained_models(slower, datasets[:2])
    assert [client['trainable'] for client in found] == [(0.75,), (-1.0,)]

  def test_one_graph_for_clients_of_any_size(self, context):
    optimizer = linear_models.sgd(0.1)
    num_traces = 0
    plain = optimizer.next

    @functools.wraps(plain)
    def counting(*arguments):
      nonlocal num_traces
      num_traces += 1
      return plain(*arguments)

    optimizer.next = counting
    process = _process(client_optimizer=optimizer)
    state = process.initialize()
    first, *others = (
      linear_models.batches(np.ones(size), np.zeros(size), 2)
      for size in (3, 7, 4)
    )
    before = num_traces
    process.trained_models(state, [first])
    after_first = num_traces
    # It is traced when it is first asked for.
    assert after_first > before
    compiled = context.compile(process.trained_models)
    process.trained_models(state, others)
    assert num_traces == after_first
    assert context.compile(process.trained_models) is compiled

  def test_models_that_clients_begin_with(self):
    with pytest.raises(AttributeError, match='begin with the same model'):
      _process().personal_models  # noqa: B018


def test_repeated_rows_weigh_once():
  # A row of y = 1 that comes 4 times, and 4 rows of y = 2, in 2 steps of 2:
  # 0.19 y as w = 1 and 4: (0.19 + 4 * 0.38) / 5.

  def client(y, num_rows):
    data = collections.OrderedDict(
      x=collections.OrderedDict(
        feature=np.ones(4, np.float32), is_repeated=np.arange(4) >= num_rows
      ),
      y=np.full(4, y, np.float32),
    )
    return tf.data.Dataset.from_tensor_slices(data).batch(2)

  process = linear_rounds.process(
    tff_fedfish.build_fed_avg, linear_models.marked_model, num_local_steps=2
  )
  output = process.next(process.initialize(), [client(1, 1), client(2, 4)])
  np.testing.assert_allclose(
    weights(process, output.state), [1.71 / 5], rtol=1e-6
  )

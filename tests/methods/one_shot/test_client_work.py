"""The client work of one-shot methods: in process and in TFF's own context."""

import numpy as np
import pytest
import small_models
import tensorflow as tf
import tensorflow_federated as tff

import tff_fedfish
from models.model_shapes import weight_shapes
from tff_fedfish.methods.one_shot.uploads import UploadKind, summary_shapes
from tff_fedfish.runtime.in_process_context import set_in_process_context


@pytest.fixture(autouse=True)
def context():
  return set_in_process_context()


def _process(name, model=None, **options):
  shape = small_models.SHAPES[name]
  sgd = tff.learning.optimizers.build_sgdm
  return tff_fedfish.build_one_shot(
    model or small_models.build(shape),
    shape=shape,
    client_optimizer=sgd(0.05),
    server_optimizer=sgd(1.0),
    client_weighting=tff.learning.ClientWeighting.NUM_EXAMPLES,
    **dict(num_local_epochs=1) | options,
  )


def _clients(name, sizes):
  """Returns a dataset of some rows per client, the last batch shorter."""
  shape, datasets = small_models.SHAPES[name], []
  for seed, size in enumerate(sizes):
    rows = small_models.rows(shape, max(size, 1), seed)
    dataset = tf.data.Dataset.from_tensor_slices(rows)
    datasets.append(dataset.take(size).batch(2))
  return datasets


@pytest.mark.parametrize(
  'options',
  [
    dict(summary='kfac', num_local_epochs=2),
    dict(summary='gram', compression='paper'),
    # What is new to TFF's context is the same: these vary the client's sums.
    pytest.param(
      dict(summary='diagonal', num_local_steps=2), marks=pytest.mark.slow
    ),
    pytest.param(
      dict(summary='class_counts', micro_batch_size=1), marks=pytest.mark.slow
    ),
  ],
  ids=lambda options: options['summary'],
)
def test_rounds_in_both_contexts(options, stock_context):
  process, datasets = (
    _process('linear', **options),
    _clients('linear', (3, 4, 0)),
  )
  state = process.initialize()
  with tff_fedfish.collect_client_outputs() as collected:
    result = process.next(state, datasets)
  with tff.framework.get_context_stack().install(stock_context):
    stock = process.next(state, datasets)
  for one, other in zip(
    process.get_model_weights(result.state).trainable,
    process.get_model_weights(stock.state).trainable,
    strict=True,
  ):
    np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)
  assert [collected[i]['is_valid'] for i in range(3)] == [1, 1, 0]


@pytest.mark.parametrize('compression', ['none', 'paper'])
def test_what_a_client_uploads(compression):
  process = _process('linear', summary='kfac', compression=compression)
  with tff_fedfish.collect_client_outputs() as outputs:
    process.next(process.initialize(), _clients('linear', (3, 4)))
  shape = small_models.SHAPES['linear']
  sizes = summary_shapes(shape, UploadKind('kfac'))
  for index, size in enumerate((3, 4)):
    output = outputs[index]
    assert list(output) == ['is_valid', 'client_weight', 'weights', 'summary']
    assert output['client_weight'] == (size,)
    found = [tensor.shape for tensor in output['weights']]
    assert found == list(weight_shapes(shape).values())
    assert [t.shape for t in output['summary']] == list(sizes.values())
    # 2^15 - 1 steps up to the largest weight.
    kernel = np.float64(output['weights'][0])
    steps = kernel / np.max(np.abs(kernel)) * 32767
    is_quantized = np.allclose(steps, np.round(steps), atol=0.02)
    assert is_quantized == (compression == 'paper')


def test_rows_per_class():
  process = _process('linear', summary='class_counts')
  with tff_fedfish.collect_client_outputs() as outputs:
    process.next(process.initialize(), _clients('linear', (5,)))
  labels = small_models.rows(small_models.SHAPES['linear'], 5)['y']
  (counts,) = outputs[0]['summary']
  np.testing.assert_array_equal(counts, np.bincount(labels, minlength=3))


def test_the_diagonal_of_text_is_the_empirical_one():
  spec = small_models.build(small_models.SHAPES['learned'])
  process = _process('learned', summary='diagonal')
  # Rows with 5, 3 and 0 targets, in batches of two and of one.
  with tff_fedfish.collect_client_outputs() as outputs:
    process.next(process.initialize(), _clients('learned', (3,)))
  weights = tuple(map(tf.constant, outputs[0]['weights']))
  rows = small_models.rows(small_models.SHAPES['learned'], 3)
  expected = [np.zeros(w.shape) for w in weights]
  for row in range(3):
    with tf.GradientTape() as tape:
      tape.watch(weights)
      losses = spec.functional_model.predict_on_batch(
        (weights, ()), rows['x'][row : row + 1], False
      )['token_loss']
      # The log probability of the row's targets.
      loss = tf.reduce_sum(losses[0, : rows['y'][row]])
    for total, gradient in zip(
      expected, tape.gradient(loss, weights), strict=True
    ):
      total += tf.convert_to_tensor(gradient).numpy() ** 2 / 3
  for found, wanted in zip(outputs[0]['summary'], expected, strict=True):
    np.testing.assert_allclose(
      found, wanted, rtol=1e-3, atol=1e-5 * np.max(wanted)
    )


def test_refused_arguments():
  model = small_models.build(small_models.SHAPES['linear'])
  with pytest.raises(TypeError, match='must be a tff_fedfish.ModelSpec'):
    _process('linear', model.functional_model)
  with pytest.raises(ValueError, match='`local_privacy` must be None'):
    _process('linear', local_privacy=object())

"""The client work of one-shot methods: in process and in TFF's own context."""

import numpy as np
import pytest
import small_models
import tensorflow as tf
import tensorflow_federated as tff

import tff_fedfish
from models.model_shapes import weight_shapes
from tff_fedfish.methods.one_shot.fed_fisher import FedFisher
from tff_fedfish.methods.one_shot.ot_fusion import OtFusion
from tff_fedfish.methods.one_shot.pfnm import Pfnm
from tff_fedfish.methods.one_shot.uploads import UploadKind, summary_shapes
from tff_fedfish.runtime.in_process_context import set_in_process_context


@pytest.fixture(autouse=True)
def context():
  return set_in_process_context()


def _process(name, method, model=None, **options):
  sgd = tff.learning.optimizers.build_sgdm
  return method.build(
    model or small_models.build(small_models.SHAPES[name]),
    client_optimizer=sgd(0.05),
    server_optimizer=sgd(1.0),
    **options,
  )


def _clients(name, sizes):
  """Returns a dataset of some rows per client, the last batch shorter."""
  shape, datasets = small_models.SHAPES[name], []
  for seed, size in enumerate(sizes):
    rows = small_models.rows(shape, max(size, 1), seed)
    dataset = tf.data.Dataset.from_tensor_slices(rows)
    datasets.append(dataset.take(size).batch(2))
  return datasets


def _is_quantized(tensor):
  # 2^15 - 1 steps up to the largest weight.
  steps = np.float64(tensor) / np.max(np.abs(tensor)) * 32767
  return np.allclose(steps, np.round(steps), atol=0.02)


@pytest.mark.slow
def test_a_round_in_both_contexts_and_what_a_client_uploads(stock_context):
  process = _process('linear', FedFisher(compression='paper'))
  datasets = _clients('linear', (3, 4, 0))
  state = process.initialize()
  with tff_fedfish.collect_client_outputs() as outputs:
    result = process.next(state, datasets)
  with tff.framework.get_context_stack().install(stock_context):
    stock = process.next(state, datasets)
  found, expected = (
    process.get_model_weights(x.state).trainable for x in (result, stock)
  )
  for one, other in zip(found, expected, strict=True):
    np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)
  shape = small_models.SHAPES['linear']
  sizes = summary_shapes(shape, UploadKind('kfac'))
  assert [outputs[i]['is_valid'] for i in range(3)] == [1, 1, 0]
  for index, size in enumerate((3, 4)):
    output = outputs[index]
    assert list(output) == ['is_valid', 'client_weight', 'weights', 'summary']
    assert output['client_weight'] == (size,)
    found = [tensor.shape for tensor in output['weights']]
    assert found == list(weight_shapes(shape).values())
    assert [t.shape for t in output['summary']] == list(sizes.values())
    assert _is_quantized(output['weights'][0])


def test_rows_per_class_without_compression():
  process = _process('linear', Pfnm())
  with tff_fedfish.collect_client_outputs() as outputs:
    process.next(process.initialize(), _clients('linear', (5,)))
  labels = small_models.rows(small_models.SHAPES['linear'], 5)['y']
  (counts,) = outputs[0]['summary']
  np.testing.assert_array_equal(counts, np.bincount(labels, minlength=3))
  assert not _is_quantized(outputs[0]['weights'][0])


def test_refused_arguments():
  model = small_models.build(small_models.SHAPES['linear'])
  with pytest.raises(TypeError, match='must be a tff_fedfish.ModelSpec'):
    _process('linear', OtFusion(), model.functional_model)
  with pytest.raises(ValueError, match='`local_privacy` must be None'):
    _process('linear', OtFusion(), local_privacy=object())

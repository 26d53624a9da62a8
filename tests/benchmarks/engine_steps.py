"""Local steps, and matrix products of the same shapes, for the flops part."""

import time
from collections.abc import Iterator

import tensorflow as tf
from benchmarks import engine_data, plain_loop
from benchmarks.engine_settings import Workload

_SQUARE = 1024
# A product is repeated until it is about so many operations.
_MIN_FLOPS = 5e9


class LocalSteps:
  """A client's local training, without a round around it."""

  def __init__(self, workload: dict):
    """Builds it from what the engine's clients run."""
    import tensorflow_federated as tff

    from models import transformer
    from models.functional_model import build_language_model
    from tff_fedfish.rounds import local_training

    parsed = Workload(**workload)
    config = parsed.transformer_config()
    spec = build_language_model(config, model_seed=plain_loop.MODEL_SEED)
    optimizer = tff.learning.optimizers.build_sgdm(
      plain_loop.CLIENT_LEARNING_RATE
    )
    hparams = optimizer.get_hparams(
      optimizer.initialize(tf.TensorSpec([], tf.float32))
    )

    @tf.function
    def train(weights, dataset):
      result = local_training.train(
        spec.functional_model,
        optimizer,
        hparams,
        weights,
        (),
        dataset,
        num_local_epochs=1,
      )
      return result.trainable, result.metrics

    self._train = train
    self._weights = transformer.initial_weights(config, plain_loop.MODEL_SEED)
    self._dataset = engine_data.client_datasets(parsed)[0]
    self._num_steps = parsed.num_local_steps

  def turn(self) -> dict:
    """Returns `seconds` of a step; the weights are always the initial ones."""
    start = time.perf_counter()
    _, metrics = self._train(self._weights, self._dataset)
    tf.nest.map_structure(lambda tensor: tensor.numpy(), metrics)
    return {'seconds': (time.perf_counter() - start) / self._num_steps}


class Products:
  """Matrix products alone: what the machine can do at the most."""

  def __init__(self, workload: dict):
    """Makes matrices of 1024 x 1024, and of the shapes of the model."""
    parsed = Workload(**workload)
    self._dtype = tf.as_dtype(parsed.compute_dtype)
    self._subjects = {
      'square': [(1, (_SQUARE, _SQUARE, _SQUARE))],
      'model': list(model_products(parsed)),
    }

  def turn(self) -> dict:
    """Returns `seconds`, and `flops_per_second` by 'square' and 'model'."""
    start = time.perf_counter()
    rates = {}
    for name, products in self._subjects.items():
      num_flops = sum(count * _num_flops(shape) for count, shape in products)
      rates[name] = num_flops / sum(
        count * self._seconds(shape) for count, shape in products
      )
    return {'seconds': time.perf_counter() - start, 'flops_per_second': rates}

  def _seconds(self, shape: tuple[int, int, int]) -> float:
    """Returns the seconds of one product, once warmed up."""
    rows, inner, columns = shape
    left = _random([rows, inner], self._dtype)
    right = _random([inner, columns], self._dtype)
    tf.matmul(left, right)
    repeats = max(1, round(_MIN_FLOPS / _num_flops(shape)))
    start = time.perf_counter()
    for _ in range(repeats):
      product = tf.matmul(left, right)
    product.numpy()
    return (time.perf_counter() - start) / repeats


def model_products(
  workload: Workload,
) -> Iterator[tuple[int, tuple[int, int, int]]]:
  """Yields the products of a local step with weights, not of attention.

  Of each, the product itself and the two of its gradients.

  Args:
    workload: Fixes the model and the batch.

  Yields:
    How often, and (rows, inner, columns).
  """
  config = workload.transformer_config()
  rows, width = workload.tokens_per_step, config.width
  layers = config.num_layers
  for count, inner, columns in (
    (layers, width, 3 * width),
    (layers, width, width),
    (layers, width, 4 * width),
    (layers, 4 * width, width),
    (1, width, config.vocabulary_size),
  ):
    yield count, (rows, inner, columns)
    yield count, (rows, columns, inner)
    yield count, (inner, rows, columns)


def _num_flops(shape: tuple[int, int, int]) -> int:
  rows, inner, columns = shape
  return 2 * rows * inner * columns


def _random(shape, dtype):
  values = tf.random.stateless_normal(shape, seed=[1, 2])
  return tf.cast(values, dtype)

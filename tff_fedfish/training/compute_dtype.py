"""Chooses the type of the matrix products by timing them on this machine.

Which type is faster cannot be told from a processor's name: with AMX bfloat16
products are several times as fast as float32's, with AVX-512 and no bfloat16
instructions half as fast.
"""

import statistics
import sys
import time

import tensorflow as tf

from tff_fedfish.config.schema import TrainConfig

# Weights and activations are cast for every product, and sums stay float32.
_MIN_RATIO = 1.2
_NUM_TURNS = 7
_NUM_CALLS = 4


def with_faster(config: TrainConfig) -> TrainConfig:
  """Returns the config with the faster `model.compute_dtype`; prints which."""
  ratio = product_ratio(config)
  dtype = 'bfloat16' if ratio >= _MIN_RATIO else 'float32'
  print(
    f'`model.compute_dtype`: {dtype} (products in bfloat16 are {ratio:.2f} '
    'times as fast as in float32).',
    file=sys.stderr,
  )
  return config.with_values('model', compute_dtype=dtype)


def product_ratio(config: TrainConfig) -> float:
  """Returns how many times as fast products are in bfloat16 as in float32.

  Times the largest product of a layer of a language model, a batch's tokens by
  the widths of the MLP, and its two gradients, where TensorFlow puts them;
  turns of both types alternate.
  """
  shape = config.transformer_config()
  num_rows = config.client_work.local_batch_size * shape.sequence_length
  functions = [
    _products(num_rows, shape.width, dtype)
    for dtype in (tf.float32, tf.bfloat16)
  ]
  ratios = []
  for _ in range(_NUM_TURNS):
    seconds = []
    for function in functions:
      start = time.perf_counter()
      for _ in range(_NUM_CALLS):
        total = function()
      # Waits for an accelerator.
      total.numpy()
      seconds.append(time.perf_counter() - start)
    ratios.append(seconds[0] / seconds[1])
  # The first turn builds the functions.
  return statistics.median(ratios[1:])


def _products(num_rows: int, width: int, dtype: tf.DType):
  left = tf.cast(tf.random.stateless_normal([num_rows, width], [0, 1]), dtype)
  right = tf.cast(tf.random.stateless_normal([width, 4 * width], [0, 2]), dtype)

  @tf.function
  def products():
    result = tf.matmul(left, right)
    gradients = (
      tf.matmul(result, right, transpose_b=True),
      tf.matmul(left, result, transpose_a=True),
    )
    return sum(tf.reduce_max(tf.cast(value, tf.float32)) for value in gradients)

  return products

"""The model compiled by XLA is the same model."""

import collections

import numpy as np
import tensorflow as tf

from models.functional_model import build_language_model
from models.transformer_config import TransformerConfig
from tff_fedfish.rounds.gradients import batch_gradients


def test_same_loss_and_gradients():
  config = TransformerConfig(
    num_layers=1,
    width=8,
    num_heads=2,
    vocabulary_size=11,
    sequence_length=5,
  )
  random = np.random.RandomState(3)
  batch = collections.OrderedDict(
    x=tf.constant(random.randint(0, 11, size=(3, 6)), tf.int32),
    y=tf.constant([5, 2, 4], tf.int32),
  )

  def loss_and_gradients(xla):
    spec = build_language_model(config, model_seed=1, xla=xla)
    trainable, _ = spec.draw_initial_weights()

    @tf.function
    def run():
      found = batch_gradients(
        spec.functional_model, trainable, (), batch, training=True
      )
      return found.loss, found.data

    graph = run.get_concrete_function().graph.as_graph_def()
    compiled = [
      function.attr['_XlaMustCompile'].b for function in graph.library.function
    ]
    # Both directions, or nothing.
    assert compiled.count(True) >= 2 if xla else not any(compiled)
    return run()

  (loss, gradients), (plain_loss, plain_gradients) = map(
    loss_and_gradients, (True, False)
  )
  np.testing.assert_allclose(loss, plain_loss, rtol=1e-5)
  for found, expected in zip(gradients, plain_gradients, strict=True):
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)

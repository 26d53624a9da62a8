"""A method of one's own whose runs begin with noise that the rounds divide."""

import dataclasses

from tff_fedfish.methods import AlgorithmConfig, Method


def draw_start(config, model):
  """Returns the model with weights drawn by an operation that has a state."""
  import tensorflow as tf

  num_rounds = config.training.num_rounds

  def draw():
    trainable, non_trainable = model.draw_initial_weights()
    drawn = [tf.random.normal(w.shape, seed=7) / num_rounds for w in trainable]
    return tuple(drawn), non_trainable

  return dataclasses.replace(model, draw_initial_weights=draw)


METHOD = Method(
  name='drawn_start',
  title='Drawn start',
  summary='FedAvg from weights that it draws itself.',
  source='None.',
  settings=AlgorithmConfig,
  builder='tff_fedfish.methods.fed_avg:build_fed_avg',
  model='own_methods.drawn_start:draw_start',
)

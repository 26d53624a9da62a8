"""SCAFFOLD in the form that sends one model, algorithm 2 of TCT.

h_i, the correction of client i, becomes h_i + (x - y_i) / (M eta), with x the
server's weights and y_i those that the client trained in its last round.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tff_fedfish.rounds.kept import KeptSlot, Start

Structure = Any


def one_model_slots(
  num_steps: int,
) -> tuple[Callable[[Start], Structure], dict[str, KeptSlot]]:
  """Returns (start -> h_i of the round, what clients keep).

  Args:
    num_steps: Local steps of every client in every round.
  """

  def correction_of(start):
    rate = start.hparams['learning_rate']

    def plus(h, x, y):
      distance = tf.cast(num_steps, h.dtype) * tf.cast(rate, h.dtype)
      return h + tf.math.divide_no_nan(x - y, distance)

    return tf.nest.map_structure(
      plus, start.kept['correction'], start.trainable, start.kept['last_local']
    )

  slots = {
    'correction': KeptSlot(
      initial=lambda trainable: tf.nest.map_structure(
        lambda w: tf.zeros(w.shape, w.dtype), trainable
      ),
      next=lambda client: correction_of(client.start),
    ),
    'last_local': KeptSlot(
      initial=lambda trainable: trainable,
      next=lambda client: client.local.trainable,
    ),
  }
  return correction_of, slots

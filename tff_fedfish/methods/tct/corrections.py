"""Corrections h_i of SCAFFOLD, and the slots of the form that sends one model.

That form is algorithm 2 of Yu et al. (2022), "TCT". The letters are those of
`mathematics/control_variates.py`.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tff_fedfish.mathematics import control_variates
from tff_fedfish.rounds.kept import KeptSlot, Start
from tff_fedfish.rounds.local_training import CorrectGradient

Structure = Any


def one_model_slots(
  num_steps: int,
) -> tuple[Callable[[Start], Structure], dict[str, KeptSlot]]:
  """Returns (start -> h_i of the round, what clients keep).

  Args:
    num_steps: Local steps of every client in every round.
  """

  def correction_of(start):
    return control_variates.plus_mean_step(
      start.kept['correction'],
      start.trainable,
      start.kept['last_local'],
      num_steps=num_steps,
      learning_rate=start.hparams['learning_rate'],
    )

  slots = {
    'correction': KeptSlot(
      initial=zeros_like, next=lambda client: correction_of(client.start)
    ),
    'last_local': KeptSlot(
      initial=lambda trainable: trainable,
      next=lambda client: client.local.trainable,
    ),
  }
  return correction_of, slots


def correcting(
  correction_of: Callable[[Start], Structure],
) -> Callable[[Start], CorrectGradient]:
  """Returns `build_correct_gradient` of `compose`: gradients minus h_i."""

  def build_correct_gradient(start):
    correction = correction_of(start)

    def correct_gradient(gradients, unused_weights):
      return control_variates.corrected_gradients(gradients, correction)

    return correct_gradient

  return build_correct_gradient


def zeros_like(trainable: Structure) -> Structure:
  """Returns zeros of the weights' shapes."""
  return tf.nest.map_structure(lambda w: tf.zeros(w.shape, w.dtype), trainable)

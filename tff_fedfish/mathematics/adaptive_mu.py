"""Adaptation of FedProx's mu to the course of the training loss.

Li et al. (2020), "Federated optimization in heterogeneous networks", section
5.3.2: mu grows by a step when the loss rises, and shrinks by it when the loss
has fallen for some rounds in a row. They leave open how the first round and
ties count: both are falls here, as in FL4Health's
`FedAvgWithAdaptiveConstraint`.
"""

import collections
from collections.abc import Mapping

import numpy as np
import tensorflow as tf


def initial_state(mu: float) -> collections.OrderedDict[str, np.generic]:
  """Returns the state before the first round.

  Args:
    mu: Its value in the first round, >= 0.
  """
  return collections.OrderedDict(
    mu=np.float32(mu),
    previous_loss=np.float32(np.inf),
    num_falls=np.int32(0),
  )


def next_mu(
  state: Mapping[str, tf.Tensor],
  loss: tf.Tensor,
  *,
  mu_step: float,
  patience: int,
) -> collections.OrderedDict[str, tf.Tensor]:
  """Returns the state after a round.

  Args:
    state: `mu` and `previous_loss`, float32 scalars, and `num_falls`, an int32
      scalar: the rounds in a row whose loss fell.
    loss: Scalar float32, the round's. One that is not finite counts as a rise,
      and is not compared with the next.
    mu_step: What mu changes by, > 0; it does not fall below 0.
    patience: Falls in a row after which mu shrinks, >= 1.
  """
  mu, previous_loss, num_falls = (
    tf.convert_to_tensor(state[name])
    for name in ('mu', 'previous_loss', 'num_falls')
  )
  is_finite = tf.math.is_finite(loss)
  rises = tf.logical_or(loss > previous_loss, tf.logical_not(is_finite))
  num_falls = tf.where(rises, 0, num_falls + 1)
  shrinks = num_falls >= patience
  shrunk = tf.where(shrinks, tf.maximum(mu - mu_step, 0.0), mu)
  return collections.OrderedDict(
    mu=tf.where(rises, mu + mu_step, shrunk),
    previous_loss=tf.where(is_finite, loss, previous_loss),
    num_falls=tf.where(shrinks, 0, num_falls),
  )

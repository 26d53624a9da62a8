"""Adaptation of FedProx's mu to the course of the training loss.

Li et al. (2020), "Federated optimization in heterogeneous networks", section
5.3.2: mu grows by a step when the loss rises, and shrinks by it when the loss
has fallen for some rounds in a row. They leave open how the first round and
ties count; each rule answers it in its own way:

| rule | first round | tie |
|---|---|---|
| 'fl4health' (FL4Health's `FedAvgWithAdaptiveConstraint`) | fall | fall |
| 'strict' | not counted | ends the run of falls, mu stays |
| 'reference' ("fails to decrease") | not counted | rise |
"""

import collections
from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from tff_fedfish.errors import require_one_of

RULES = ('fl4health', 'strict', 'reference')


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
  rule: str,
  mu_step: float,
  patience: int,
) -> collections.OrderedDict[str, tf.Tensor]:
  """Returns the state after a round.

  Args:
    state: `mu` and `previous_loss`, float32 scalars, and `num_falls`, an int32
      scalar: the rounds in a row whose loss fell.
    loss: Scalar float32, the round's. One that is not finite counts as a rise,
      and is not compared with the next.
    rule: One of `RULES`.
    mu_step: What mu changes by, > 0; it does not fall below 0.
    patience: Falls in a row after which mu shrinks, >= 1.

  Raises:
    ValueError: If `rule` is none of these.
  """
  require_one_of('rule', rule, RULES)
  mu, previous_loss, num_falls = (
    tf.convert_to_tensor(state[name])
    for name in ('mu', 'previous_loss', 'num_falls')
  )
  is_finite = tf.math.is_finite(loss)
  if rule == 'reference':
    rises = loss >= previous_loss
  else:
    rises = loss > previous_loss
  rises = tf.logical_or(rises, tf.logical_not(is_finite))
  if rule == 'fl4health':
    falls = tf.logical_not(rises)
  else:
    has_previous = tf.math.is_finite(previous_loss)
    falls = tf.logical_and(has_previous, loss < previous_loss)
    falls = tf.logical_and(falls, is_finite)
  num_falls = tf.where(falls, num_falls + 1, 0)
  shrinks = num_falls >= patience
  shrunk = tf.where(shrinks, tf.maximum(mu - mu_step, 0.0), mu)
  return collections.OrderedDict(
    mu=tf.where(rises, mu + mu_step, shrunk),
    previous_loss=tf.where(is_finite, loss, previous_loss),
    num_falls=tf.where(shrinks, 0, num_falls),
  )

"""MOON: local training that contrasts representations.

Li, He and Song (2021), "Model-contrastive federated learning", equation 3.
Client i minimizes, per batch,

  loss + mu mean l_con
  l_con = -log(e^p / (e^p + e^n)), p = cos(z, z_glob) / tau,
                                   n = cos(z, z_prev) / tau

  z        representation of a target under the weights that are trained
  z_glob   under the server's weights
  z_prev   under the weights that the client trained last
  tau      temperature

All else is FedAvg. A client that takes part for the first time has the server's
weights for its last trained ones: l_con is then log 2, its gradient 0. Of text
every real token has a representation, of images every image.

Two things differ from the paper. z comes from a separate pass without the
batch's dropout and augmentation, which the classified output has; and there is
no projection head.
"""

import dataclasses
from typing import Any

from tff_fedfish.fields import number
from tff_fedfish.methods.method import Method
from tff_fedfish.methods.parts import ClientCost, Slot
from tff_fedfish.methods.settings import AlgorithmConfig

# A vector shorter than 1e-8 counts as one of that norm.
_MIN_SQUARED_NORM = 1e-16


@dataclasses.dataclass(frozen=True, kw_only=True)
class MoonConfig(AlgorithmConfig):
  """Settings of MOON: its contrastive loss."""

  mu: float = number(1.0, at_least=0)
  """Weight of the contrastive loss, >= 0. 0 is FedAvg."""
  temperature: float = number(0.5, above=0)
  """Temperature tau of the contrastive loss, > 0."""


def build_moon(
  model: Any, *, mu: float = 1.0, temperature: float = 0.5, **training: Any
) -> Any:
  """Builds MOON.

  Args:
    model: A ModelSpec with `features`.
    mu: See `MoonConfig`.
    temperature: See `MoonConfig`.
    **training: See `rounds.compose.compose`.

  Returns:
    The learning process; metrics `client_work`, `aggregator`, `finalizer`.

  Raises:
    TypeError: If `model` has no representation.
  """
  import tensorflow as tf

  from tff_fedfish.rounds.compose import compose
  from tff_fedfish.rounds.gradients import split_batch
  from tff_fedfish.rounds.kept import KeptSlot

  features_of = getattr(model, 'features', None)
  if features_of is None:
    raise TypeError(
      '`model` must be a tff_fedfish.ModelSpec with `features`, found '
      f'{type(model).__name__} without.'
    )

  def contrastive_loss(*features):
    z, z_glob, z_prev = (
      tf.math.l2_normalize(vectors, axis=-1, epsilon=_MIN_SQUARED_NORM)
      for vectors in features
    )
    positive = tf.reduce_sum(z * z_glob, axis=-1) / temperature
    negative = tf.reduce_sum(z * z_prev, axis=-1) / temperature
    return tf.math.softplus(negative - positive)

  def build_extra_loss(start):
    def extra_loss(weights, batch, unused_output):
      x, y = split_batch(batch)
      (z, is_real), (z_glob, _), (z_prev, _) = (
        features_of((trainable, start.non_trainable), x, y)
        for trainable in (
          weights,
          start.trainable,
          start.kept['previous_model'],
        )
      )
      losses = contrastive_loss(
        z, tf.stop_gradient(z_glob), tf.stop_gradient(z_prev)
      )
      return mu * tf.math.divide_no_nan(
        tf.reduce_sum(losses * is_real), tf.reduce_sum(is_real)
      )

    return extra_loss

  previous_model = KeptSlot(
    initial=lambda trainable: trainable,
    next=lambda client: client.local.trainable,
  )
  return compose(
    model,
    make_update=lambda client: client.model_delta(),
    build_extra_loss=build_extra_loss,
    kept_slots={'previous_model': previous_model},
    **training,
  )


METHOD = Method(
  name='moon',
  title='MOON',
  summary=(
    "FedAvg whose clients draw their representation towards the server's and "
    'away from that of their own last model, which they keep. The '
    'representation comes from a separate pass without dropout and '
    'augmentation; there is no projection head.'
  ),
  source=('Li, He and Song (2021), "Model-contrastive federated learning"'),
  settings=MoonConfig,
  builder='tff_fedfish.methods.moon:build_moon',
  bytes_beside_delta=lambda config: 0,
  # z forward and back, z_glob and z_prev forward.
  cost=lambda config: ClientCost(passes_in_training=5 / 3),
  slots=lambda config: (Slot('previous_model', 1),),
  hue='#E69F00',
  hatch='oooo',
)

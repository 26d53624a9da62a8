"""MOON: local training that contrasts representations.

Li, He and Song (2021), "Model-contrastive federated learning": client i
minimizes, per batch,

  loss + mu mean l_con(z, z_glob, z_prev)

z being the representation of a target under the weights that are trained,
z_glob under the server's and z_prev under those that the client trained last;
l_con is that of `mathematics/contrastive.py`. All else is FedAvg.
"""

import math

import tensorflow as tf
import tensorflow_federated as tff

from models.functional_model import ModelSpec
from tff_fedfish.errors import require
from tff_fedfish.mathematics.contrastive import contrastive_loss
from tff_fedfish.rounds.compose import compose
from tff_fedfish.rounds.gradients import split_batch
from tff_fedfish.rounds.kept import KeptSlot
from tff_fedfish.rounds.privacy import LocalPrivacy


def build_moon(
  model: ModelSpec,
  *,
  client_optimizer: tff.learning.optimizers.Optimizer,
  server_optimizer: tff.learning.optimizers.Optimizer,
  num_local_epochs: int = 1,
  mu: float = 1.0,
  temperature: float = 0.5,
  client_weighting: tff.learning.ClientWeighting = (
    tff.learning.ClientWeighting.NUM_EXAMPLES
  ),
  max_delta_norm: float | None = None,
  num_local_steps: int | None = None,
  micro_batch_size: int | None = None,
  keeps_optimizer_state: bool = False,
  local_privacy: LocalPrivacy | None = None,
) -> tff.learning.templates.LearningProcess:
  """Builds MOON.

  A client that takes part for the first time has the server's weights for its
  last trained ones: l_con is then log 2, its gradient 0. Representations are
  those of a model that is not in training: no dropout, no augmentation. Of
  text every real token has one, of images every image; there is no projection
  head.

  Args:
    model: A ModelSpec with `features`.
    client_optimizer: See `build_fed_avg`.
    server_optimizer: See `build_fed_avg`.
    num_local_epochs: See `build_fed_avg`.
    mu: Weight of l_con, >= 0. 0 is FedAvg.
    temperature: tau of l_con, > 0.
    client_weighting: See `build_fed_avg`.
    max_delta_norm: See `build_fed_avg`.
    num_local_steps: See `build_fed_avg`.
    micro_batch_size: See `build_fed_avg`.
    keeps_optimizer_state: See `build_fed_avg`.
    local_privacy: See `build_fed_avg`.

  Returns:
    The learning process, a `StatefulLearningProcess`; metrics `client_work`,
    `aggregator`, `finalizer`.

  Raises:
    TypeError: If `model` has no representation.
    ValueError: If an argument is outside what is listed.
  """
  require(0 <= mu < math.inf, 'mu', 'a number of at least 0', mu)
  is_right = 0 < temperature < math.inf
  require(is_right, 'temperature', 'a number above 0', temperature)
  features_of = getattr(model, 'features', None)
  if features_of is None:
    raise TypeError(
      '`model` must be a tff_fedfish.ModelSpec with `features`, found '
      f'{type(model).__name__} without.'
    )

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
        z,
        tf.stop_gradient(z_glob),
        tf.stop_gradient(z_prev),
        temperature=temperature,
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
    client_optimizer=client_optimizer,
    server_optimizer=server_optimizer,
    num_local_epochs=num_local_epochs,
    client_weighting=client_weighting,
    make_update=lambda client: client.model_delta(),
    aggregation_factory=tff.aggregators.MeanFactory(no_nan_division=True),
    build_extra_loss=build_extra_loss,
    kept_slots={'previous_model': previous_model},
    keeps_optimizer_state=keeps_optimizer_state,
    max_delta_norm=max_delta_norm,
    num_local_steps=num_local_steps,
    micro_batch_size=micro_batch_size,
    local_privacy=local_privacy,
  )

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

from tff_fedfish.fields import number
from tff_fedfish.late import module, tf
from tff_fedfish.methods.method import Method
from tff_fedfish.methods.parts import ClientCost
from tff_fedfish.rounds.client import LAST_MODEL

_gradients = module('tff_fedfish.rounds.gradients')

# A vector shorter than 1e-8 counts as one of that norm.
_MIN_SQUARED_NORM = 1e-16


@dataclasses.dataclass(frozen=True, kw_only=True)
class Moon(Method):
  """FedAvg whose clients draw their representation towards the server's.

  A contrastive loss also moves it away from that of a client's own last model,
  which the client keeps. The representation comes from a separate pass without
  dropout and augmentation; there is no projection head.
  """

  title = 'MOON'
  source = 'Li, He and Song (2021), "Model-contrastive federated learning"'
  hue, hatch = '#E69F00', 'oooo'

  mu: float = number(1.0, at_least=0)
  """Weight of the contrastive loss, >= 0. 0 is FedAvg."""
  temperature: float = number(0.5, above=0)
  """Temperature tau of the contrastive loss, > 0."""

  def kept(self, num_clients):
    return {'previous_model': LAST_MODEL}

  def build(self, model, **training):
    """Builds MOON of a ModelSpec with `features`; TypeError without."""
    if getattr(model, 'features', None) is None:
      raise TypeError(
        '`model` must be a tff_fedfish.ModelSpec with `features`, found '
        f'{type(model).__name__} without.'
      )
    return super().build(model, **training)

  def extra_loss(self, start, weights, batch, output):
    x, y = _gradients.split_batch(batch)
    models = weights, start.trainable, start.kept['previous_model']
    (z, is_real), (z_glob, _), (z_prev, _) = (
      start.spec.features((trainable, start.non_trainable), x, y)
      for trainable in models
    )
    z, z_glob, z_prev = (
      tf.math.l2_normalize(vectors, axis=-1, epsilon=_MIN_SQUARED_NORM)
      for vectors in (z, tf.stop_gradient(z_glob), tf.stop_gradient(z_prev))
    )
    positive = tf.reduce_sum(z * z_glob, axis=-1) / self.temperature
    negative = tf.reduce_sum(z * z_prev, axis=-1) / self.temperature
    losses = tf.math.softplus(negative - positive)
    return self.mu * tf.math.divide_no_nan(
      tf.reduce_sum(losses * is_real), tf.reduce_sum(is_real)
    )

  def quantized_extra_bytes(self, config):
    return 0

  def cost(self, config):
    # z forward and back, z_glob and z_prev forward.
    return ClientCost(passes_in_training=5 / 3)

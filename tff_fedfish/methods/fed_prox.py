"""FedProx: FedAvg whose clients are held near the server's model.

Li et al. (2020), "Federated optimization in heterogeneous networks": client i
minimizes

  F_i(theta) + mu / 2 |theta - theta_G|^2

that is, mu (theta - theta_G) is added to every gradient; all else is FedAvg.
(TFF 0.87's `build_weighted_fed_prox` adds it with the opposite sign.)

Of an adaptive mu (section 5.3.2) the paper leaves the first round and ties
open: both count as falls of the loss, as in FL4Health's
`FedAvgWithAdaptiveConstraint`.
"""

import collections
import dataclasses
from typing import Literal

from tff_fedfish.errors import require
from tff_fedfish.fields import number
from tff_fedfish.late import tf
from tff_fedfish.methods.method import Method
from tff_fedfish.methods.parts import ClientCost, Column
from tff_fedfish.methods.settings import settings_unlike
from tff_fedfish.rounds.client import MethodState


@dataclasses.dataclass(frozen=True, kw_only=True)
class FedProx(Method):
  """FedAvg whose clients a proximal term holds near the server's model."""

  title = 'FedProx'
  source = (
    'Li et al. (2020), "Federated optimization in heterogeneous networks"'
  )
  hue, hatch = '#CC79A7', 'xxxx'

  mu: float = number(0.0, at_least=0)
  """Strength mu of the proximal term mu / 2 |theta - theta_G|^2, >= 0. 0 is
  FedAvg. With an adaptation it is the first round's."""
  adaptation: Literal['none', 'fl4health'] = 'none'
  """Rule by which mu follows the training loss. 'none': mu is constant.
  'fl4health': mu rises by `mu_step` when the loss rises, and falls by it after
  `patience` falls in a row. The first round and a tie count as falls."""
  mu_step: float = number(0.1, above=0)
  """Change of mu by an adaptation, > 0."""
  patience: int = number(5, at_least=1)
  """Falls of the loss in a row after which mu falls, >= 1. Unit: rounds."""

  @property
  def adapts(self):
    return self.adaptation != 'none'

  def correct_gradient(self, start, gradients, weights):
    mu = start.method['mu'] if self.adapts else self.mu
    return tf.nest.map_structure(
      lambda g, w, w_0: g + tf.cast(mu, g.dtype) * (w - w_0),
      gradients,
      weights,
      start.trainable,
    )

  def state(self, num_clients):
    """Mu, which follows the unweighted mean of the clients' losses.

    A mean that is not finite counts as a rise and is not compared with the
    next. A round without data does not count.
    """
    if not self.adapts:
      return None
    return MethodState(
      initial=lambda specs: collections.OrderedDict(
        mu=tf.constant(self.mu, tf.float32),
        previous_loss=tf.constant(float('inf')),
        num_falls=tf.constant(0),
      ),
      terms=lambda client: (client.local.mean_loss, tf.constant(1.0)),
      next=self._next_mu,
      reported=('mu', 'previous_loss', 'num_falls'),
    )

  def _next_mu(self, state, sums, counts):
    loss_sum, num_clients = sums
    loss, mu = loss_sum / num_clients, state['mu']
    is_finite = tf.math.is_finite(loss)
    rises = tf.logical_or(loss > state['previous_loss'], ~is_finite)
    num_falls = tf.where(rises, 0, state['num_falls'] + 1)
    shrinks = num_falls >= self.patience
    shrunk = tf.where(shrinks, tf.maximum(mu - self.mu_step, 0.0), mu)
    changed = collections.OrderedDict(
      mu=tf.where(rises, mu + self.mu_step, shrunk),
      previous_loss=tf.where(is_finite, loss, state['previous_loss']),
      num_falls=tf.where(shrinks, 0, num_falls),
    )
    is_counted = (num_clients > 0) | (counts['num_non_finite_clients'] > 0)
    return tf.nest.map_structure(
      lambda new, old: tf.where(is_counted, new, old), changed, state
    )

  def build(self, model, **training):
    """Builds FedProx; DP-SGD's noise is not in the losses of an adaptation."""
    is_safe = not (self.adapts and training.get('local_privacy'))
    require(is_safe, 'adaptation', "'none' with local_privacy", self.adaptation)
    return super().build(model, **training)

  def quantized_extra_bytes(self, config):
    return 0

  def cost(self, config):
    return ClientCost(models_held=1)  # The corrected gradients.

  def columns(self, config):
    return (Column('train/mu', ('client_work', 'mu')),) if self.adapts else ()

  def problems(self, config):
    expected = [('algorithm.adaptation', 'none')]
    because = 'with local_privacy, as it reads training losses without noise'
    problems = settings_unlike(config, expected, because)
    return problems if config.local_privacy.is_on else []

"""FedFomo: clients mix the models of others by what these do for them.

Zhang et al. (2021), "Personalized federated learning with first order model
optimization", equations 3 to 5 and section 4.2. A client keeps a model of its
own. It begins a round with its baseline b, its own last model and those of
other clients that it was sent, theta_n, and mixes them by their losses L on its
validation rows:

  w_n   = (L(b) - L(theta_n)) / |theta_n - b|     raw weights, L2 norm
  w*_n  = max(w_n, 0) / sum_m max(w_m, 0)         mixing weights
  theta = b + sum_n w*_n (theta_n - b)            federated update
  P_n  += w_n                                     affinity to client n

theta is the next baseline; trained, it is the client's next model. If no
theta_n lowers the loss, theta is b. In a client's first round b is the server's
initial model, and there is nothing to mix.

The server sends a client at most M of the models that others uploaded in the
round before. It chooses by P, or at random with probability
max(epsilon - decay t, 0), t counted from 0. Its own weights never change.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from tff_fedfish.fields import number
from tff_fedfish.late import module, tf
from tff_fedfish.methods.method import Method
from tff_fedfish.methods.parts import (
  ClientCost,
  Column,
  Downloads,
  PersonalModels,
  Traffic,
)
from tff_fedfish.methods.settings import settings_unlike
from tff_fedfish.rounds.client import LAST_MODEL, KeptSlot
from tff_fedfish.rounds.fold import fold
from tff_fedfish.runtime.client_data import CANDIDATES, VALIDATION

_local_training = module('tff_fedfish.rounds.local_training')

_NUM_DOWNLOADS = 'train/num_downloads'
_EXPECTED = (
  # Nothing is sent that could be clipped, and the server takes no step.
  ('client_work.max_delta_norm', None),
  ('evaluation.barrier_every_num_rounds', 0),
  # The moments would belong to other weights than those a client begins with.
  ('client_work.keeps_optimizer_state', False),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FedFomo(Method):
  """Every client mixes models of other clients into one of its own.

  It moves towards each by how much that lowers its validation loss.
  """

  title = 'FedFomo'
  source = (
    'Zhang et al. (2021), "Personalized federated learning with first order '
    'model optimization"'
  )
  hue, hatch = '#332288', '\\\\\\\\'
  example = 'mnist_personal'
  takes_server_step = False
  reads_num_clients = True
  client_inputs = (VALIDATION, CANDIDATES)
  make_update = None

  num_downloads: int = number(5, at_least=1, below=4096)
  """M, models of other clients that a client is sent in a round, at most. It
  always weighs its own last model, too."""
  epsilon: float = number(0.3, at_least=0, at_most=1)
  """Probability in round 1 that a download is drawn at random, in [0, 1]; else
  it is the one with the highest affinity."""
  epsilon_decay: float = number(0.05, at_least=0, at_most=1)
  """Decrease of that probability per round, in [0, 1]."""

  def build(self, model, *, num_clients, **training):
    """Builds FedFomo; positions of clients are below `num_clients`."""
    return super().build(model, num_clients=num_clients, **training)

  def kept(self, num_clients):
    """Returns theta, b and P, float32 [num_clients], all that may take part."""
    return {
      'model': LAST_MODEL,
      'baseline': KeptSlot(
        initial=lambda trainable: trainable,
        next=lambda client: client.start.start_model,
      ),
      'affinity': KeptSlot(
        initial=lambda unused_trainable: tf.zeros([num_clients]),
        next=lambda client: client.start.extras['affinity'],
        # One float per client.
        num_models=0,
      ),
    }

  def begin(self, start):
    """Mixes the candidates; counts `num_downloads`, the models received."""
    validation, base = start.inputs[VALIDATION], start.kept['baseline']

    def loss_of(weights):
      metrics = _local_training.evaluate(
        start.model, weights, start.non_trainable, validation
      )
      return start.model.finalize_metrics(metrics)['loss']

    base_loss, affinity = loss_of(base), start.kept['affinity']

    def add(sums, candidate):
      total, row, mass, count = sums
      weights = candidate['weights']
      raw = _raw_weight(base_loss, loss_of(weights), weights, base)
      positive = tf.maximum(raw, 0.0)
      total = tf.nest.map_structure(
        # A candidate that is not finite weighs 0.
        lambda t, w, b, p=positive: t + tf.math.multiply_no_nan(w - b, p),
        total,
        weights,
        base,
      )
      row = tf.tensor_scatter_nd_add(row, [[candidate['position']]], [raw])
      return total, row, mass + positive, count + 1

    zeros = tf.nest.map_structure(tf.zeros_like, (base, affinity))
    total, row, mass, count = fold(
      start.inputs[CANDIDATES], (*zeros, tf.constant(0.0), tf.constant(0)), add
    )
    validates = tf.constant(False)
    for _ in iter(validation.take(1)):
      validates = tf.constant(True)
    theta = tf.nest.map_structure(
      # Without validation rows a client goes on with its own last model.
      lambda b, t, own: tf.where(
        validates, b + tf.math.divide_no_nan(t, mass), own
      ),
      base,
      total,
      start.kept['model'],
    )
    return start._replace(
      start_model=theta,
      extras={'affinity': affinity + row},
      # Its own model comes first, and needs no download.
      counts={'num_downloads': tf.maximum(count - 1, 0)},
    )

  def traffic(self, config):
    # The most that is sent; metrics.csv counts what was.
    return Traffic(1, self.num_downloads)

  def cost(self, config):
    return ClientCost(models_held=2)  # The sum of the differences, a candidate.

  def columns(self, config):
    path = ('client_work', 'clients', 'num_downloads')
    return (Column(_NUM_DOWNLOADS, path),)

  def personal(self, config):
    return PersonalModels(
      validates=True,
      downloads=Downloads(self.num_downloads, self.epsilon, self.epsilon_decay),
      downloads_column=_NUM_DOWNLOADS,
    )

  def problems(self, config):
    because = f'with algorithm.name {self.name!r}'
    return settings_unlike(config, _EXPECTED, because)


def _raw_weight(base_loss, loss, model, baseline):
  """Returns w_n, float32; 0 at a distance of 0 or where it is not finite."""
  squares = [
    tf.reduce_sum(tf.square(tf.cast(theta - b, tf.float32)))
    for theta, b in zip(model, baseline, strict=True)
  ]
  gain, distance = base_loss - loss, tf.sqrt(tf.add_n(squares))
  is_finite = tf.math.is_finite(gain) & tf.math.is_finite(distance)
  # Both: 0 times what is not finite would not be 0.
  gain, distance = (
    tf.where(is_finite, value, 0.0) for value in (gain, distance)
  )
  return tf.math.divide_no_nan(gain, distance)


def choose_downloads(
  affinity: np.ndarray,
  pool: Sequence[int],
  downloads: Downloads,
  *,
  round_num: int,
  generator: np.random.RandomState,
) -> list[int]:
  """Chooses the models that a client is sent in a round.

  Each of them is with probability max(epsilon - decay t, 0) the next client of
  a random order, else the next one by descending affinity, ties in random
  order. Clients that were chosen already are skipped.

  Args:
    affinity: P of the client, float [clients].
    pool: Clients whose models there are, without the client itself.
    downloads: M, the most that are chosen, with epsilon and its decay.
    round_num: t + 1, the round, counted from 1.
    generator: Draws.

  Returns:
    Numbers of the chosen clients, in the order of the choice.
  """
  num_models, epsilon, decay = downloads
  epsilon = max(epsilon - decay * (round_num - 1), 0.0)
  pool = np.asarray(pool, np.int64)
  at_random = pool[generator.permutation(len(pool))].tolist()
  tied = generator.permutation(len(pool))
  values = np.asarray(affinity)[pool[tied]]
  by_affinity = pool[tied][np.argsort(-values, kind='stable')].tolist()
  # Each goes on where it stopped: what it has passed is chosen.
  at_random, by_affinity = iter(at_random), iter(by_affinity)
  chosen = {}
  while len(chosen) < min(num_models, len(pool)):
    explores = generator.random_sample() < epsilon
    order = at_random if explores else by_affinity
    chosen[next(n for n in order if n not in chosen)] = True
  return list(chosen)

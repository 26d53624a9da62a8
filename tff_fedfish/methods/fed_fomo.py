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
from typing import Any

import numpy as np

from tff_fedfish.fields import number
from tff_fedfish.methods.method import Method
from tff_fedfish.methods.parts import (
  ClientCost,
  Column,
  Downloads,
  PersonalModels,
  Slot,
  Traffic,
)
from tff_fedfish.methods.settings import AlgorithmConfig, settings_unlike

_NUM_DOWNLOADS = 'train/num_downloads'


@dataclasses.dataclass(frozen=True, kw_only=True)
class FedFomoConfig(AlgorithmConfig):
  """Settings of FedFomo: the models that a client is sent in a round."""

  num_downloads: int = number(5, at_least=1, below=4096)
  """M, models of other clients that a client is sent in a round, at most. It
  always weighs its own last model, too."""
  epsilon: float = number(0.3, at_least=0, at_most=1)
  """Probability in round 1 that a download is drawn at random, in [0, 1]; else
  it is the one with the highest affinity."""
  epsilon_decay: float = number(0.05, at_least=0, at_most=1)
  """Decrease of that probability per round, in [0, 1]."""


_EXPECTED = (
  # Nothing is sent that could be clipped, and the server takes no step.
  ('client_work.max_delta_norm', None),
  ('evaluation.barrier_every_num_rounds', 0),
  # The moments would belong to other weights than those a client begins with.
  ('client_work.keeps_optimizer_state', False),
)


def build_fed_fomo(model: Any, *, num_clients: int, **training: Any) -> Any:
  """Builds FedFomo.

  Args:
    model: A FunctionalModel or a ModelSpec whose metrics have a `loss`.
    num_clients: K, the clients that may take part; their positions are below
      it.
    **training: See `rounds.compose.compose`. `server_optimizer` never steps,
      and the client weights weigh nothing.

  Returns:
    The learning process, a `FederatedProcess` with `personal_models`.
    Clients also take `validation`, batches on which losses are computed, and
    `candidates`, <position=int32, weights>: their own last model and those that
    they were sent. They keep `model`, `baseline` and `affinity`, float32 [K].
    The count `num_downloads` says how many models they were sent.
  """
  import tensorflow as tf

  from tff_fedfish.rounds.compose import compose
  from tff_fedfish.rounds.kept import KeptSlot
  from tff_fedfish.runtime.client_data import CANDIDATES, VALIDATION

  return compose(
    model,
    begin=_federated_update(num_clients),
    client_inputs=(VALIDATION, CANDIDATES),
    kept_slots={
      'model': KeptSlot(
        initial=lambda trainable: trainable,
        next=lambda client: client.local.trainable,
      ),
      'baseline': KeptSlot(
        initial=lambda trainable: trainable,
        next=lambda client: client.start.own_model,
      ),
      'affinity': KeptSlot(
        initial=lambda unused_trainable: tf.zeros([num_clients]),
        next=lambda client: client.start.found['affinity'],
      ),
    },
    **training,
  )


def _federated_update(num_clients):
  """Returns `begin` of `compose`: a client's start, with theta and P."""
  import tensorflow as tf

  from tff_fedfish.rounds import local_training
  from tff_fedfish.runtime.client_data import CANDIDATES, VALIDATION

  def begin(functional_model, start):
    validation = start.inputs[VALIDATION]
    base = start.kept['baseline']

    def loss_of(weights):
      metrics = local_training.evaluate(
        functional_model, weights, start.non_trainable, validation
      )
      return functional_model.finalize_metrics(metrics)['loss']

    base_loss = loss_of(base)
    row, mass, count = tf.zeros([num_clients]), 0.0, 0
    total = tf.nest.map_structure(tf.zeros_like, base)
    for candidate in iter(start.inputs[CANDIDATES]):
      tf.autograph.experimental.set_loop_options(parallel_iterations=1)
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
      mass += positive
      count += 1
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
      own_model=theta,
      found={'affinity': start.kept['affinity'] + row},
      # Its own model comes first, and needs no download.
      counts={'num_downloads': tf.maximum(count - 1, 0)},
    )

  return begin


def _raw_weight(base_loss, loss, model, baseline):
  """Returns w_n, float32; 0 at a distance of 0 or where it is not finite."""
  import tensorflow as tf

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


METHOD = Method(
  name='fed_fomo',
  title='FedFomo',
  summary=(
    'Every client has a model of its own, which it moves towards models of '
    'other clients by how much each lowers its validation loss.'
  ),
  source=(
    'Zhang et al. (2021), "Personalized federated learning with first order '
    'model optimization"'
  ),
  settings=FedFomoConfig,
  builder='tff_fedfish.methods.fed_fomo:build_fed_fomo',
  arguments=lambda config: {},
  # The most that is sent; metrics.csv counts what was.
  traffic=lambda config: Traffic(1, config.algorithm.num_downloads),
  # The sum of the differences, and the candidate.
  cost=lambda config: ClientCost(models_held=2),
  # The affinity has one float per client.
  slots=lambda config: (
    Slot('model', 1),
    Slot('baseline', 1),
    Slot('affinity', 0),
  ),
  columns=lambda config: (
    Column(_NUM_DOWNLOADS, ('client_work', 'clients', 'num_downloads')),
  ),
  personal=lambda config: PersonalModels(
    validates=True,
    downloads=Downloads(
      config.algorithm.num_downloads,
      config.algorithm.epsilon,
      config.algorithm.epsilon_decay,
    ),
    downloads_column=_NUM_DOWNLOADS,
  ),
  problems=lambda config: settings_unlike(
    config, _EXPECTED, "with algorithm.name 'fed_fomo'"
  ),
  example='mnist_personal',
  takes_server_step=False,
  hue='#332288',
  hatch='\\\\\\\\',
)

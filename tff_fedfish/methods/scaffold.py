"""SCAFFOLD: control variates take the drift out of local steps.

Karimireddy et al. (2020), "SCAFFOLD: Stochastic controlled averaging for
federated learning", algorithm 1 with option II. Client i corrects the gradient
g of each of its M steps, and then renews its control variate:

  y_i <- y_i - eta (g - h_i),   h_i = c_i - c
  c_i' = h_i + (x - y_i) / (M eta)

The server steps on the mean delta x - y_i, as in FedAvg, and keeps the mean of
the control variates of all K clients:

  c' = (W c + sum_i (w_i' c_i' - w_i c_i)) / W'

The sum is over the clients of the round. With equal weights this is the paper's
c + S / K mean_i (c_i' - c_i) with S clients in the round. Dividing by the
weights of the round instead would make c depend on the order of the clients.

  letter  name             meaning
  x, y_i  -                weights before and after local training
  M, eta  num_steps        local steps and learning rate of a client
  c_i, c  control_variate  mean gradient of client i's last round, mean of all
  w_i     weight           client weight in its last round, 0 before its first
  W       -                sum of the w_i of all K clients
"""

import collections
import dataclasses

from tff_fedfish.errors import require
from tff_fedfish.late import module, tf
from tff_fedfish.methods.method import Method
from tff_fedfish.methods.parts import ClientCost, Traffic
from tff_fedfish.methods.settings import settings_unlike
from tff_fedfish.rounds.client import KeptSlot, MethodState
from tff_fedfish.rounds.compression import FLOAT_BITS

_gradients = module('tff_fedfish.rounds.gradients')

_PLAIN_SGD = (
  ('client_work.optimizer', 'sgd'),
  ('client_work.momentum', 0.0),
  ('client_work.max_gradient_norm', None),
  ('client_work.keeps_optimizer_state', False),
  # Control variates are means of whole deltas.
  ('client_work.max_delta_norm', None),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scaffold(Method):
  """FedAvg whose clients correct every gradient by control variates.

  The correction is the difference between a client's own mean gradient and that
  of all clients. Clients keep a model's worth of state.
  """

  title = 'SCAFFOLD'
  source = (
    'Karimireddy et al. (2020), "SCAFFOLD: Stochastic controlled averaging for '
    'federated learning"'
  )
  hue, hatch = '#56B4E9', '++++'
  reads_num_clients = True

  def correct_gradient(self, start, gradients, weights):
    return tf.nest.map_structure(tf.subtract, gradients, _correction(start))

  def kept(self, num_clients):
    """Returns the slot of (c_i, w_i)."""

    def next_variate(client):
      variate = _gradients.plus_mean_gradient(
        _correction(client.start),
        client.start.trainable,
        client.local.trainable,
        num_steps=client.local.num_steps,
        rate=client.start.hparams['learning_rate'],
      )
      return variate, client.weight

    return {
      'control_variate': KeptSlot(
        initial=lambda trainable: (_zeros_like(trainable), tf.constant(0.0)),
        next=next_variate,
      )
    }

  def state(self, num_clients):
    """Returns c with the sum and the number of the weights w_i > 0 so far.

    Without `num_clients`, K counts the clients that have taken part.
    """

    def total_weight(seen_weight, num_seen):
      """Returns W, the weight of the clients seen so far, scaled to all K.

      It is exact once every client has taken part, or if all weigh the same.
      """
      if num_clients is None:
        return seen_weight
      return seen_weight * tf.math.divide_no_nan(float(num_clients), num_seen)

    def next_state(state, sums, unused_counts):
      change, weight_change, num_new = sums
      seen_weight = state['seen_weight'] + weight_change
      num_seen = state['num_seen'] + num_new
      total_before = total_weight(state['seen_weight'], state['num_seen'])
      total_after = total_weight(seen_weight, num_seen)

      def next_variate(c, change):
        before, after = (
          tf.cast(w, c.dtype) for w in (total_before, total_after)
        )
        mean = tf.math.divide_no_nan(before * c + change, after)
        return tf.where(after > 0, mean, c)

      return collections.OrderedDict(
        control_variate=tf.nest.map_structure(
          next_variate, state['control_variate'], change
        ),
        seen_weight=seen_weight,
        num_seen=num_seen,
      )

    return MethodState(
      initial=lambda specs: collections.OrderedDict(
        control_variate=_zeros_like(specs), seen_weight=0.0, num_seen=0.0
      ),
      terms=_state_terms,
      next=next_state,
    )

  def build(self, model, *, client_optimizer, **training):
    """Builds SCAFFOLD. Its first round is a round of FedAvg.

    `client_optimizer` is plain SGD: option II takes the sum of its steps for
    eta times the sum of gradients. Variates are means of whole deltas, so
    neither `max_delta_norm` nor `delta_bits` may be set.
    """
    is_plain = _is_plain_sgd(client_optimizer)
    require(is_plain, 'client_optimizer', 'plain SGD', client_optimizer)
    bound = training.get('max_delta_norm')
    require(bound is None, 'max_delta_norm', 'None', bound)
    bits = training.get('delta_bits', FLOAT_BITS)
    require(bits == FLOAT_BITS, 'delta_bits', FLOAT_BITS, bits)
    return super().build(model, client_optimizer=client_optimizer, **training)

  def traffic(self, config):
    return Traffic(2, 2)

  def cost(self, config):
    # The correction, the corrected gradients and the server's variate.
    return ClientCost(models_held=3)

  def problems(self, config):
    because = f'with algorithm.name {self.name!r}'
    return settings_unlike(config, _PLAIN_SGD, because)


def _is_plain_sgd(optimizer):
  """Returns whether two steps at rate 1 take exactly their gradients.

  Momentum, moments, clipping, decay and noise change one of them.
  """
  state = optimizer.initialize(tf.TensorSpec([], tf.float32))
  rate = {**optimizer.get_hparams(state), 'learning_rate': 1.0}
  state, weight = optimizer.set_hparams(state, rate), tf.constant(1.0)
  for gradient, expected in ((4096.0, -4095.0), (-8192.0, 4097.0)):
    state, weight = optimizer.next(state, weight, tf.constant(gradient))
    if float(weight) != expected:
      return False
  return True


def _correction(start):
  """Returns h_i."""
  variate, _ = start.kept['control_variate']
  return tf.nest.map_structure(
    tf.subtract, variate, start.method['control_variate']
  )


def _state_terms(client):
  """Returns w_i' c_i' - w_i c_i, w_i' - w_i, and 1 for a new client."""
  old, old_weight = client.start.kept['control_variate']
  new, weight = client.kept_next['control_variate']
  change = tf.nest.map_structure(
    lambda n, o: (
      tf.cast(weight, n.dtype) * n - tf.cast(old_weight, o.dtype) * o
    ),
    new,
    old,
  )
  is_new = tf.cast(tf.equal(old_weight, 0.0), tf.float32)
  return change, weight - old_weight, is_new


def _zeros_like(trainable):
  return tf.nest.map_structure(lambda w: tf.zeros(w.shape, w.dtype), trainable)

"""SCAFFOLD: local steps corrected by control variates that clients keep.

Karimireddy et al. (2020), "SCAFFOLD: Stochastic controlled averaging for
federated learning", algorithm 1 with option II. The letters are those of
`mathematics/control_variates.py`.
"""

import collections

import tensorflow as tf
import tensorflow_federated as tff

from tff_fedfish.errors import require
from tff_fedfish.mathematics import control_variates
from tff_fedfish.methods.tct.corrections import correcting, zeros_like
from tff_fedfish.rounds.client_work import MethodState
from tff_fedfish.rounds.compose import Model, compose
from tff_fedfish.rounds.kept import KeptSlot
from tff_fedfish.rounds.privacy import LocalPrivacy


def build_scaffold(
  model: Model,
  *,
  client_optimizer: tff.learning.optimizers.Optimizer,
  server_optimizer: tff.learning.optimizers.Optimizer,
  num_local_epochs: int = 1,
  num_clients: int | None = None,
  client_weighting: tff.learning.ClientWeighting = (
    tff.learning.ClientWeighting.NUM_EXAMPLES
  ),
  max_delta_norm: float | None = None,
  num_local_steps: int | None = None,
  micro_batch_size: int | None = None,
  local_privacy: LocalPrivacy | None = None,
) -> tff.learning.templates.LearningProcess:
  """Builds SCAFFOLD.

  Clients keep c_i and send its change beside the model delta; the server keeps
  c and sends it beside the model.

  Args:
    model: A FunctionalModel, or a ModelSpec for weights drawn in the graph.
    client_optimizer: Plain SGD; option II reads its learning rate and takes the
      sum of its steps for the sum of the gradients.
    server_optimizer: See `build_fed_avg`.
    num_local_epochs: See `build_fed_avg`.
    num_clients: K, the clients that may take part. None: as many as there are
      in a round.
    client_weighting: See `build_fed_avg`; weighs the changes of c_i, too.
    max_delta_norm: Must be None.
    num_local_steps: See `build_fed_avg`.
    micro_batch_size: See `build_fed_avg`.
    local_privacy: See `build_fed_avg`.

  Returns:
    The learning process, a `StatefulLearningProcess`; metrics `client_work`,
    `aggregator`, `finalizer`. In its first round it is FedAvg.

  Raises:
    ValueError: If an argument is outside what is listed.
  """
  wanted = 'None: control variates are means of whole deltas'
  require(max_delta_norm is None, 'max_delta_norm', wanted, max_delta_norm)
  is_count = isinstance(num_clients, int) and num_clients >= 1
  wanted = 'an integer of at least 1 or None'
  require(num_clients is None or is_count, 'num_clients', wanted, num_clients)
  correction_of, kept_slots, method_state = _parts(num_clients)
  return compose(
    model,
    client_optimizer=client_optimizer,
    server_optimizer=server_optimizer,
    num_local_epochs=num_local_epochs,
    client_weighting=client_weighting,
    make_update=lambda client: client.model_delta(),
    aggregation_factory=tff.aggregators.MeanFactory(no_nan_division=True),
    build_correct_gradient=correcting(correction_of),
    method_state=method_state,
    kept_slots=kept_slots,
    max_delta_norm=max_delta_norm,
    num_local_steps=num_local_steps,
    micro_batch_size=micro_batch_size,
    local_privacy=local_privacy,
  )


def _parts(num_clients):
  """Returns (start -> h_i, what clients keep, what the server keeps)."""

  def correction_of(start):
    variate, _ = start.kept['control_variate']
    return control_variates.correction(variate, start.method['control_variate'])

  def next_kept(client):
    variate = control_variates.plus_mean_step(
      correction_of(client.start),
      client.start.trainable,
      client.local.trainable,
      num_steps=client.local.num_steps,
      learning_rate=client.start.hparams['learning_rate'],
    )
    return variate, client.weight

  def summands(client):
    (old, old_weight), (new, weight) = (
      kept['control_variate'] for kept in (client.start.kept, client.kept)
    )
    change = tf.nest.map_structure(
      lambda n, o: (
        tf.cast(weight, n.dtype) * n - tf.cast(old_weight, o.dtype) * o
      ),
      new,
      old,
    )
    is_new = tf.cast(tf.equal(old_weight, 0.0), tf.float32)
    return change, weight - old_weight, is_new

  def next_state(state, sums, unused_counts):
    change, weight_change, num_new = sums
    seen_weight = state['seen_weight'] + weight_change
    num_seen = state['num_seen'] + num_new
    variate = control_variates.next_server_control_variate(
      state['control_variate'],
      change,
      control_variates.total_weight(
        state['seen_weight'], state['num_seen'], num_clients
      ),
      control_variates.total_weight(seen_weight, num_seen, num_clients),
    )
    return collections.OrderedDict(
      control_variate=variate, seen_weight=seen_weight, num_seen=num_seen
    )

  slot = KeptSlot(
    initial=lambda trainable: (zeros_like(trainable), tf.constant(0.0)),
    next=next_kept,
  )
  state = MethodState(
    initial=lambda specs: collections.OrderedDict(
      control_variate=zeros_like(specs), seen_weight=0.0, num_seen=0.0
    ),
    summands=summands,
    next=next_state,
  )
  return correction_of, {'control_variate': slot}, state

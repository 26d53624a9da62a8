"""Local training only: every client has a model of its own.

Clients send nothing. All begin with the server's initial weights; the server
keeps these.
"""

import tensorflow_federated as tff

from tff_fedfish.rounds.compose import Model, OwnModel, compose
from tff_fedfish.rounds.kept import KeptSlot
from tff_fedfish.rounds.privacy import LocalPrivacy


def build_local_only(
  model: Model,
  *,
  client_optimizer: tff.learning.optimizers.Optimizer,
  server_optimizer: tff.learning.optimizers.Optimizer,
  num_local_epochs: int = 1,
  client_weighting: tff.learning.ClientWeighting = (
    tff.learning.ClientWeighting.NUM_EXAMPLES
  ),
  num_local_steps: int | None = None,
  micro_batch_size: int | None = None,
  keeps_optimizer_state: bool = False,
  local_privacy: LocalPrivacy | None = None,
) -> tff.learning.templates.LearningProcess:
  """Builds local training: clients go on with the models they trained last.

  Args:
    model: A FunctionalModel, or a ModelSpec for weights drawn in the graph.
    client_optimizer: See `build_fed_avg`.
    server_optimizer: Not used; the server has nothing to step on.
    num_local_epochs: See `build_fed_avg`.
    client_weighting: See `build_fed_avg`; it weighs nothing.
    num_local_steps: See `build_fed_avg`.
    micro_batch_size: See `build_fed_avg`.
    keeps_optimizer_state: See `build_fed_avg`.
    local_privacy: See `build_fed_avg`.

  Returns:
    The learning process, a `StatefulLearningProcess` with `personal_models`;
    metrics `client_work`, `aggregator`, `finalizer`.
  """
  slot = KeptSlot(
    initial=lambda trainable: trainable,
    next=lambda client: client.local.trainable,
  )
  return compose(
    model,
    client_optimizer=client_optimizer,
    server_optimizer=server_optimizer,
    num_local_epochs=num_local_epochs,
    client_weighting=client_weighting,
    begin=lambda unused_model, start: OwnModel(start.kept['model']),
    kept_slots={'model': slot},
    keeps_optimizer_state=keeps_optimizer_state,
    num_local_steps=num_local_steps,
    micro_batch_size=micro_batch_size,
    local_privacy=local_privacy,
  )

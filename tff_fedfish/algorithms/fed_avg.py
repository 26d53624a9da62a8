"""FedAvg with a server optimizer (FedOpt).

McMahan et al. (2017), "Communication-efficient learning of deep networks from
decentralized data"; Reddi et al. (2021), "Adaptive federated optimization".

  delta_i = theta_G - theta_i after E local epochs on client i
  g = sum_i w_i delta_i / sum_i w_i
  theta_G <- server optimizer step on g (SGD with rate 1 is FedAvg)
"""

import tensorflow_federated as tff

from tff_fedfish.rounds.compose import Model, compose
from tff_fedfish.rounds.privacy import LocalPrivacy


def build_fed_avg(
  model: Model,
  *,
  client_optimizer: tff.learning.optimizers.Optimizer,
  server_optimizer: tff.learning.optimizers.Optimizer,
  num_local_epochs: int = 1,
  client_weighting: tff.learning.ClientWeighting = (
    tff.learning.ClientWeighting.NUM_EXAMPLES
  ),
  max_delta_norm: float | None = None,
  num_local_steps: int | None = None,
  micro_batch_size: int | None = None,
  keeps_optimizer_state: bool = False,
  local_privacy: LocalPrivacy | None = None,
) -> tff.learning.templates.LearningProcess:
  """Builds FedAvg.

  It differs from `tff.learning.algorithms.build_weighted_fed_avg` by looping
  over local epochs itself (a client weighs the rows of one pass), by client
  hyperparameters that can be set between rounds, and by leaving the server
  untouched in a round without information.

  Args:
    model: A FunctionalModel, or a ModelSpec for weights drawn in the graph.
    client_optimizer: Local optimizer.
    server_optimizer: Consumes the mean model delta as a gradient.
    num_local_epochs: E, passes over a client's data per round, >= 1.
    client_weighting: w_i: the rows that were trained on, each counted once, or
      1.
    max_delta_norm: Bound on the global L2 norm of delta_i over all trainable
      tensors, > 0; a longer one is scaled down to it before it is weighed.
      None: no bound.
    num_local_steps: H, >= 1: a client stops after so many steps. None: after E
      passes.
    micro_batch_size: Rows of a batch that pass through the model at a time, >=
      1; their gradients are averaged. None: all.
    keeps_optimizer_state: Whether clients keep the state of their optimizer
      between rounds; the process is a `StatefulLearningProcess` then.
    local_privacy: Makes clients train by DP-SGD, see `compose`. None: not.

  Returns:
    The learning process; metrics `client_work`, `aggregator`, `finalizer`.

  Raises:
    ValueError: If an argument is outside what is listed.
  """
  return compose(
    model,
    client_optimizer=client_optimizer,
    server_optimizer=server_optimizer,
    num_local_epochs=num_local_epochs,
    client_weighting=client_weighting,
    make_update=lambda client: client.model_delta(),
    # Without the guard an empty cohort would be 0/0.
    aggregation_factory=tff.aggregators.MeanFactory(no_nan_division=True),
    max_delta_norm=max_delta_norm,
    num_local_steps=num_local_steps,
    micro_batch_size=micro_batch_size,
    local_privacy=local_privacy,
    keeps_optimizer_state=keeps_optimizer_state,
  )

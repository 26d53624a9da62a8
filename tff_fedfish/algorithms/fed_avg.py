"""FedAvg with a server optimizer (FedOpt).

McMahan et al. (2017), "Communication-efficient learning of deep networks from
decentralized data"; Reddi et al. (2021), "Adaptive federated optimization".

  delta_i = theta_G - theta_i after E local epochs on client i
  g = sum_i w_i delta_i / sum_i w_i
  theta_G <- server optimizer step on g (SGD with rate 1 is FedAvg)
"""

import tensorflow as tf
import tensorflow_federated as tff

from tff_fedfish import local_training
from tff_fedfish.algorithms.slots.client_work import ClientUpdate
from tff_fedfish.algorithms.slots.compose import compose, require_local_epochs
from tff_fedfish.algorithms.slots.initial_weights import Model


def build_fed_avg(
  model: Model,
  *,
  client_optimizer: tff.learning.optimizers.Optimizer,
  server_optimizer: tff.learning.optimizers.Optimizer,
  num_local_epochs: int = 1,
  client_weighting: tff.learning.ClientWeighting = (
    tff.learning.ClientWeighting.NUM_EXAMPLES
  ),
) -> tff.learning.templates.LearningProcess:
  """Builds FedAvg.

  It differs from `tff.learning.algorithms.build_weighted_fed_avg` by looping
  over local epochs itself (a client weighs the rows of one pass), by client
  hyperparameters that can be set between rounds, and by leaving the server
  untouched in a round without information.

  Args:
    model: A FunctionalModel, or a ModelSpec for weights drawn in the graph.
    client_optimizer: Local optimizer; its state starts anew every round.
    server_optimizer: Consumes the mean model delta as a gradient.
    num_local_epochs: E, passes over a client's data per round, >= 1.
    client_weighting: w_i: rows of one pass, or 1.

  Returns:
    The learning process; metrics `client_work`, `aggregator`, `finalizer`.

  Raises:
    ValueError: If `num_local_epochs` is below 1.
  """
  require_local_epochs(num_local_epochs)

  def client_update(
    functional_model, hparams, trainable, non_trainable, dataset
  ):
    local = local_training.train(
      functional_model,
      client_optimizer,
      hparams,
      trainable,
      non_trainable,
      dataset,
      num_local_epochs=num_local_epochs,
    )
    model_delta = tf.nest.map_structure(tf.subtract, trainable, local.trainable)
    return ClientUpdate(model_delta, local.num_examples, local.metrics)

  return compose(
    model,
    client_optimizer=client_optimizer,
    server_optimizer=server_optimizer,
    client_weighting=client_weighting,
    client_update=client_update,
    # Without the guard an empty cohort would be 0/0.
    aggregation_factory=tff.aggregators.MeanFactory(no_nan_division=True),
  )

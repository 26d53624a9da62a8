"""FedFish: aggregation in function space by Fisher-weighted model deltas.

Dhawan et al. (2024), "Leveraging function space aggregation for federated
learning at scale", algorithms 1 and 2:

  client i:  theta_i after E local epochs, delta_i = theta_G - theta_i,
             F_i[j] = sum over batches of (d mean loss / d theta_i[j])^2
  server:    g[j] = sum_i w_i F_i[j] delta_i[j] / sum_i w_i F_i[j]
             theta_G <- server optimizer step on g
"""

import tensorflow_federated as tff

from tff_fedfish import fisher, local_training
from tff_fedfish.algorithms.slots.compose import TrainedClient, compose
from tff_fedfish.algorithms.slots.fisher_weighted_mean import (
  DeltaAndFisher,
  FisherWeightedMeanFactory,
)
from tff_fedfish.algorithms.slots.initial_weights import Model

FISHER_ESTIMATORS = ('extra_pass', 'last_epoch', 'example_sq')
FISHER_REDUCTIONS = ('sum', 'mean')


def build_fed_fish(
  model: Model,
  *,
  client_optimizer: tff.learning.optimizers.Optimizer,
  server_optimizer: tff.learning.optimizers.Optimizer,
  num_local_epochs: int = 1,
  fisher_estimator: str = 'extra_pass',
  fisher_reduction: str = 'sum',
  client_weighting: tff.learning.ClientWeighting = (
    tff.learning.ClientWeighting.NUM_EXAMPLES
  ),
  relative_floor: float = 1e-8,
) -> tff.learning.templates.LearningProcess:
  """Builds FedFish.

  Args:
    model: A FunctionalModel, or a ModelSpec for weights drawn in the graph.
    client_optimizer: Local optimizer; its state starts anew every round.
    server_optimizer: Consumes the Fisher-weighted mean delta as a gradient.
    num_local_epochs: E, passes over a client's data per round, >= 1.
    fisher_estimator: Which squared gradients make F_i. 'extra_pass': of every
      batch at the final local weights, for one more pass (algorithm 2).
      'last_epoch': of the steps of epoch E themselves, for free (appendix
      A.5.1 of the paper). 'example_sq': like extra_pass with batches of one
      row, which costs a backward pass per row.
    fisher_reduction: 'sum' over batches as printed, or 'mean'.
    client_weighting: w_i: rows of one pass, or 1. With 'sum' and NUM_EXAMPLES,
      the printed algorithm, the amount of data counts twice.
    relative_floor: See `fisher.fisher_weighted_terms`.

  Returns:
    The learning process; metrics `client_work`, `aggregator`, `finalizer`.

  Raises:
    ValueError: If an argument is outside what is listed.
  """
  _require_one_of('fisher_estimator', fisher_estimator, FISHER_ESTIMATORS)
  _require_one_of('fisher_reduction', fisher_reduction, FISHER_REDUCTIONS)

  def observe(trainable):
    return local_training.GradientObserver(
      fisher.zero_sums(trainable), fisher.add_batch
    )

  def make_update(client: TrainedClient) -> DeltaAndFisher:
    if fisher_estimator == 'last_epoch':
      sums = client.observation
    else:
      dataset = client.dataset
      if fisher_estimator == 'example_sq':
        dataset = dataset.unbatch().batch(1)
      sums = fisher.sums_over(
        client.model, client.trainable, client.non_trainable, dataset
      )
    return DeltaAndFisher(
      client.model_delta(after=sums),
      fisher.fisher_diagonal_from_sums(sums, fisher_reduction),
    )

  return compose(
    model,
    client_optimizer=client_optimizer,
    server_optimizer=server_optimizer,
    num_local_epochs=num_local_epochs,
    client_weighting=client_weighting,
    make_update=make_update,
    aggregation_factory=FisherWeightedMeanFactory(relative_floor),
    build_observer=observe if fisher_estimator == 'last_epoch' else None,
  )


def _require_one_of(name, value, allowed):
  if value not in allowed:
    raise ValueError(
      f'`{name}` must be one of {", ".join(allowed)}, found {value!r}.'
    )

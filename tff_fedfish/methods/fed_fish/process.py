"""FedFish: aggregation in function space by Fisher-weighted model deltas.

Dhawan et al. (2024), "Leveraging function space aggregation for federated
learning at scale", algorithms 1 and 2:

  client i:  theta_i after E local epochs, delta_i = theta_G - theta_i,
             F_i[j] = sum over batches of (d mean loss / d theta_i[j])^2
  server:    g[j] = sum_i w_i F_i[j] delta_i[j] / sum_i w_i F_i[j]
             theta_G <- server optimizer step on g
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from models.functional_model import ModelSpec
from models.model_shapes import weight_shapes
from models.transformer_config import LOGITS_TENSORS
from tff_fedfish.errors import require, require_one_of
from tff_fedfish.methods.fed_fish import fisher_diagonal
from tff_fedfish.methods.fed_fish.fisher_weighted_mean import (
  DeltaAndFisher,
  FisherWeightedMeanFactory,
)
from tff_fedfish.rounds import local_training
from tff_fedfish.rounds.compose import Model, Trained, compose
from tff_fedfish.rounds.privacy import LocalPrivacy

FISHER_ESTIMATORS = ('extra_pass', 'last_epoch', 'example_sq', 'second_moment')
PLAIN_MEAN_TENSORS = ('none', 'logits')


def build_fed_fish(
  model: Model,
  *,
  client_optimizer: tff.learning.optimizers.Optimizer,
  server_optimizer: tff.learning.optimizers.Optimizer,
  num_local_epochs: int = 1,
  fisher_estimator: str = 'extra_pass',
  fisher_reduction: str = 'sum',
  fisher_normalization: str = 'none',
  fisher_power: float = 1.0,
  plain_mean_fraction: float = 0.0,
  plain_mean_tensors: str = 'none',
  client_weighting: tff.learning.ClientWeighting = (
    tff.learning.ClientWeighting.NUM_EXAMPLES
  ),
  relative_floor: float = 1e-8,
  max_delta_norm: float | None = None,
  num_local_steps: int | None = None,
  micro_batch_size: int | None = None,
  keeps_optimizer_state: bool = False,
  local_privacy: LocalPrivacy | None = None,
) -> tff.learning.templates.LearningProcess:
  """Builds FedFish.

  Diagonals are in (nats / weight)^2; their scale cancels in g where all clients
  share it, and so differs by estimator.

  Args:
    model: A FunctionalModel, or a ModelSpec for weights drawn in the graph.
    client_optimizer: Local optimizer; its state starts from zero every round.
    server_optimizer: Consumes the Fisher-weighted mean delta as a gradient.
    num_local_epochs: E, passes over a client's data per round, >= 1.
    fisher_estimator: Which squared gradients make F_i. 'extra_pass': of every
      batch at the final local weights, for one more pass (algorithm 2).
      'last_epoch': of the steps of epoch E themselves, for free (appendix
      A.5.1 of the paper). 'example_sq': like extra_pass with batches of one
      row, which costs a backward pass per row. 'second_moment': the client
      optimizer's own, for free, see `fisher_diagonal.second_moment_sums`.
    fisher_reduction: 'sum' over batches as printed, or 'mean'. Not of
      'second_moment', which is a mean.
    fisher_normalization: 'none', or 'tensor_mean' for the same mass of every
      client in each tensor of a layer, see
      `fisher_diagonal.fisher_diagonal_from_sums`.
    fisher_power: p, in [0, 1]: F_i^p weighs. 1 as printed. 0 is FedAvg: no
      Fisher diagonal is computed or sent.
    plain_mean_fraction: s, in [0, 1]: part of FedAvg's mean in g, see
      `fisher.mixed_mean`. 0 as printed. 1 is FedAvg, as with p = 0.
    plain_mean_tensors: 'none', or 'logits': the tensors that make a language
      model's logits take FedAvg's mean; a tied embedding does so as a whole,
      with the rows of the input. The model is then a ModelSpec that names them.
    client_weighting: w_i: the rows that were trained on, each counted once, or
      1. With 'sum' and NUM_EXAMPLES, the printed algorithm, the amount of data
      counts twice.
    relative_floor: See `fisher.fisher_weighted_terms`.
    max_delta_norm: Bound on the global L2 norm of delta_i over all trainable
      tensors, > 0; a longer one is scaled down to it before it is weighed. Not
      in the paper. None: no bound.
    num_local_steps: H, >= 1: a client stops after so many steps. None: after E
      passes. 'last_epoch' then squares the gradients of the last ceil(n / B)
      steps, n the rows that were trained on, each counted once; the other
      estimators make their pass over these rows.
    micro_batch_size: Rows of a batch that pass through the model at a time, >=
      1; their gradients are averaged before they are squared. None: all.
    keeps_optimizer_state: See `build_fed_avg`; not with 'second_moment'.
    local_privacy: See `build_fed_avg`.

  Returns:
    The learning process; metrics `client_work`, `aggregator`, `finalizer`.

  Raises:
    ValueError: If an argument is outside what is listed.
  """
  require_one_of('fisher_estimator', fisher_estimator, FISHER_ESTIMATORS)
  require_one_of(
    'fisher_reduction', fisher_reduction, fisher_diagonal.REDUCTIONS
  )
  require_one_of(
    'fisher_normalization', fisher_normalization, fisher_diagonal.NORMALIZATIONS
  )
  if fisher_estimator == 'second_moment':
    wanted = "False with fisher_estimator 'second_moment'"
    require(
      not keeps_optimizer_state,
      'keeps_optimizer_state',
      wanted,
      keeps_optimizer_state,
    )
  _require_fraction('fisher_power', fisher_power)
  _require_fraction('plain_mean_fraction', plain_mean_fraction)
  require_one_of('plain_mean_tensors', plain_mean_tensors, PLAIN_MEAN_TENSORS)
  shared = dict(
    client_optimizer=client_optimizer,
    server_optimizer=server_optimizer,
    num_local_epochs=num_local_epochs,
    client_weighting=client_weighting,
    max_delta_norm=max_delta_norm,
    num_local_steps=num_local_steps,
    local_privacy=local_privacy,
    micro_batch_size=micro_batch_size,
    keeps_optimizer_state=keeps_optimizer_state,
  )
  if fisher_power == 0 or plain_mean_fraction == 1:
    return compose(
      model,
      make_update=lambda client: client.model_delta(),
      aggregation_factory=tff.aggregators.MeanFactory(no_nan_division=True),
      **shared,
    )
  wanted = "'last_epoch' with local_privacy: others read data without noise"
  is_noised = local_privacy is None or fisher_estimator == 'last_epoch'
  require(is_noised, 'fisher_estimator', wanted, fisher_estimator)
  flags = _flags(model, plain_mean_tensors)

  @tf.autograph.experimental.do_not_convert
  def weighted(tensors):
    """Returns those of the trainable tensors that are weighed by F."""
    if not flags:
      return tensors
    return tuple(t for t, f in zip(tensors, flags, strict=True) if not f)

  is_stacked = model.is_stacked if isinstance(model, ModelSpec) else None
  if is_stacked:
    is_stacked = weighted(is_stacked)

  def build_observer(trainable):
    def observe(sums, gradients, unused_num_examples):
      return fisher_diagonal.add_batch(sums, weighted(gradients))

    return local_training.GradientObserver(
      fisher_diagonal.zero_sums(weighted(trainable)), observe
    )

  def make_update(client: Trained):
    if fisher_estimator == 'last_epoch':
      sums = client.local.observation
    elif fisher_estimator == 'second_moment':
      sums = fisher_diagonal.second_moment_sums(client.local.optimizer_state)
      squares = weighted(sums.squared_gradients)
      sums = sums._replace(squared_gradients=squares)
    else:
      sums = fisher_diagonal.estimate_fisher_sums(
        fisher_estimator,
        client.model,
        client.local.trainable,
        client.non_trainable,
        client.local.dataset,
        select=weighted,
        micro_batch_size=micro_batch_size,
      )
    model_delta, counts = client.model_delta(after=sums)
    diagonal = fisher_diagonal.fisher_diagonal_from_sums(
      sums,
      fisher_reduction,
      fisher_normalization,
      fisher_power,
      is_stacked=is_stacked,
    )
    return DeltaAndFisher(model_delta, diagonal), counts

  return compose(
    model,
    make_update=make_update,
    aggregation_factory=FisherWeightedMeanFactory(
      relative_floor,
      plain_mean_fraction=plain_mean_fraction,
      takes_plain_mean=flags,
    ),
    build_observer=build_observer if fisher_estimator == 'last_epoch' else None,
    **shared,
  )


def client_mass(config: Any) -> Callable[..., Any]:
  """Returns the mass function of `Method.client_mass`: w F^p of the round.

  Args:
    config: A `TrainConfig` of this method.
  """
  settings, names = config.algorithm, weight_shapes(config.model_shape())
  if settings.is_plain_mean:
    return lambda update, client_weight, state: [client_weight] * len(names)
  flags = ()
  if settings.plain_mean_tensors == 'logits':
    flags = [name in LOGITS_TENSORS for name in names]
  return FisherWeightedMeanFactory(
    settings.relative_floor, takes_plain_mean=flags
  ).client_mass


def _require_fraction(name, value):
  require(0 <= value <= 1, name, 'at least 0 and at most 1', value)


def _flags(model, plain_mean_tensors):
  """Returns whether each trainable tensor takes the plain mean; (): none."""
  if plain_mean_tensors == 'none':
    return ()
  if not isinstance(model, ModelSpec) or model.makes_logits is None:
    raise ValueError(
      "`plain_mean_tensors` 'logits' requires a language model: a ModelSpec "
      f'with `makes_logits`, found {type(model).__name__} without. Use '
      "`build_language_model`, or 'none'."
    )
  return model.makes_logits

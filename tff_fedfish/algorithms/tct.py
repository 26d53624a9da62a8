"""TCT: a network for some rounds, then SCAFFOLD on its linearisation.

Yu et al. (2022), "TCT: Convexifying federated learning using bootstrapped
neural tangent kernels", algorithms 1 and 2. The letters are those of
`mathematics/gram_regression.py`; what a client keeps is that of SCAFFOLD's
exchange of one model.

Clients are fed with batches <x=<features, ...>, y> of the features that they
computed of their rows: `features` float16 [batch, p], `y` int32 [batch], the
classes.
"""

import collections
import dataclasses
import typing
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from models import linearized
from models.functional_model import ModelSpec
from tff_fedfish import tangent_features
from tff_fedfish.algorithms.slots.client_work import MethodState
from tff_fedfish.algorithms.slots.compose import compose
from tff_fedfish.algorithms.slots.corrections import (
  correcting,
  one_model_slots,
)
from tff_fedfish.batch_gradients import BatchOutput, num_rows, split_batch
from tff_fedfish.errors import require_one_of
from tff_fedfish.local_training import LocalResult
from tff_fedfish.mathematics import gram_regression

if typing.TYPE_CHECKING:
  from tff_fedfish.config.schema import TrainConfig

SOLVERS = ('gram', 'steps')

_ModelWeights = tff.learning.models.ModelWeights


def build_feature_sums(
  model: ModelSpec,
  *,
  client_optimizer: tff.learning.optimizers.Optimizer,
  server_optimizer: tff.learning.optimizers.Optimizer,
  num_features: int,
  client_weighting: tff.learning.ClientWeighting = (
    tff.learning.ClientWeighting.NUM_EXAMPLES
  ),
  num_local_epochs: int = 1,
  num_local_steps: int | None = None,
  micro_batch_size: int | None = None,
) -> tff.learning.templates.LearningProcess:
  """Builds the round that sums up features.

  Args:
    model: The network, whose weights stay as they are.
    client_optimizer: Gives only the type of the state.
    server_optimizer: Not used: there is no pseudo-gradient.
    num_features: p.
    client_weighting: Not used: a row counts as one.
    num_local_epochs: Not used, as the next two.
    num_local_steps: See there.
    micro_batch_size: See there.

  Returns:
    The learning process. After a round the method's state holds `num_rows`,
    `sums` and `square_sums`, float64 [p]: n, sum z and sum z^2 over the rows of
    all clients. Metric `num_dead`: features that are constant up to rounding.
  """
  del num_local_steps, micro_batch_size
  reading = _reading(model, num_features)

  def sum_up(start, dataset):
    count, sums, squares = _zero_sums(num_features)
    for batch in iter(dataset):
      tf.autograph.experimental.set_loop_options(parallel_iterations=1)
      x, _ = split_batch(batch)
      z = tf.cast(x['features'], tf.float64)
      count += tf.cast(num_rows(batch), tf.float64)
      sums += tf.reduce_sum(z, axis=0)
      squares += tf.reduce_sum(tf.square(z), axis=0)
    return _local_result(
      start.trainable,
      reading.functional_model.initialize_metrics_state(),
      tf.cast(count, tf.int64),
      dataset,
      observation=(count, sums, squares),
    )

  def next_state(unused_state, sums, unused_counts):
    count, first, second = sums
    mean = tf.math.divide_no_nan(first, count)
    variance = tf.math.divide_no_nan(second, count) - tf.square(mean)
    is_dead = variance <= gram_regression.VARIANCE_ROUNDING * tf.square(mean)
    return collections.OrderedDict(
      num_rows=count,
      sums=first,
      square_sums=second,
      num_dead=tf.reduce_sum(tf.cast(is_dead, tf.int32)),
    )

  def initial_state(unused_specs):
    count, sums, squares = _zero_sums(num_features)
    return collections.OrderedDict(
      num_rows=count, sums=sums, square_sums=squares, num_dead=tf.constant(0)
    )

  return compose(
    reading,
    client_optimizer=client_optimizer,
    server_optimizer=server_optimizer,
    num_local_epochs=num_local_epochs,
    client_weighting=client_weighting,
    make_update=lambda client: client.model_delta(),
    aggregation_factory=tff.aggregators.MeanFactory(no_nan_division=True),
    method_state=MethodState(
      initial=initial_state,
      summands=lambda client: client.local.observation,
      next=next_state,
      reported_after=('num_dead',),
    ),
    local_work=sum_up,
  )


def build_convex(
  model: ModelSpec,
  *,
  client_optimizer: tff.learning.optimizers.Optimizer,
  server_optimizer: tff.learning.optimizers.Optimizer,
  num_steps: int,
  step_size: float,
  loss_scale: str = 'half_mean',
  solver: str = 'gram',
  client_weighting: tff.learning.ClientWeighting = (
    tff.learning.ClientWeighting.NUM_EXAMPLES
  ),
  num_local_epochs: int = 1,
  num_local_steps: int | None = None,
  micro_batch_size: int | None = None,
) -> tff.learning.templates.LearningProcess:
  """Builds SCAFFOLD on a regression on features, in full gradient steps.

  Args:
    model: As `models.linearized.build_feature_classifier` makes it.
    client_optimizer: Not used: clients take plain steps.
    server_optimizer: SGD with the rate 1.
    num_steps: M, >= 1.
    step_size: eta > 0.
    loss_scale: See `gram_regression`.
    solver: 'gram': all steps at once; x of the batches also has `vectors`,
      float64 [batch, n], rows of U, and `power_sums`, float64 [2, n], S_1 and
      S_2. A client whose U has no columns takes the steps one by one. 'steps':
      all do.
    client_weighting: q_k: rows, or 1. Every client must take part in every
      round.
    num_local_epochs: Not used, as the next two.
    num_local_steps: See there.
    micro_batch_size: See there.

  Returns:
    The learning process, a `StatefulLearningProcess`. Its metrics are those of
    the server's model before the round, and `imbalance`: |sum_k q_k h_k| /
    sum_k q_k |h_k|, which is 0 but for rounding.

  Raises:
    ValueError: If the solver or the loss scale is unknown.
  """
  del client_optimizer, num_local_steps, micro_batch_size
  require_one_of('solver', solver, SOLVERS)
  require_one_of('loss_scale', loss_scale, gram_regression.LOSS_SCALES)
  kernel, _ = model.functional_model.initial_weights[0]
  num_features, num_classes = kernel.shape
  reading = _reading(model, num_features, with_basis=solver == 'gram')
  functional_model = reading.functional_model
  correction_of, slots = one_model_slots(num_steps)

  def z_and_targets(batch, mean, std):
    """Returns Z and Y of a batch, Z without the column of ones."""
    x, y = split_batch(batch)
    z = (tf.cast(x['features'], tf.float32) - mean) / std
    return z, tf.one_hot(y, num_classes) - 1 / num_classes

  def scale_of(count):
    return gram_regression.scale_of(
      loss_scale, tf.maximum(tf.cast(count, tf.float32), 1.0)
    )

  def local_work(start, dataset):
    mean, std = start.non_trainable[-2:]
    (v, v_bias), (h, h_bias) = start.trainable, correction_of(start)
    metrics = functional_model.initialize_metrics_state()
    count, num_vectors = tf.constant(0, tf.int64), tf.constant(0)
    if solver == 'gram':
      for batch in iter(dataset.take(1)):
        x, _ = split_batch(batch)
        num_vectors = tf.shape(x['power_sums'])[1]
    # U^T (Z V - Y) and U^T Z h, S_1 and S_2.
    residuals = tf.zeros([num_vectors, num_classes], tf.float64)
    drifts = tf.zeros([num_vectors, num_classes], tf.float64)
    sums = tf.zeros([2, num_vectors], tf.float64)
    for batch in iter(dataset):
      tf.autograph.experimental.set_loop_options(parallel_iterations=1)
      x, y = split_batch(batch)
      z, targets = z_and_targets(batch, mean, std)
      logits = z @ v + v_bias
      metrics = functional_model.update_metrics_state(
        metrics,
        labels=y,
        batch_output=BatchOutput(
          functional_model.loss(output=logits, label=y),
          logits,
          num_rows(batch),
        ),
      )
      count += num_rows(batch)
      if solver == 'gram':
        vectors = x['vectors']
        residuals += tf.matmul(
          vectors, tf.cast(logits - targets, tf.float64), transpose_a=True
        )
        drifts += tf.matmul(
          vectors, tf.cast(z @ h + h_bias, tf.float64), transpose_a=True
        )
        sums = x['power_sums']
    scale = scale_of(count)

    def at_once():
      """Returns V_M, from the sum of the residuals that the steps see."""
      inner = (
        sums[0][:, tf.newaxis] * residuals
        + step_size * sums[1][:, tf.newaxis] * drifts
      )
      step, bias_step = tf.zeros_like(v), tf.zeros_like(v_bias)
      for batch in iter(dataset):
        tf.autograph.experimental.set_loop_options(parallel_iterations=1)
        x, _ = split_batch(batch)
        z, _ = z_and_targets(batch, mean, std)
        rows = tf.cast(tf.matmul(x['vectors'], inner), tf.float32)
        step += tf.matmul(z, rows, transpose_a=True)
        bias_step += tf.reduce_sum(rows, axis=0)
      return (
        v + step_size * (num_steps * h - scale * step),
        v_bias + step_size * (num_steps * h_bias - scale * bias_step),
      )

    def step_by_step():
      kernel, bias = v, v_bias
      for _ in tf.range(num_steps):
        gradient, bias_gradient = tf.zeros_like(v), tf.zeros_like(v_bias)
        for batch in iter(dataset):
          tf.autograph.experimental.set_loop_options(parallel_iterations=1)
          z, targets = z_and_targets(batch, mean, std)
          rows = z @ kernel + bias - targets
          gradient += tf.matmul(z, rows, transpose_a=True)
          bias_gradient += tf.reduce_sum(rows, axis=0)
        kernel -= step_size * (scale * gradient - h)
        bias -= step_size * (scale * bias_gradient - h_bias)
      return kernel, bias

    if solver == 'gram':
      solution = tf.cond(num_vectors > 0, at_once, step_by_step)
    else:
      solution = step_by_step()
    return _local_result(solution, metrics, count, dataset, num_steps=num_steps)

  return compose(
    reading,
    client_optimizer=tff.learning.optimizers.build_sgdm(step_size),
    server_optimizer=server_optimizer,
    num_local_epochs=num_local_epochs,
    client_weighting=client_weighting,
    make_update=lambda client: client.model_delta(),
    aggregation_factory=tff.aggregators.MeanFactory(no_nan_division=True),
    method_state=_imbalance(),
    kept_slots=slots,
    local_work=local_work,
  )


def build_full_convex(
  model: ModelSpec,
  *,
  client_optimizer: tff.learning.optimizers.Optimizer,
  server_optimizer: tff.learning.optimizers.Optimizer,
  num_local_steps: int,
  step_size: float,
  client_weighting: tff.learning.ClientWeighting,
  num_local_epochs: int = 1,
  micro_batch_size: int | None = None,
) -> tff.learning.templates.LearningProcess:
  """Builds SCAFFOLD on a network that is linear in its weights' change.

  Args:
    model: As `models.linearized.build_full_linearization` makes it.
    client_optimizer: Not used: clients take plain steps.
    server_optimizer: SGD with the rate 1.
    num_local_steps: M, the steps of every client in every round.
    step_size: eta > 0.
    client_weighting: UNIFORM. Every client must take part in every round.
    num_local_epochs: See `build_fed_avg`.
    micro_batch_size: See there.

  Returns:
    The learning process, a `StatefulLearningProcess`, with the metric
    `imbalance` of `build_convex`.
  """
  del client_optimizer
  correction_of, slots = one_model_slots(num_local_steps)
  return compose(
    model,
    client_optimizer=tff.learning.optimizers.build_sgdm(step_size),
    server_optimizer=server_optimizer,
    num_local_epochs=num_local_epochs,
    client_weighting=client_weighting,
    make_update=lambda client: client.model_delta(),
    aggregation_factory=tff.aggregators.MeanFactory(no_nan_division=True),
    build_correct_gradient=correcting(correction_of),
    method_state=_imbalance(),
    kept_slots=slots,
    num_local_steps=num_local_steps,
    micro_batch_size=micro_batch_size,
  )


def feature_classifier(config: 'TrainConfig', model: ModelSpec) -> ModelSpec:
  """Returns the model of the phase that trains on features."""
  shape, mask = config.model_shape(), _mask(config)
  return linearized.build_feature_classifier(
    model,
    tangent_features.build_features(model, shape, mask),
    num_features=len(mask),
    num_classes=shape.num_classes,
  )


def full_linearization(config: 'TrainConfig', model: ModelSpec) -> ModelSpec:
  """Returns the model of the convex phase of a language model."""
  return linearized.build_full_linearization(
    model, mask_layers=config.algorithm.mask_layers
  )


def begin_features(
  config: 'TrainConfig',
  process: tff.learning.templates.LearningProcess,
  state: Any,
) -> Any:
  """Returns the state before the features: the network's weights."""
  return _with_weights(process, state.global_model_weights)


def begin_convex(
  config: 'TrainConfig',
  process: tff.learning.templates.LearningProcess,
  state: Any,
) -> Any:
  """Returns the state before the regression, from that after the features.

  V and b are zero. Fixed are the network with a drawn head, and mean and
  standard deviation of its features, which the sums give.
  """
  found = state.client_work['method']
  count, sums, squares = (
    np.asarray(found[name]) for name in ('num_rows', 'sums', 'square_sums')
  )
  statistics = gram_regression.normalization(count, sums, squares)
  network = tangent_features.with_drawn_head(
    config.model_shape(),
    state.global_model_weights.trainable,
    config.seeds.model_seed,
  )
  initial = process.get_model_weights(process.initialize())
  zeros = tuple(np.zeros(w.shape, np.float32) for w in initial.trainable)
  fixed = (*network, *(part.astype(np.float32) for part in statistics))
  return _with_weights(process, _ModelWeights(zeros, fixed))


def begin_full_convex(
  config: 'TrainConfig',
  process: tff.learning.templates.LearningProcess,
  state: Any,
) -> Any:
  """Returns the state before the linearised rounds: no change so far."""
  del config
  initial = process.get_model_weights(process.initialize())
  zeros = tuple(np.zeros(w.shape, np.float32) for w in initial.trainable)
  network = tuple(state.global_model_weights.trainable)
  return _with_weights(process, _ModelWeights(zeros, network))


def features_of(
  config: 'TrainConfig',
  model: ModelSpec,
  weights: tff.learning.models.ModelWeights,
) -> Callable[[Any], np.ndarray]:
  """Returns a function from a batch of images to their features.

  See `Method.feature_work`.
  """
  shape = config.model_shape()
  compute = tangent_features.build_features(model, shape, _mask(config))
  network = tuple(
    tf.convert_to_tensor(w)
    for w in tangent_features.with_drawn_head(
      shape, weights.trainable, config.seeds.model_seed
    )
  )
  return lambda batch: compute(
    network, tf.nest.map_structure(tf.convert_to_tensor, batch)
  ).numpy()


def basis_of(
  config: 'TrainConfig',
  model: ModelSpec,
  weights: tff.learning.models.ModelWeights,
) -> Callable[[np.ndarray], dict[str, np.ndarray]]:
  """Returns a function from a client's features to its basis.

  See `Method.feature_work`: `vectors`, U, and `power_sums`, S_1 and S_2.
  """
  del model
  mean, std = (np.asarray(w) for w in tuple(weights.non_trainable)[-2:])
  settings = config.algorithm

  def compute(features):
    basis = gram_regression.gram_basis(features, mean, std)
    scale = gram_regression.scale_of(settings.loss_scale, len(features))
    sums = gram_regression.power_sums(
      settings.convex_learning_rate * scale * basis.values,
      settings.num_convex_steps,
    )
    return {'vectors': basis.vectors, 'power_sums': np.stack(sums)}

  return compute


def _mask(config):
  return tangent_features.feature_mask(
    config.model_shape(),
    num_features=config.algorithm.num_features,
    model_seed=config.seeds.model_seed,
  )


def _with_weights(process, weights):
  return process.set_model_weights(process.initialize(), weights)


def _reading(model, num_features, *, with_basis=False):
  """Returns a model with batches of features as its input."""
  functional_model = model.functional_model
  x = collections.OrderedDict(
    features=tf.TensorSpec([None, num_features], tf.float16)
  )
  if with_basis:
    x['vectors'] = tf.TensorSpec([None, None], tf.float64)
    x['power_sums'] = tf.TensorSpec([2, None], tf.float64)
  return dataclasses.replace(
    model,
    functional_model=tff.learning.models.FunctionalModel(
      initial_weights=functional_model.initial_weights,
      # Of the rows themselves: clients here compute without it.
      predict_on_batch_fn=functional_model.predict_on_batch,
      loss_fn=functional_model.loss,
      metrics_fns=(
        functional_model.initialize_metrics_state,
        functional_model.update_metrics_state,
        functional_model.finalize_metrics,
      ),
      input_spec=collections.OrderedDict(
        x=x, y=tf.TensorSpec([None], tf.int32)
      ),
    ),
  )


def _local_result(
  trainable, metrics, count, dataset, *, observation=None, num_steps=0
):
  return LocalResult(
    trainable=trainable,
    metrics=metrics,
    num_examples=count,
    observation=observation,
    mean_loss=tf.constant(0.0),
    dataset=dataset,
    optimizer_state=(),
    num_steps=tf.constant(num_steps, tf.int64),
  )


def _zero_sums(num_features):
  zeros = tf.zeros([num_features], tf.float64)
  return tf.constant(0.0, tf.float64), zeros, zeros


def _imbalance():
  """Returns a state with |sum_k q_k h_k| / sum_k q_k |h_k| of a round."""

  def summands(client):
    h = client.kept['correction']
    norm = tf.linalg.global_norm(tf.nest.flatten(h))
    weighted = tf.nest.map_structure(lambda part: client.weight * part, h)
    return weighted, client.weight * norm

  def next_state(unused_state, sums, unused_counts):
    total, norms = sums
    norm = tf.linalg.global_norm(tf.nest.flatten(total))
    return collections.OrderedDict(imbalance=tf.math.divide_no_nan(norm, norms))

  return MethodState(
    initial=lambda specs: collections.OrderedDict(imbalance=0.0),
    summands=summands,
    next=next_state,
    reported_after=('imbalance',),
  )

"""TCT: a network for some rounds, then SCAFFOLD on its linearisation.

Yu et al. (2022), "TCT: Convexifying federated learning using bootstrapped
neural tangent kernels", algorithms 1 and 2. The letters are those of
`mathematics/gram_regression.py`; what a client keeps is that of SCAFFOLD's
exchange of one model.
"""

import collections

import tensorflow as tf
import tensorflow_federated as tff

from models.functional_model import ModelSpec
from tff_fedfish.errors import require_one_of
from tff_fedfish.methods.tct import feature_inputs, gram_regression
from tff_fedfish.methods.tct.corrections import one_model_slots
from tff_fedfish.rounds.client_work import MethodState
from tff_fedfish.rounds.compose import compose
from tff_fedfish.rounds.gradients import BatchOutput, num_rows, split_batch

SOLVERS = ('gram', 'steps')

_ROUNDING = 0.01


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
  reader = feature_inputs.reading(
    model, num_features, with_basis=solver == 'gram'
  )
  functional_model = reader.functional_model
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
    return feature_inputs.local_result(
      solution, metrics, count, dataset, num_steps=num_steps
    )

  return compose(
    reader,
    client_optimizer=tff.learning.optimizers.build_sgdm(step_size),
    server_optimizer=server_optimizer,
    num_local_epochs=num_local_epochs,
    client_weighting=client_weighting,
    make_update=lambda client: client.model_delta(),
    aggregation_factory=tff.aggregators.MeanFactory(no_nan_division=True),
    method_state=_imbalance(num_steps * step_size),
    kept_slots=slots,
    local_work=local_work,
  )


def _imbalance(step):
  """Returns a state with |sum_k q_k h_k| / sum_k q_k |h_k| of a round.

  h is a difference of weights divided by `step`, M eta. Where it is nothing but
  the rounding of that, as with one client, the quotient says nothing: a
  hundredth of the weights so divided is added to |h_k|.
  """

  def summands(client):
    h = client.kept['correction']
    norm, size = (
      tf.linalg.global_norm(tf.nest.flatten(part))
      for part in (h, client.local.trainable)
    )
    weighted = tf.nest.map_structure(lambda part: client.weight * part, h)
    return weighted, client.weight * (norm + _ROUNDING * size / step)

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

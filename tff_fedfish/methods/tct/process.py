"""TCT's learning processes on features: their sums, and the regression.

Yu et al. (2022), "TCT", algorithms 1 and 2; the letters are those of
`regression.py`. A round of the regression is SCAFFOLD's in the form that sends
one model. Client k, with the rows' share q_k, keeps h_k and V_k:

  h_k <- h_k + (V - V_k) / (M eta)      0 in its first round, in which V_k is V
  V_k <- M steps from V with h_k
  V   <- sum_k q_k V_k

It requires all clients in every round, with the same M and eta.

Clients are fed with batches <x=<features, ...>, y> of what they computed of
their rows: `features` float16 [batch, p], `y` int32 [batch], the classes.
"""

import collections
import dataclasses

import tensorflow as tf
import tensorflow_federated as tff

from models.functional_model import with_predictions
from tff_fedfish.methods.tct import regression
from tff_fedfish.rounds.client_work import MethodState
from tff_fedfish.rounds.compose import compose
from tff_fedfish.rounds.gradients import (
  num_rows,
  plus_mean_gradient,
  split_batch,
)
from tff_fedfish.rounds.kept import KeptSlot
from tff_fedfish.rounds.local_training import LocalResult

_ROUNDING = 0.01


def build_feature_sums(model, *, num_features, **training):
  """Builds the round that sums up features.

  Args:
    model: The network, a ModelSpec, whose weights stay as they are.
    num_features: p.
    **training: See `rounds.compose.compose`. Nothing is trained: it gives only
      the type of the state.

  Returns:
    The learning process. After a round the method's state holds `num_rows`,
    `sums` and `square_sums`, float64 [p]: n, sum z and sum z^2 over the rows of
    all clients. Metric `num_dead`: features that are constant up to rounding.
  """
  reader = _reading(model, num_features)

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
      reader.functional_model.initialize_metrics_state(),
      tf.cast(count, tf.int64),
      dataset,
      observation=(count, sums, squares),
    )

  def next_state(unused_state, sums, unused_counts):
    count, first, second = sums
    mean = tf.math.divide_no_nan(first, count)
    variance = tf.math.divide_no_nan(second, count) - tf.square(mean)
    is_dead = variance <= regression.VARIANCE_ROUNDING * tf.square(mean)
    return _sums_state(sums, tf.reduce_sum(tf.cast(is_dead, tf.int32)))

  return compose(
    reader,
    make_update=lambda client: client.model_delta(),
    method_state=MethodState(
      initial=lambda unused_specs: _sums_state(
        _zero_sums(num_features), tf.constant(0)
      ),
      summands=lambda client: client.local.observation,
      next=next_state,
      reported_after=('num_dead',),
    ),
    local_work=sum_up,
    **training,
  )


def _zero_sums(num_features):
  zeros = tf.zeros([num_features], tf.float64)
  return tf.constant(0.0, tf.float64), zeros, zeros


def _sums_state(sums, num_dead):
  count, first, second = sums
  return collections.OrderedDict(
    num_rows=count, sums=first, square_sums=second, num_dead=num_dead
  )


def build_convex(model, *, num_steps, step_size, client_optimizer, **training):
  """Builds SCAFFOLD on a regression on features, in full gradient steps.

  Clients' batches also have `vectors` and `power_sums` of `take_steps` in x.

  Args:
    model: As `models.linearized.build_feature_classifier` makes it.
    num_steps: M, >= 1.
    step_size: eta > 0.
    client_optimizer: Not used: clients take plain steps.
    **training: See `rounds.compose.compose`. `server_optimizer` must be SGD
      with the rate 1; the client weights are q_k.

  Returns:
    The learning process; its clients keep tensors. Its metrics are those of
    the server's model before the round, and `imbalance`: |sum_k q_k h_k| /
    sum_k q_k |h_k|, which is 0 but for rounding.
  """
  del client_optimizer
  kernel, _ = model.functional_model.initial_weights[0]
  reader = _reading(
    model,
    kernel.shape[0],
    vectors=tf.TensorSpec([None, None], tf.float64),
    power_sums=tf.TensorSpec([2, None], tf.float64),
  )

  def local_work(start, dataset):
    mean, std = start.non_trainable[-2:]
    solution, metrics, count = regression.take_steps(
      reader.functional_model,
      dataset,
      mean,
      std,
      start.trainable,
      _correction(start, num_steps),
      num_steps=num_steps,
      step_size=step_size,
    )
    return _local_result(solution, metrics, count, dataset, num_steps=num_steps)

  return compose(
    reader,
    client_optimizer=tff.learning.optimizers.build_sgdm(step_size),
    make_update=lambda client: client.model_delta(),
    method_state=_imbalance(num_steps * step_size),
    kept_slots={
      'correction': KeptSlot(
        initial=lambda trainable: tf.nest.map_structure(
          lambda w: tf.zeros(w.shape, w.dtype), trainable
        ),
        next=lambda client: _correction(client.start, num_steps),
      ),
      'last_local': KeptSlot(
        initial=lambda trainable: trainable,
        next=lambda client: client.local.trainable,
      ),
    },
    local_work=local_work,
    **training,
  )


def _correction(start, num_steps):
  """Returns h_k of the round."""
  return plus_mean_gradient(
    start.kept['correction'],
    start.trainable,
    start.kept['last_local'],
    num_steps=num_steps,
    rate=start.hparams['learning_rate'],
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


def _reading(model, num_features, **basis):
  """Returns a model with batches of features, and of a basis, as its input."""
  functional_model = model.functional_model
  x = collections.OrderedDict(
    features=tf.TensorSpec([None, num_features], tf.float16), **basis
  )
  return dataclasses.replace(
    model,
    functional_model=with_predictions(
      functional_model,
      functional_model.initial_weights,
      # Never called: clients read stored features.
      functional_model.predict_on_batch,
      collections.OrderedDict(x=x, y=tf.TensorSpec([None], tf.int32)),
    ),
  )


def _local_result(
  trainable, metrics, count, dataset, *, observation=None, num_steps=0
):
  """Returns what local work that takes no batch steps gives."""
  return LocalResult(
    trainable=trainable,
    metrics=metrics,
    num_examples=count,
    observation=observation,
    mean_loss=tf.constant(0.0),
    dataset=dataset,
    optimizer_state=(),
    num_steps=tf.constant(num_steps),
  )

"""Small models whose local training can be followed by hand."""

import collections

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff


def scalar_model(initial: float = 0.0) -> tff.learning.models.FunctionalModel:
  """Prediction theta x, loss the mean of (theta x - y)^2 / 2."""

  @tf.function
  def predict(weights, x, training):
    del training
    return weights[0][0] * x

  def loss(output, label, sample_weight=None):
    del sample_weight
    return tf.reduce_mean(tf.square(output - label)) / 2

  spec = tf.TensorSpec([None], tf.float32)
  return tff.learning.models.FunctionalModel(
    initial_weights=((np.float32(initial),), ()),
    predict_on_batch_fn=predict,
    loss_fn=loss,
    input_spec=collections.OrderedDict(x=spec, y=spec),
  )


def linear_model(num_features: int) -> tff.learning.models.FunctionalModel:
  """Prediction x w + b from zeros, loss the mean squared error."""

  @tf.function
  def predict(weights, x, training):
    del training
    kernel, bias = weights[0]
    return tf.linalg.matvec(x, kernel) + bias

  def loss(output, label, sample_weight=None):
    del sample_weight
    return tf.reduce_mean(tf.square(output - label))

  return tff.learning.models.FunctionalModel(
    initial_weights=(
      (np.zeros(num_features, np.float32), np.float32(0)),
      (),
    ),
    predict_on_batch_fn=predict,
    loss_fn=loss,
    input_spec=collections.OrderedDict(
      x=tf.TensorSpec([None, num_features], tf.float32),
      y=tf.TensorSpec([None], tf.float32),
    ),
  )


def marked_model():
  """`scalar_model` for batches that mark repeated rows."""

  @tf.function
  def predict(weights, x, training):
    del training
    return weights[0][0] * x['feature']

  spec = tf.TensorSpec([None], tf.float32)
  return tff.learning.models.FunctionalModel(
    initial_weights=((np.float32(0),), ()),
    predict_on_batch_fn=predict,
    loss_fn=lambda output, label, sample_weight=None: (
      tf.reduce_mean(tf.square(output - label)) / 2
    ),
    input_spec=collections.OrderedDict(
      x=collections.OrderedDict(
        feature=spec, is_repeated=tf.TensorSpec([None], tf.bool)
      ),
      y=spec,
    ),
  )


def table_model(num_bins: int) -> tff.learning.models.FunctionalModel:
  """Prediction theta[bin], loss the mean of squares / 2; sparse gradients."""

  @tf.function
  def predict(weights, x, training):
    del training
    return tf.gather(weights[0][0], x)

  def loss(output, label, sample_weight=None):
    del sample_weight
    return tf.reduce_mean(tf.square(output - label)) / 2

  return tff.learning.models.FunctionalModel(
    initial_weights=((np.zeros(num_bins, np.float32),), ()),
    predict_on_batch_fn=predict,
    loss_fn=loss,
    input_spec=collections.OrderedDict(
      x=tf.TensorSpec([None], tf.int32),
      y=tf.TensorSpec([None], tf.float32),
    ),
  )


def three_clients():
  """Returns (x [rows, 2], y [rows]) of clients of 3, 7 and 4 rows."""
  random = np.random.RandomState(4)
  clients = []
  for size in (3, 7, 4):
    x = random.normal(size=(size, 2)).astype(np.float32)
    y = (x @ [1, 2] + random.normal(size=size)).astype(np.float32)
    clients.append((x, y))
  return clients


def batches(x, y, batch_size: int) -> tf.data.Dataset:
  """A client's data; the last batch may be shorter."""
  data = collections.OrderedDict(x=np.asarray(x), y=np.asarray(y, np.float32))
  if data['x'].dtype == np.float64:
    data['x'] = data['x'].astype(np.float32)
  if data['x'].dtype == np.int64:
    data['x'] = data['x'].astype(np.int32)
  return tf.data.Dataset.from_tensor_slices(data).batch(batch_size)


def sgd(learning_rate: float) -> tff.learning.optimizers.Optimizer:
  """Plain SGD."""
  return tff.learning.optimizers.build_sgdm(learning_rate)


def adam(learning_rate: float) -> tff.learning.optimizers.Optimizer:
  """Adam with the constants of the test vectors."""
  return tff.learning.optimizers.build_adam(
    learning_rate, beta_1=0.9, beta_2=0.999, epsilon=1e-7
  )

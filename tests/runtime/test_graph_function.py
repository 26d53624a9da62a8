"""Serialized computations as functions of this process."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_fedfish.runtime.graph_function import GraphFunction


def _proto(computation):
  return computation.to_building_block().proto


def test_two_computations_as_one_function():
  @tff.tensorflow.computation(np.float32, np.float32)
  def work(x, y):
    return x * y, x + y, x - y

  @tff.tensorflow.computation(np.float32, np.float32, np.float32, np.float32)
  def accumulate(a, b, product, total):
    return a + product, b + total

  function = GraphFunction(_proto(work), _proto(accumulate), 2)
  arguments = [*map(tf.constant, [100.0, 1000.0, 5.0, 3.0])]
  # a + x y, b + (x + y), and what was not passed on: x - y.
  assert [*map(float, function(arguments))] == [115, 1008, 2]


def test_variables_are_assigned_anew():
  @tff.tensorflow.computation(np.float32)
  def counts(x):
    variable = tf.Variable(10.0)
    with tf.control_dependencies([variable.assign_add(x)]):
      return variable.read_value()

  function = GraphFunction(_proto(counts))
  assert [float(function([tf.constant(2.0)])[0]) for _ in range(3)] == [12] * 3


def test_other_kinds_are_refused():
  @tff.federated_computation(tff.FederatedType(np.int32, tff.SERVER))
  def identity(x):
    return x

  with pytest.raises(ValueError, match='tensorflow computation is required'):
    GraphFunction(_proto(identity))

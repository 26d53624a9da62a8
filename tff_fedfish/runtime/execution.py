"""Runs one TFF computation in this process: a local one, or a whole round."""

from typing import Any

import tensorflow as tf
import tensorflow_federated as tff
from tensorflow_federated.python.common_libs import structure
from tensorflow_federated.python.core.backends.mapreduce import compiler
from tensorflow_federated.python.core.impl.compiler import building_blocks
from tensorflow_federated.python.core.impl.executors import cardinalities_utils
from tensorflow_federated.python.core.impl.types import (
  placements,
  type_analysis,
)

from tff_fedfish.runtime import values
from tff_fedfish.runtime.graph_function import GraphFunction


def build_execution(computation: tff.Computation):
  """Returns a callable on the packed argument of `computation`.

  Raises:
    Exception: Whatever TFF raises for a computation that is neither local nor
      has a MapReduceForm; the caller decides what then.
  """
  if not _involves_clients(computation.type_signature):
    return LocalExecution(computation)
  return RoundExecution(computation)


class LocalExecution:
  """A computation without clients: one TensorFlow function."""

  def __init__(self, computation: tff.Computation):
    """Compiles the computation."""
    block = computation.to_building_block()
    if not isinstance(block, building_blocks.CompiledComputation):
      block = compiler.consolidate_and_extract_local_processing(
        block, _without_grappler()
      )
    self._function = GraphFunction(block.proto)
    self._type = computation.type_signature

  def __call__(self, argument: Any) -> Any:
    """Returns the result in the containers of the computation's type."""
    tensors = []
    if self._type.parameter is not None:
      tensors = values.flatten(argument, self._type.parameter)
    return values.unflatten(self._function(tensors), self._type.result)


class RoundExecution:
  """(state, clients' data) -> (state, rest), through its MapReduceForm.

  One client's update is alive at a time: it is accumulated before the next
  client starts. The state's tensors stay where TensorFlow put them.
  """

  def __init__(self, computation: tff.Computation):
    """Compiles the parts of the round."""
    form = tff.backends.mapreduce.get_map_reduce_form_for_computation(
      computation, _without_grappler()
    )
    update_type = form.work.type_signature.result
    if any(values.num_tensors(part) for part in update_type[1:]):
      raise NotImplementedError('Secure sums are not run in process.')
    self._prepare = GraphFunction(_proto(form.prepare))
    self._work = GraphFunction(_proto(form.work))
    self._zero = GraphFunction(_proto(form.zero))
    self._accumulate = GraphFunction(_proto(form.accumulate))
    self._report = GraphFunction(_proto(form.report))
    self._update = GraphFunction(_proto(form.update))
    self._type = computation.type_signature

  def __call__(self, argument: Any) -> Any:
    """Runs one round; state leaves are eager tensors, the rest NumPy."""
    state_type, data_type = self._type.parameter
    state, data = structure.from_container(argument, recursive=False)
    # Raises TFF's own error for anything but a list of clients.
    cardinalities_utils.infer_cardinalities(data, data_type)
    state = values.flatten(state, state_type)
    broadcast = self._prepare(state)
    accumulator = self._zero([])
    for client_data in data:
      update = self._work(
        values.flatten(client_data, data_type.member) + broadcast
      )
      accumulator = self._accumulate(accumulator + update)
    results = self._update(state + self._report(accumulator))
    num_state = values.num_tensors(self._type.result[0])
    rest = [tensor.numpy() for tensor in results[num_state:]]
    return values.unflatten(results[:num_state] + rest, self._type.result)


def _involves_clients(type_signature):
  return type_analysis.contains(
    type_signature,
    lambda part: (
      isinstance(part, tff.FederatedType)
      and part.placement is placements.CLIENTS
    ),
  )


def _proto(computation):
  return computation.to_building_block().proto


def _without_grappler():
  """Graph options that leave graphs as they are.

  TFF's default pass inlines every function, which turns training loops into
  old-style control flow: 1.7 times the time of a local step was measured.
  TensorFlow optimizes the functions itself when they first run.
  """
  options = tf.compat.v1.ConfigProto()
  options.graph_options.rewrite_options.disable_meta_optimizer = True
  return options

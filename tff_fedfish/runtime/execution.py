"""Runs one TFF computation in this process: a local one, or a whole round."""

import contextlib
import dataclasses
import threading
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from tff_fedfish.runtime import (
  client_data,
  client_runner,
  large_models,
  placement,
  round_options,
  tff_internals,
  values,
)
from tff_fedfish.runtime.graph_function import (
  GraphFunction,
  without_garbage_collection,
)

NO_FORM_ERRORS = (
  TypeError,
  ValueError,
  NotImplementedError,
  tff_internals.MapReduceFormCompilationError,
)
"""Errors of a computation that can only run in TFF's own context."""


@without_garbage_collection()
def build_execution(computation: tff.Computation):
  """Returns a callable on the packed argument, or raises NO_FORM_ERRORS."""
  signature = computation.type_signature
  if not tff_internals.type_contains(signature, is_at_clients):
    return LocalExecution(computation)
  parameter, result = signature.parameter, signature.result
  if not (
    isinstance(parameter, tff.StructType)
    and len(parameter) == 2
    and is_at_clients(parameter[1])
    and not parameter[1].all_equal
  ):
    raise TypeError(
      "A server value and clients' data are required as arguments, found "
      f'{parameter}.'
    )
  if is_at_clients(result):
    return BroadcastExecution(computation)
  if isinstance(result, tff.StructType) and len(result) == 2:
    # The first result of a round can be the next round's state.
    if parameter[0].is_assignable_from(result[0]):
      with contextlib.suppress(*NO_FORM_ERRORS):
        return RoundExecution(computation)
  return _report_execution(computation)


class LocalExecution:
  """A computation without clients: one TensorFlow function.

  Initial states, and results of tensors, stay tensors: they may be large, on an
  accelerator, and meant for the next round. Other results are NumPy's.
  """

  def __init__(self, computation: tff.Computation):
    block = computation.to_building_block()
    if block.proto.WhichOneof('computation') != 'tensorflow':
      block = tff_internals.consolidate_and_extract_local_processing(
        block, _without_grappler()
      )
    self._type = computation.type_signature
    self._is_initial_state = self._type.parameter is None and isinstance(
      self._type.result, tff.FederatedType
    )
    self._function = GraphFunction(block.proto)

  def __call__(self, argument: Any) -> Any:
    """Returns the result in the containers of the computation's type."""
    large_models.return_large_buffers(values.tensor_types(self._type.result))
    tensors, keeps_tensors = [], self._is_initial_state
    with placement.on_accelerator():
      if self._type.parameter is not None:
        tensors = values.flatten(argument, self._type.parameter)
        keeps_tensors = values.holds_tensor(argument, self._type.parameter)
      results = self._function(tensors)
    if not keeps_tensors:
      results = [*map(values.to_numpy, results)]
    return values.unflatten(results, self._type.result)


class RoundExecution:
  """(state, clients' data) -> (state, rest), through its MapReduceForm.

  One client's update is alive at a time. The state's tensors stay where
  TensorFlow put them.
  """

  def __init__(self, computation: tff.Computation):
    form = _map_reduce_form(computation)
    if form.securely_aggregates_tensors:
      # Sums in the open, as in TFF's own simulation.
      form = _map_reduce_form(
        tff_internals.replace_secure_intrinsics_with_bodies(computation)
      )
    self._type = computation.type_signature
    self._spec, self._output_type = client_runner.client_work_spec(
      form, self._type.parameter[1].member
    )
    self._prepare, self._merge, self._report, self._update = map(
      _compile, (form.prepare, form.merge, form.report, form.update)
    )
    self._runners = {}
    self._lock = threading.Lock()

  def __call__(self, argument: Any) -> Any:
    """Runs one round; the state stays tensors, the rest is NumPy's."""
    options, outcome = round_options.current()
    options = self._with_output_type(options)
    state, data = _state_and_clients(argument)
    num_earlier_failures = len(outcome.failures)
    with placement.on_accelerator():
      state = values.flatten(state, self._type.parameter[0])
      accumulator = self._accumulate(state, data, options, outcome)
      round_options.require_quorum(
        options, outcome.failures[num_earlier_failures:], len(data)
      )
      # In its own place: a large model's sum must not stay beside the report.
      accumulator = self._report(accumulator)
      results = self._update(state + accumulator)
    num_state = len(values.tensor_types(self._type.result[0]))
    rest = [*map(values.to_numpy, results[num_state:])]
    return values.unflatten(results[:num_state] + rest, self._type.result)

  def _accumulate(self, state, data, options, outcome):
    """Returns the sum over all clients."""
    spec = self._spec
    if options.on_client_output is None:
      # Left out of the graph: they may take a pass or a model's memory.
      spec = dataclasses.replace(spec, outputs=range(0))
    arguments = (self._prepare(state), data, options, outcome)
    if options.workers is None:
      runner = self._runner(spec)
      parts = client_runner.partial_sums(runner, *arguments)
    else:
      parts = options.workers.partial_sums(spec, *arguments)
    # Workers have their own copy, and this process may need the memory.
    del arguments
    accumulator = None
    # Closed at once where the round fails: workers are then free again.
    with contextlib.closing(parts):
      for partial in parts:
        if accumulator is None:
          accumulator = partial
        else:
          accumulator = self._merge(accumulator + partial)
        del partial
    return self._runner(spec).zero() if accumulator is None else accumulator

  def _runner(self, spec):
    """Returns the clients' side, compiled when it is first wanted here."""
    with self._lock:
      if spec.outputs not in self._runners:
        self._runners[spec.outputs] = client_runner.ClientRunner(spec)
      return self._runners[spec.outputs]

  def _with_output_type(self, options):
    """Returns options whose `on_client_output` takes flat arrays, or None."""
    receive, output_type = options.on_client_output, self._output_type
    if receive is None:
      return options

    def on_client_output(index, arrays):
      receive(index, arrays and values.unflatten(arrays, output_type))

    return dataclasses.replace(
      options, on_client_output=output_type and on_client_output
    )


class BroadcastExecution:
  """(server value, clients' data) -> one value per client."""

  def __init__(self, computation: tff.Computation):
    form = tff.backends.mapreduce.get_broadcast_form_for_computation(
      computation, _without_grappler()
    )
    self._at_server = _compile(form.compute_server_context)
    self._at_clients = _compile(form.client_processing)
    self._type = computation.type_signature

  def __call__(self, argument: Any) -> list[Any]:
    """Returns the clients' values in the order of their data."""
    server_type, data_type = self._type.parameter
    server, data = _state_and_clients(argument)
    results = []
    with placement.on_accelerator():
      context = self._at_server(values.flatten(server, server_type))
      for load in client_data.load_ahead(data):
        tensors = values.flatten(load().data, data_type.member)
        found = [*map(values.to_numpy, self._at_clients(context + tensors))]
        results.append(values.unflatten(found, self._type.result.member))
    return results


def _report_execution(computation):
  """(server value, clients' data) -> server values, as evaluations give."""
  # A round that returns its state has a MapReduceForm.

  @tff.federated_computation(*computation.type_signature.parameter)
  def with_state(state, data):
    return state, computation(state, data)

  execution = RoundExecution(with_state)
  return lambda argument: execution(argument)[1]


def is_at_clients(value_type: tff.Type) -> bool:
  """Whether a type is one of clients' values."""
  return (
    isinstance(value_type, tff.FederatedType)
    and value_type.placement is tff.CLIENTS
  )


def _state_and_clients(argument):
  """Returns the two arguments of a computation with clients."""
  state, data = tff_internals.from_container(argument, recursive=False)
  if not isinstance(data, list):
    kind = type(data).__name__
    raise TypeError(f"A list of clients' data is required, found a {kind}.")
  return state, data


def _map_reduce_form(computation):
  return tff.backends.mapreduce.get_map_reduce_form_for_computation(
    computation, _without_grappler()
  )


def _compile(computation):
  return GraphFunction(computation.to_building_block().proto)


def _without_grappler():
  """Graph options that leave graphs as they are.

  TFF's default pass inlines every function, training loops among them: 1.7
  times the time of a local step. TensorFlow optimizes them at their first run.
  """
  options = tf.compat.v1.ConfigProto()
  options.graph_options.rewrite_options.disable_meta_optimizer = True
  return options

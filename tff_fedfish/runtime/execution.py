"""Runs one TFF computation in this process: a local one, or a whole round."""

import contextlib
import dataclasses
import threading
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from tff_fedfish.runtime import (
  client_data,
  client_outputs,
  client_runner,
  freed_memory,
  placement,
  round_options,
  tff_internals,
  values,
)
from tff_fedfish.runtime.graph_function import GraphFunction

# What TFF raises where a computation is neither local nor has a MapReduceForm
# or BroadcastForm; its own classes for it are subclasses of these, but for one.
NO_FORM_ERRORS = (
  TypeError,
  ValueError,
  NotImplementedError,
  tff_internals.MapReduceFormCompilationError,
)


def build_execution(computation: tff.Computation):
  """Returns a callable on the packed argument of `computation`.

  Raises:
    NO_FORM_ERRORS: If the computation can only run in TFF's own context.
  """
  signature = computation.type_signature
  if not tff_internals.type_contains(signature, _is_at_clients):
    return LocalExecution(computation)
  _check_arguments(signature.parameter)
  if _is_at_clients(signature.result):
    return BroadcastExecution(computation)
  result = signature.result
  if not (
    isinstance(result, tff.StructType)
    and len(result) == 2
    # The first can be the next round's state.
    and signature.parameter[0].is_assignable_from(result[0])
  ):
    return _report_execution(computation)
  try:
    return RoundExecution(computation)
  except NO_FORM_ERRORS:
    with contextlib.suppress(*NO_FORM_ERRORS):
      return _report_execution(computation)
    raise


class LocalExecution:
  """A computation without clients: one TensorFlow function.

  Initial states, and what is computed from tensors, stay tensors: they may be
  large, on an accelerator, and meant for the next round. All else is NumPy's.
  """

  def __init__(self, computation: tff.Computation):
    """Compiles the computation."""
    block = computation.to_building_block()
    if not isinstance(block, tff_internals.CompiledComputation):
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
    freed_memory.return_large_buffers(values.tensor_types(self._type.result))
    with placement.on_accelerator():
      tensors, keeps_tensors = [], self._is_initial_state
      if self._type.parameter is not None:
        tensors = values.flatten(argument, self._type.parameter)
        keeps_tensors = values.holds_tensor(argument, self._type.parameter)
      results = self._function(tensors)
    if not keeps_tensors:
      results = [*map(values.to_numpy, results)]
    return values.unflatten(results, self._type.result)


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
    self._type = computation.type_signature
    self._spec = client_runner.ClientWorkSpec.from_form(
      form, self._type.parameter[1].member
    )
    _, self._output_type = client_outputs.find(
      form.work.type_signature.result[0]
    )
    self._prepare, self._merge, self._report, self._update = map(
      _compile, (form.prepare, form.merge, form.report, form.update)
    )
    self._secure_sums = _SecureSums(form)
    self._client_work = {}
    self._lock = threading.Lock()

  def compiled_client_work(
    self, *, with_outputs: bool = False
  ) -> client_runner.ClientRunner:
    """Returns the clients' side, compiled when it is first wanted here."""
    with self._lock:
      if with_outputs not in self._client_work:
        runner = client_runner.ClientRunner(self._client_spec(with_outputs))
        self._client_work[with_outputs] = runner
      return self._client_work[with_outputs]

  def _client_spec(self, with_outputs):
    if with_outputs:
      return self._spec
    # Left out of the graph: they may take a pass or a model's memory.
    return dataclasses.replace(self._spec, outputs=range(0))

  def __call__(self, argument: Any) -> Any:
    """Runs one round; state leaves are eager tensors, the rest NumPy."""
    options, outcome = round_options.current()
    options = self._with_output_type(options)
    with_outputs = options.on_client_output is not None
    state_type, data_type = self._type.parameter
    state, data = tff_internals.from_container(argument, recursive=False)
    # Raises TFF's own error for anything but a list of clients.
    tff_internals.cardinalities_utils.infer_cardinalities(data, data_type)
    with placement.on_accelerator():
      state = values.flatten(state, state_type)
      accumulator, secure_sums = None, self._secure_sums.zeros()
      num_earlier_failures = len(outcome.failures)
      arguments = (self._prepare(state), data, options, outcome)
      if options.workers is None:
        work = self.compiled_client_work(with_outputs=with_outputs)
        parts = client_runner.partial_sums(work, *arguments)
      else:
        spec = self._client_spec(with_outputs)
        parts = options.workers.partial_sums(spec, *arguments)
      # Workers have their own copy, and this process may need the memory.
      del arguments
      # Closed at once where the round fails: workers are then free again.
      with contextlib.closing(parts):
        for partial in parts:
          if accumulator is None:
            accumulator = partial.accumulator
          else:
            accumulator = self._merge(accumulator + partial.accumulator)
          if partial.secure_sums:
            secure_sums = [*map(tf.add, secure_sums, partial.secure_sums)]
          del partial
      round_options.require_quorum(
        options, outcome.failures[num_earlier_failures:], len(data)
      )
      if accumulator is None:
        work = self.compiled_client_work(with_outputs=with_outputs)
        accumulator = work.zero()
      accumulator = self._report(accumulator)
      results = self._update(
        state + accumulator + self._secure_sums.finish(secure_sums)
      )
    num_state = len(values.tensor_types(self._type.result[0]))
    rest = [*map(values.to_numpy, results[num_state:])]
    return values.unflatten(results[:num_state] + rest, self._type.result)

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
    """Compiles both sides."""
    form = tff.backends.mapreduce.get_broadcast_form_for_computation(
      computation, _without_grappler()
    )
    self._at_server = _compile(form.compute_server_context)
    self._at_clients = _compile(form.client_processing)
    self._type = computation.type_signature

  def __call__(self, argument: Any) -> list[Any]:
    """Returns the clients' values in the order of their data."""
    server_type, data_type = self._type.parameter
    server, data = tff_internals.from_container(argument, recursive=False)
    tff_internals.cardinalities_utils.infer_cardinalities(data, data_type)
    result_type = self._type.result.member
    results = []
    with placement.on_accelerator():
      context = self._at_server(values.flatten(server, server_type))
      for load in client_data.load_ahead(data):
        tensors = self._at_clients(
          context + values.flatten(load().data, data_type.member)
        )
        results.append(
          values.unflatten([*map(values.to_numpy, tensors)], result_type)
        )
    return results


def _report_execution(computation):
  """(server value, clients' data) -> server values, as evaluations give.

  Wrapped as a round that returns its state unchanged, which has a
  MapReduceForm where the computation itself has none.
  """

  @tff.federated_computation(*computation.type_signature.parameter)
  def with_state(state, data):
    return state, computation(state, data)

  execution = RoundExecution(with_state)
  return lambda argument: execution(argument)[1]


class _SecureSums:
  """Adds up in the open what TFF would sum by secure aggregation.

  The server then sees the same numbers; that it sees only those is a matter of
  the protocol, which a simulation has no use for.
  """

  def __init__(self, form):
    _, bitwidth, plain, modular = form.work.type_signature.result
    self._types = [
      leaf
      for part in (bitwidth, plain, modular)
      for leaf in values.tensor_types(part)
    ]
    self._num_modular = len(values.tensor_types(modular))
    self._moduli = _compile(form.secure_modular_sum_modulus)([])

  def zeros(self) -> list[tf.Tensor]:
    """Returns the sums over no clients, int64."""
    return [
      tf.zeros(tensor_type.shape, tf.int64) for tensor_type in self._types
    ]

  def finish(self, sums: list[tf.Tensor]) -> list[tf.Tensor]:
    """Returns the sums as `update` takes them: modular ones reduced."""
    num_plain = len(sums) - self._num_modular
    moduli = self._moduli
    if len(moduli) == 1:
      moduli = moduli * self._num_modular
    modular = [
      tf.math.floormod(total, tf.cast(modulus, tf.int64))
      for total, modulus in zip(
        sums[num_plain:], moduli[: self._num_modular], strict=True
      )
    ]
    return [
      tf.cast(total, tf.as_dtype(tensor_type.dtype))
      for total, tensor_type in zip(
        sums[:num_plain] + modular, self._types, strict=True
      )
    ]


def _is_at_clients(value_type):
  return (
    isinstance(value_type, tff.FederatedType)
    and value_type.placement is tff_internals.CLIENTS
  )


def _check_arguments(parameter):
  if not (
    isinstance(parameter, tff.StructType)
    and len(parameter) == 2
    and _is_at_clients(parameter[1])
    and not parameter[1].all_equal
  ):
    raise TypeError(
      "A server value and clients' data are required as arguments, found "
      f'{parameter}.'
    )


def _compile(computation):
  return GraphFunction(computation.to_building_block().proto)


def _without_grappler():
  """Graph options that leave graphs as they are.

  TFF's default pass inlines every function, which turns training loops into
  old-style control flow: 1.7 times the time of a local step was measured.
  TensorFlow optimizes the functions itself when they first run.
  """
  options = tf.compat.v1.ConfigProto()
  options.graph_options.rewrite_options.disable_meta_optimizer = True
  return options

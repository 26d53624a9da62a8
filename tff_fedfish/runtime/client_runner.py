"""The clients' side of a round: work and accumulate, one client at a time.

The parts of TFF's MapReduceForm that clients need are kept as bytes, so that
a worker process can be given them without building anything itself.
"""

import dataclasses
import functools
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from tff_fedfish.runtime import (
  client_data,
  client_outputs,
  computation_graph,
  freed_memory,
  round_options,
  tff_internals,
  values,
)
from tff_fedfish.runtime.graph_function import GraphFunction


class PartialSum(NamedTuple):
  """Sums over some clients of a cohort."""

  accumulator: list[tf.Tensor]
  """Tensors of the form's accumulator."""
  secure_sums: list[tf.Tensor]
  """Sums of the values that TFF would sum securely, in int64: bit-width sums,
  sums, and modular sums before the modulus is taken."""


@dataclasses.dataclass(frozen=True)
class ClientWorkSpec:
  """The parts of a round that clients run, ready to be sent."""

  work: bytes
  zero: bytes
  accumulate: bytes
  data_type: bytes
  """The type of one client's data."""
  num_accumulated: int
  """How many of the tensors that `work` returns are accumulated; what follows
  is to be summed up."""
  outputs: range
  """Positions of the accumulated tensors that are handed on, too."""

  @classmethod
  def from_form(
    cls, form: tff.backends.mapreduce.MapReduceForm, data_type: tff.Type
  ) -> 'ClientWorkSpec':
    """Takes what clients need out of a MapReduceForm.

    Raises:
      ValueError: If a graph of it cannot run here.
    """
    parts = (form.work, form.zero, form.accumulate)
    protos = [part.to_building_block().proto for part in parts]
    for proto in protos:
      # TFF's own context can run it instead, while no round has begun.
      computation_graph.unpack(proto)
    work, zero, accumulate = (proto.SerializeToString() for proto in protos)
    return cls(
      work=work,
      zero=zero,
      accumulate=accumulate,
      data_type=tff_internals.serialize_type(data_type).SerializeToString(),
      num_accumulated=len(
        values.tensor_types(form.work.type_signature.result[0])
      ),
      outputs=client_outputs.find(form.work.type_signature.result[0])[0],
    )


class ClientRunner:
  """Adds up the updates of clients; one update is alive at a time."""

  def __init__(self, spec: ClientWorkSpec):
    """Compiles the parts."""
    self._zero = GraphFunction(_proto(spec.zero))
    self._work_and_accumulate = _join(spec)
    self._num_outputs = len(spec.outputs)
    self._data_type = tff_internals.deserialize_type(
      tff_internals.computation_pb2.Type.FromString(spec.data_type)
    )

  def zero(self) -> list[tf.Tensor]:
    """Returns the accumulator of no clients."""
    return self._zero([])

  def add_up(
    self,
    broadcast: list[tf.Tensor],
    clients: Sequence[tuple[int, Any]],
    outcome: round_options.RoundOutcome,
    *,
    on_first_failure: Callable[[round_options.ClientFailure, Exception], None],
    on_output: Callable[[int, list[Any]], None] | None = None,
    failed_once: Collection[int] = (),
    should_stop: Callable[[], bool] | None = None,
  ) -> PartialSum:
    """Runs clients in order and sums up what they send.

    A client that raises is run again, and left out if it raises once more.

    Args:
      broadcast: What `prepare` made of the server's state.
      clients: (index in the cohort, loader or data) of each.
      outcome: What loaders count, and who is left out, is added to it.
      on_first_failure: Called before a client is run again; may raise.
      on_output: Receives each client's index and the tensors of its output as
        arrays. None where the spec has none.
      failed_once: Indices of clients that have raised before.
      should_stop: Asked before each client.

    Returns:
      The sum; of no clients it is the form's zero.

    Raises:
      RoundInterrupted: If `should_stop` says so.
    """
    freed_memory.return_freed_memory(broadcast)
    accumulator, secure_sums = self.zero(), []
    num_accumulated, failed_once = len(accumulator), set(failed_once)
    loaded = client_data.load_ahead(client for _, client in clients)
    for (index, client), load in zip(clients, loaded, strict=True):
      while True:
        if should_stop is not None and should_stop():
          loaded.close()
          raise round_options.RoundInterrupted
        is_loaded = False
        try:
          data, counts = load()
          outcome.counts[index] = counts
          arguments = values.flatten(data, self._data_type)
          is_loaded = True
          results = self._work_and_accumulate(
            accumulator + arguments + broadcast
          )
        except Exception as error:  # pylint: disable=broad-exception-caught
          failure = round_options.describe_failure(
            index, error, while_loading=not is_loaded
          )
          if index in failed_once:
            outcome.failures.append(failure)
            outcome.counts.pop(index, None)
            break
          on_first_failure(failure, error)
          failed_once.add(index)
          # The iterator has gone on to the next client.
          load = functools.partial(client_data.load, client)
        else:
          first_output = len(results) - self._num_outputs
          if on_output is not None:
            on_output(index, [*map(values.to_numpy, results[first_output:])])
          accumulator = results[:num_accumulated]
          # The modulus is taken of sums over all clients.
          to_sum = [
            tf.cast(tensor, tf.int64)
            for tensor in results[num_accumulated:first_output]
          ]
          if secure_sums:
            to_sum = [*map(tf.add, secure_sums, to_sum)]
          secure_sums = to_sum
          # Its data too: the one after next is being loaded.
          del results, data, arguments, load
          freed_memory.return_freed_memory(broadcast)
          break
    return PartialSum(accumulator, secure_sums)


def _join(spec):
  """Returns work and accumulate as one callable on tensors."""
  work, accumulate = _proto(spec.work), _proto(spec.accumulate)
  num_passed = spec.num_accumulated
  if not accumulate.tensorflow.initialize_op:
    # One function: what a client sends is then added up in its own memory.
    return GraphFunction(work, accumulate, num_passed, spec.outputs)
  # Variables may be made from what a client sends: it must be there first.
  work, accumulate = GraphFunction(work), GraphFunction(accumulate)

  def work_and_accumulate(arguments):
    num_kept = accumulate.num_arguments - num_passed
    update = work(arguments[num_kept:])
    total = accumulate(arguments[:num_kept] + update[:num_passed])
    outputs = [update[position] for position in spec.outputs]
    return total + update[num_passed:] + outputs

  return work_and_accumulate


def _proto(part):
  return tff_internals.computation_pb2.Computation.FromString(part)


def divide_cohort(num_clients: int, num_partial_sums: int) -> list[range]:
  """Returns the client indices of each partial sum: consecutive, none empty."""
  num_parts = min(num_clients, num_partial_sums)
  return [
    range(
      num_clients * part // num_parts, num_clients * (part + 1) // num_parts
    )
    for part in range(num_parts)
  ]


def partial_sums(
  client_work: ClientRunner,
  broadcast: list[tf.Tensor],
  clients: Sequence[Any],
  options: round_options.RoundOptions,
  outcome: round_options.RoundOutcome,
) -> Iterator[PartialSum]:
  """Yields the partial sums of a cohort in order, computed in this process.

  Clients are loaders or data, in cohort order; the broadcast is what `prepare`
  made of the server's state, and the outcome is filled on the way.
  """

  def on_first_failure(unused_failure, error):
    if not options.tolerates_failures:
      raise error

  for part in divide_cohort(len(clients), options.num_partial_sums):
    yield client_work.add_up(
      broadcast,
      [(index, clients[index]) for index in part],
      outcome,
      on_first_failure=on_first_failure,
      on_output=options.on_client_output,
      should_stop=options.should_stop,
    )

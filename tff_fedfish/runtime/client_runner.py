"""The clients' side of a round: work and accumulate, one client at a time.

Clients' parts of TFF's MapReduceForm are kept as bytes for worker processes.
"""

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from tff_fedfish.runtime import (
  client_data,
  client_outputs,
  graph_function,
  large_models,
  tff_internals,
  values,
)
from tff_fedfish.runtime.round_options import (
  ClientFailure,
  RoundInterrupted,
  RoundOptions,
  RoundOutcome,
  describe_failure,
)


@dataclasses.dataclass(frozen=True)
class ClientWorkSpec:
  """The parts of a round that clients run, and the type of a client's data."""

  work: bytes
  zero: bytes
  accumulate: bytes
  data_type: bytes
  outputs: range
  """Positions of the client output among the tensors that `work` returns."""


def client_work_spec(
  form: tff.backends.mapreduce.MapReduceForm, data_type: tff.Type
) -> tuple[ClientWorkSpec, tff.Type | None]:
  """Takes what clients need out of a MapReduceForm without secure sums.

  Returns:
    (spec, type of the client output or None).

  Raises:
    ValueError: If a graph of the form cannot run here.
  """
  protos = [
    part.to_building_block().proto
    for part in (form.work, form.zero, form.accumulate)
  ]
  for proto in protos:
    # TFF's own context can run it instead, while no round has begun.
    graph_function.unpack(proto)
  outputs, output_type = client_outputs.find(form.work.type_signature.result[0])
  protos.append(tff_internals.serialize_type(data_type))
  parts = [proto.SerializeToString() for proto in protos]
  return ClientWorkSpec(*parts, outputs), output_type


class ClientRunner:
  """Adds up the updates of clients; one update is alive at a time."""

  def __init__(self, spec: ClientWorkSpec):
    zero, work, accumulate = map(
      tff_internals.computation_pb2.Computation.FromString,
      (spec.zero, spec.work, spec.accumulate),
    )
    self._zero = graph_function.GraphFunction(zero)
    self._num_outputs = len(spec.outputs)
    # One function: an update is added up in its own memory.
    self._work_and_accumulate = graph_function.GraphFunction(
      work, accumulate, returned=spec.outputs
    )
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
    outcome: RoundOutcome,
    *,
    on_first_failure: Callable[[ClientFailure, Exception], None],
    on_output: Callable[[int, list[Any]], None] | None = None,
    failed_once: Collection[int] = (),
    should_stop: Callable[[], bool] = lambda: False,
  ) -> list[tf.Tensor]:
    """Runs clients in order and sums up what they send.

    A client that raises is run again, and left out if it raises once more.

    Args:
      broadcast: The result of `prepare`, which all clients are sent.
      clients: (index in the cohort, loader or data) of each.
      outcome: Receives the counts of loaders, and the failures.
      on_first_failure: Called before a client is run again; may raise.
      on_output: Receives each client's index and the arrays of its output.
      failed_once: Indices of clients that have raised before.
      should_stop: Asked before each client.

    Returns:
      The accumulator of the form; of no clients its zero.

    Raises:
      RoundInterrupted: If `should_stop` says so.
    """

    def leave_out(failure, unused_error):
      outcome.failures.append(failure)

    large_models.return_freed_memory(broadcast)
    accumulator = self.zero()
    loaded = client_data.load_ahead(client for _, client in clients)
    with contextlib.closing(loaded):
      for index, client in clients:
        # Held by nothing else: the client's data go when it has run.
        attempts, results = [next(loaded)], None
        if index not in failed_once:
          # The iterator has gone on to the next client by then.
          attempts.append(functools.partial(client_data.load, client))
        while attempts and results is None:
          if should_stop():
            raise RoundInterrupted
          on_failure = leave_out if len(attempts) == 1 else on_first_failure
          results = self._run(
            index, attempts.pop(0), accumulator, broadcast, outcome, on_failure
          )
        if results is not None:
          first_output = len(results) - self._num_outputs
          if on_output is not None:
            on_output(index, [*map(values.to_numpy, results[first_output:])])
          accumulator = results[:first_output]
          del results
        large_models.return_freed_memory(broadcast)
    return accumulator

  def _run(self, index, load, accumulator, broadcast, outcome, on_failure):
    """Returns the sum with this client, and its outputs; None if it raises."""
    arguments = None
    try:
      data, outcome.counts[index] = load()
      arguments = values.flatten(data, self._data_type)
      return self._work_and_accumulate(accumulator + arguments + broadcast)
    except Exception as error:  # pylint: disable=broad-exception-caught
      outcome.counts.pop(index, None)
      failure = describe_failure(index, error, while_loading=arguments is None)
      on_failure(failure, error)
      return None


def divide_cohort(num_clients: int, num_partial_sums: int) -> list[range]:
  """Returns the client indices of each partial sum: consecutive, none empty."""
  num_parts = min(num_clients, num_partial_sums)
  bounds = [num_clients * k // max(num_parts, 1) for k in range(num_parts + 1)]
  return [range(*pair) for pair in itertools.pairwise(bounds)]


def partial_sums(
  client_work: ClientRunner,
  broadcast: list[tf.Tensor],
  clients: Sequence[Any],
  options: RoundOptions,
  outcome: RoundOutcome,
) -> Iterator[list[tf.Tensor]]:
  """Yields the partial sums of a cohort in order, computed in this process.

  Clients are loaders or data. For the other arguments see `add_up`.
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

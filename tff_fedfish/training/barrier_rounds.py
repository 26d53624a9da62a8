"""The Client-Server Barrier of a run's own rounds, measured while it trains.

A round that is due leaves its means in metrics.csv and a row per client in
`barrier/round_00000020.csv`, with the columns of an evaluation's `barrier.csv`
and, in process and unless a client failed, its very numbers: those of `fedfish
evaluate --barrier` from the checkpoint before the round. Whatever runs the
rounds, the clients are measured in this process.
"""

import dataclasses
import os
import pathlib
import re
from collections.abc import Callable, Collection, Sequence
from typing import Any

from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.data.sequences import ClientRows
from tff_fedfish.evaluation import barrier, results
from tff_fedfish.evaluation.client_evaluator import ClientEvaluator
from tff_fedfish.evaluation.results import ClientBarrier
from tff_fedfish.run import cohort_data
from tff_fedfish.runtime import round_options
from tff_fedfish.runtime.round_options import RoundInterrupted

DIRECTORY_NAME = 'barrier'

_FILE_NAME = re.compile(r'round_(\d{8,})\.csv')


@dataclasses.dataclass(frozen=True)
class RoundBarrier:
  """Measurement of one round."""

  clients: list[ClientBarrier]
  """Clients that took part and have sequences, in the order of the draw."""
  failures: list[tuple[bytes, str]]
  """Client id of those that took part and raised now, and what, in a line."""


class BarrierRounds:
  """Measures the rounds that are due, and keeps their files.

  Args:
    config: The run's config.
    workdir: The run's directory.
    process: The learning process.
    participating: Clients that may be drawn.
    client_rows: Their sequences or images, opened in this process.
    evaluator: That of the config.
  """

  def __init__(
    self,
    config: TrainConfig,
    workdir: str | os.PathLike,
    *,
    process: Any,
    participating: Sequence[bytes],
    client_rows: ClientRows,
    evaluator: ClientEvaluator,
  ):
    self._config = config
    self._directory = pathlib.Path(workdir) / DIRECTORY_NAME
    self._process = process
    self._participating = participating
    self._source = cohort_data.InMemorySource(client_rows)
    self._evaluator = evaluator

  def is_due(self, round_num: int) -> bool:
    """Says whether a round, 0 being the start, is to be measured."""
    every = self._config.evaluation.barrier_every_num_rounds
    if not every or not round_num:
      return False
    is_last = round_num == self._config.training.num_rounds
    return is_last or round_num % every == 0

  def measure(
    self,
    round_num: int,
    state: Any,
    new_state: Any,
    *,
    failed_clients: Collection[int] = (),
    should_stop: Callable[[], bool] | None = None,
  ) -> RoundBarrier:
    """Trains the round's clients again, one after the other.

    A client that raises is left out: what is measured beside the training must
    not end it.

    Args:
      round_num: The round.
      state: What the round was run from, learning rates included.
      new_state: What came out of it.
      failed_clients: Positions in the cohort of clients that did not take part
        in it.
      should_stop: Asked before each client.

    Raises:
      RoundInterrupted: If `should_stop` says so.
    """
    cohort = cohort_data.cohort(
      self._config, self._participating, self._source, round_num
    )
    failures = []

    def taking_part():
      for index, client in enumerate(cohort):
        if should_stop is not None and should_stop():
          raise RoundInterrupted
        if index not in failed_clients:
          yield client

    def on_failure(client, error):
      failure = round_options.describe_failure(
        cohort.index(client), error, while_loading=False
      )
      failures.append((client.client_id, failure.message))

    clients = barrier.measure_clients(
      self._process,
      state,
      new_state,
      self._evaluator,
      taking_part(),
      on_failure=on_failure,
    )
    return RoundBarrier(clients, failures)

  def write(self, round_num: int, clients: Sequence[ClientBarrier]) -> None:
    """Writes the file of a round; it appears whole or not at all.

    Raises:
      OSError: If it cannot be written, such as on a full disk.
    """
    self._directory.mkdir(exist_ok=True)
    results.write_barriers(
      self._directory / f'round_{round_num:08d}.csv', clients
    )

  def remove_after(self, round_num: int) -> None:
    """Removes the files of later rounds, and what a killed process left.

    Args:
      round_num: The round that a run continues after; -1: the run starts.
    """
    if not self._config.evaluation.barrier_every_num_rounds:
      return
    for path in self._directory.glob('*round_*'):
      match = _FILE_NAME.fullmatch(path.name)
      # Of a name that begins with a dot, a process was killed while it wrote.
      if path.name.startswith('.round_') or match and int(match[1]) > round_num:
        path.unlink()


def barrier_metrics(
  barriers: Sequence[ClientBarrier], *, num_failed: int
) -> dict[str, float | int | None]:
  """Returns the columns of a round whose Client-Server Barrier was measured.

  Args:
    barriers: One entry per client that was measured.
    num_failed: Clients that took part in the round and raised when measured.

  Returns:
    The uniform means, in nats and as a share of targets, over the clients
    whose losses are finite, None without one; how many these are; and how many
    were left out why.
  """
  # The interval is not read.
  found = results.summarize_barriers(barriers, num_bootstrap=1, seed=0)
  return {
    'barrier/loss': found['loss']['mean'],
    'barrier/error': found['error']['mean'],
    'barrier/num_clients': found['loss']['num_clients'],
    'barrier/num_non_finite_clients': found['loss']['num_non_finite'],
    'barrier/num_failed_clients': num_failed,
  }

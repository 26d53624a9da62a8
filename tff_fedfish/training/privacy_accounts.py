"""Epsilon of every client of a run: privacy.csv, and columns of metrics.csv."""

import statistics

from tff_fedfish import files
from tff_fedfish.data.client_ids import ChosenIds, client_id_to_cell
from tff_fedfish.rounds import privacy
from tff_fedfish.run import cohort_data, private_rounds, round_metrics
from tff_fedfish.training.round_callbacks import (
  BuiltRun,
  FinishedRound,
  RoundCallback,
)

FILE_NAME = 'privacy.csv'
_COLUMNS = (
  'client_id',
  'num_examples',
  'num_rounds',
  'num_steps',
  'sampling_rate',
  'epsilon',
)


class PrivacyAccounts(RoundCallback):
  """Accounts for the rounds that clients were drawn for.

  A client's steps follow from its rows, the config and the draws, so that a run
  that is resumed accounts as one that was not interrupted. A client that failed
  in a round counts as if it had taken part. Without noise this does nothing.
  """

  def __init__(self, run: BuiltRun):
    """Accounts for the rounds up to the run's position."""
    self._run, self._rounds = run, None
    if run.config.local_privacy.adds_noise:
      self._rounds = private_rounds.of_config(run.config)
    self._num_rounds: dict[bytes, int] = {}
    self._num_rows: dict[bytes, int] = {}
    self._epsilons: dict[bytes, float] = {}
    self._drawn: list[bytes] = []
    if self._rounds is None:
      return
    for round_num in range(1, run.position.round_num + 1):
      self._count(self._clients_of(round_num))
    self._epsilons = self._epsilons_of(self._num_rounds)

  def measure(self, done: FinishedRound) -> None:
    """See `RoundCallback`."""
    if self._rounds is None:
      return
    self._drawn = self._clients_of(done.round_num) if done.round_num else []
    after = self._epsilons | self._epsilons_of(
      {i: 1 + self._num_rounds.get(i, 0) for i in self._drawn}
    )
    values = list(after.values()) or [0.0]
    found = statistics.fmean(values), max(values)
    done.metrics.update(zip(round_metrics.PRIVACY_NAMES, found, strict=True))

  def record(self, done: FinishedRound) -> None:
    """Writes privacy.csv.

    Raises:
      OSError: If it cannot be written.
    """
    if self._rounds is None:
      return
    self._count(self._drawn)
    self._epsilons |= self._epsilons_of(
      {i: self._num_rounds[i] for i in self._drawn}
    )
    rows = map(self._row, self._counted())
    with files.write_atomically(self._run.workdir / FILE_NAME) as file:
      file.write(files.csv_file(_COLUMNS, rows))

  def _counted(self):
    """Returns the clients of earlier rounds, in the order of all."""
    if isinstance(self._run.participating, ChosenIds):
      # Sorted, and perhaps many millions.
      return sorted(self._num_rounds)
    return [i for i in self._run.participating if i in self._num_rounds]

  def _clients_of(self, round_num):
    run = self._run
    return cohort_data.client_ids_of(run.config, run.participating, round_num)

  def _count(self, client_ids):
    for client_id in client_ids:
      self._num_rounds[client_id] = 1 + self._num_rounds.get(client_id, 0)

  def _epsilons_of(self, num_rounds):
    """Returns client -> epsilon of so many rounds."""
    settings = self._run.config.local_privacy
    found = {}
    for client_id, count in num_rounds.items():
      num_steps, rate = self._steps(client_id)
      found[client_id] = privacy.epsilon(
        rate, settings.noise_multiplier, count * num_steps, settings.delta
      )
    return found

  def _steps(self, client_id):
    """Returns a client's steps in a round and its sampling rate."""
    if client_id not in self._num_rows:
      rows = self._run.client_rows
      self._num_rows[client_id] = rows.num_training_rows(client_id)
    num_rows, rounds = self._num_rows[client_id], self._rounds
    rate = privacy.sampling_rate(rounds.batch_size, max(1, num_rows))
    return rounds.num_steps(num_rows), rate

  def _row(self, client_id):
    """Returns the cells of a client; see `_COLUMNS`."""
    num_steps, rate = self._steps(client_id)
    count = self._num_rounds[client_id]
    return (
      client_id_to_cell(client_id),
      self._num_rows[client_id],
      count,
      count * num_steps,
      rate,
      self._epsilons[client_id],
    )

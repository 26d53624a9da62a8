"""Epsilon of every client of a run: privacy.csv, and columns of metrics.csv."""

import collections
import statistics

from tff_fedfish import files
from tff_fedfish.data.client_ids import ChosenIds, client_id_to_cell
from tff_fedfish.rounds import privacy
from tff_fedfish.run import cohorts, columns
from tff_fedfish.run.private import private_rounds
from tff_fedfish.training.parts import BuiltRun, FinishedRound

FILE_NAME = 'privacy.csv'
_COLUMNS = (
  'client_id',
  'num_examples',
  'num_rounds',
  'num_steps',
  'sampling_rate',
  'epsilon',
)


class PrivacyPart:
  """Accounts for the rounds that clients were drawn for.

  A client's steps follow from its rows, the config and the draws, so that a run
  that is resumed accounts as one that was not interrupted. A client that failed
  in a round counts as if it had taken part.
  """

  def __init__(self, run: BuiltRun):
    """Accounts for the rounds up to the run's position."""
    self._run, self._rounds = run, private_rounds(run.config)
    self._num_rows: dict[bytes, int] = {}
    self._num_rounds = collections.Counter()
    for round_num in range(1, run.position.round_num + 1):
      self._num_rounds.update(self._drawn(round_num))
    self._epsilons = self._epsilons_of(self._num_rounds)

  def measure(self, done: FinishedRound) -> None:
    """Adds the columns of a round."""
    after = [*self._after(done).values()] or [0.0]
    means = statistics.fmean(after), max(after)
    done.metrics.update(zip(columns.PRIVACY_NAMES, means, strict=True))

  def record(self, done: FinishedRound) -> None:
    """Writes privacy.csv."""
    self._epsilons = self._after(done)
    self._num_rounds.update(self._drawn(done.round_num))
    client_ids = [i for i in self._run.participating if i in self._num_rounds]
    if isinstance(self._run.participating, ChosenIds):
      # Sorted, and perhaps many millions.
      client_ids = sorted(self._num_rounds)
    with files.write_atomically(self._run.workdir / FILE_NAME) as file:
      file.write(files.csv_file(_COLUMNS, map(self._row, client_ids)))

  def _after(self, done):
    """Returns every client's epsilon after a round that is not recorded."""
    drawn = self._drawn(done.round_num)
    return self._epsilons | self._epsilons_of(
      {client_id: 1 + self._num_rounds[client_id] for client_id in drawn}
    )

  def _drawn(self, round_num):
    """Returns the clients of a round; round 0 has none."""
    if not round_num:
      return []
    run = self._run
    return cohorts.client_ids_of(run.config, run.participating, round_num)

  def _epsilons_of(self, num_rounds):
    """Returns client -> epsilon, given client -> rounds."""
    settings = self._run.config.local_privacy
    epsilons = {}
    for client_id, count in num_rounds.items():
      num_steps, rate = self._steps(client_id)
      epsilons[client_id] = privacy.epsilon(
        rate, settings.noise_multiplier, count * num_steps, settings.delta
      )
    return epsilons

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

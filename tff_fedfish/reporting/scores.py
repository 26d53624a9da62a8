"""The tables of numbers that a report is made of.

Tables, figures and sentences read nothing else: `Scores.means` has a row per
arm, evaluation, fraction and measure, `Scores.clients` a row per client, and
`Scores.comparisons` a row per difference between methods.
"""

import dataclasses
import functools
from collections.abc import Iterable, Sequence

import pandas as pd

from tff_fedfish import files
from tff_fedfish.data.client_ids import client_id_to_cell
from tff_fedfish.reporting import comparisons, match, means, summary
from tff_fedfish.reporting.match import Arm
from tff_fedfish.reporting.runs import OWN_TEST, Run

_CLIENTS = ('arm', 'subject', 'kind', 'model', 'round', 'fraction', 'client_id')
_CURVE = ('series', 'point', 'x', 'y', 'low', 'high')


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Scores:
  """Runs, and all that is known of them as tables."""

  runs: Sequence[Run]
  arms: Sequence[Arm]
  """The runs, repetitions together."""
  means: pd.DataFrame
  """The fields of `means.Mean` are its columns."""
  clients: pd.DataFrame
  """Means over seeds of each client of the evaluations that are shown: arm,
  subject, kind, model, round, fraction, client_id, loss_before,
  accuracy_before, loss_after, accuracy_after. Clients that a seed lacks are
  left out."""
  comparisons: pd.DataFrame
  """See `comparisons.compare_methods`."""

  @functools.cached_property
  def columns(self) -> list[summary.Column]:
    """The columns of summary.csv, of the arms."""
    return summary.find_columns(self.arms, self.means)

  def shown(
    self, subject: str, measure: str, fraction: float
  ) -> dict[str, means.Mean]:
    """Returns the rows of `means` that are shown, by the arm's label."""
    rows = self.means[
      self.means['is_shown']
      & (self.means['subject'] == subject)
      & (self.means['measure'] == measure)
      & (self.means['fraction'] == fraction)
    ]
    return {row.arm: row for row in rows.itertuples()}

  def clients_csv(self) -> str:
    """Returns `clients` as CSV, in full precision."""
    ids = self.clients['client_id'].map(client_id_to_cell)
    rows = self.clients.assign(client_id=ids).itertuples(index=False)
    return files.csv_file(self.clients.columns, rows)


def read_scores(runs: Sequence[Run]) -> Scores:
  """Returns all tables of the runs of a report."""
  arms = match.find_arms(runs)
  clients = [table for arm in arms for table in means.clients_of(arm)]
  columns = [*_CLIENTS, *means.SCORES]
  return Scores(
    runs=runs,
    arms=arms,
    means=means.means_of(arms),
    clients=pd.concat(clients)[columns] if clients else _empty(columns),
    comparisons=comparisons.compare_methods(arms),
  )


def curve(arms: Sequence[Arm], x: str, y: str) -> pd.DataFrame:
  """Returns a metric against another one, as means over seeds.

  Args:
    arms: One series each.
    x: 'round', 'local_epochs' (cumulative) or a column of metrics.csv.
    y: A column of metrics.csv.

  Returns:
    Columns series (the arm's label), point (the round), x, y, and low and high,
    those of the lowest and the highest seed. Rounds without either are absent.
  """
  rows = []
  for arm in arms:
    if x == 'local_epochs':
      epochs = arm.num_local_epochs
      places = {r: r * epochs for (r,) in arm.series('round') if epochs}
    else:
      places = dict(arm.series('round', x))
    seeds = [dict(run.series('round', y)) for run in arm.runs]
    for round_num, value in arm.series('round', y):
      if round_num in places:
        spread = [seed[round_num] for seed in seeds]
        ends = min(spread), max(spread)
        rows.append((arm.label, round_num, places[round_num], value, *ends))
  return pd.DataFrame(rows, columns=_CURVE)


def affinities(arms: Iterable[Arm]) -> dict[str, pd.DataFrame]:
  """Returns how clients weigh each other's models, by the arm's label.

  Columns are client_id, cluster, candidate_id and affinity, the mean of each
  pair of clients over the seeds that have it.
  """
  found = {}
  for arm in arms:
    own = means.shown(means.repeated_evaluations(arm)).get(OWN_TEST)
    tables = own and [e.affinities for e in own.evaluations.values()]
    if tables and len(rows := pd.concat(tables)):
      pairs = rows.groupby(
        ['client_id', 'cluster', 'candidate_id'], as_index=False
      )
      found[arm.label] = pairs['affinity'].mean()
  return found


def _empty(columns: Sequence[str]) -> pd.DataFrame:
  return pd.DataFrame(columns=columns)

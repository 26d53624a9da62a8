"""Clients side by side: the scores of every run on a client's own test rows."""

import dataclasses
import functools
import types
from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from tff_fedfish.data.client_ids import client_id_to_cell, client_id_to_text
from tff_fedfish.files import csv_file
from tff_fedfish.reporting import match
from tff_fedfish.reporting.comparisons import honest_difference, shown_interval
from tff_fedfish.reporting.runs import OWN_TEST, Run
from tff_fedfish.reporting.words import shown

MAX_SHOWN = 30
"""Clients of a table on the page; its CSV file has all."""

_SCORES = {'accuracy': (1, 100), 'loss': (3, 1)}
"""Decimal places and factor of what is shown."""
_COLUMNS = (
  *('run', 'directory', 'model', 'round', 'client_id', *_SCORES),
  *('baseline', *(f'{name}_difference' for name in _SCORES)),
)


@dataclasses.dataclass(frozen=True, eq=False)
class RunScores:
  """A run's scores on the own test rows of clients."""

  run: Run
  """The run, repetitions pooled."""
  model: str
  """'personal' or 'global'."""
  clients: pd.DataFrame
  """'accuracy' in [0, 1] and 'loss' in nats, indexed by client id."""
  baseline: str
  """Label of the run that is subtracted; '' where there is none."""
  differences: pd.DataFrame
  """The same scores minus the baseline's, of the clients and seeds that both
  have."""
  means: dict[str, Any]
  """Score -> `honest_difference` of the mean."""


@dataclasses.dataclass(frozen=True, eq=False)
class ClientTable:
  """Runs that were scored on the same clients."""

  setting: str
  """Settings that tell its clients from those of other tables; ''."""
  runs: list[RunScores]

  @property
  def clients(self) -> list[bytes]:
    """Clients that any run has a score of, sorted."""
    return sorted({c for found in self.runs for c in found.clients.index})

  def headings(self) -> tuple[list[tuple[str, int]], list[str]]:
    """Returns headings: (run, number of its columns), and one per column."""
    groups, names = [], []
    for one in self.runs:
      own, name = ['Accuracy (%)', 'Loss'], one.baseline
      if name:
        own += [f'Accuracy − {name} (points)', f'Loss − {name}']
      groups.append((f'{one.run.label} ({one.model} model)', len(own)))
      names += own
    return groups, names

  def rows(self) -> Iterator[tuple[str, list[str]]]:
    """Yields the first `MAX_SHOWN` clients, and their cells."""
    for client in self.clients[:MAX_SHOWN]:
      cells = []
      for one in self.runs:
        cells += [_cell(one.clients, client, name) for name in _SCORES]
        if one.baseline:
          cells += [_cell(one.differences, client, n, '+') for n in _SCORES]
      yield client_id_to_text(client), cells

  def means(self) -> Iterator[tuple[str, str]]:
    """Yields the mean over clients and its 95 % interval of every column."""
    for one in self.runs:
      scores = one.run.evaluation(OWN_TEST).scores
      for name, (places, scale) in _SCORES.items():
        score = scores.get((0.0, name))
        show = functools.partial(shown, places=places, scale=scale)
        yield (show(score.mean), score.shown_ends(show)) if score else ('–', '')
      for name, found in one.means.items():
        places, scale = _SCORES[name]
        row = types.SimpleNamespace(**found)
        yield (
          shown(row.mean, places, scale, '+'),
          shown_interval(row, f'%+.{places}f', scale),
        )


def client_tables(runs: Sequence[Run]) -> list[ClientTable]:
  """Returns the tables of the pooled runs that were scored on own test rows.

  `registry.BASELINE` is subtracted from runs that differ from it in the method
  and the seeds only.
  """
  scored = [run for run in runs if run.evaluation(OWN_TEST)]
  groups = match.grouped(scored, match.clients_of)
  labels = match.labels(list(map(dict, groups)))
  return [
    ClientTable(label, [_scores(run, members) for run in members])
    for label, members in zip(labels, groups.values(), strict=True)
  ]


def own_tests_csv(tables: Sequence[ClientTable]) -> str:
  """Returns a row per run and client, in full precision."""
  lines = []
  for one in (one for table in tables for one in table.runs):
    round_num = one.run.evaluation(OWN_TEST).round_num
    both = one.clients.join(one.differences, rsuffix='_difference')
    both = both.astype(object).where(both.notna(), None)
    for client, accuracy, loss, *differences in both.itertuples():
      line = [one.run.label, one.run.name, one.model, round_num]
      line += [client_id_to_cell(client), accuracy, loss, one.baseline]
      lines.append([*line, *differences])
  return csv_file(_COLUMNS, lines)


def _scores(run: Run, others: Sequence[Run]) -> RunScores:
  evaluation = run.evaluation(OWN_TEST)
  clients = _clients(evaluation)
  name, differences, means = '', clients[:0], {}
  for other in () if run.is_baseline else others:
    is_like = match.setting_of(other) == match.setting_of(run)
    if is_like and other.is_baseline:
      sides = [
        {seeds: _clients(e) for seeds, e in side.items()}
        for side in match.paired_evaluations(
          *(one.repetitions or (one,) for one in (run, other)),
          OWN_TEST,
          0.0,
          evaluation.round_num,
        )
      ]
      found = {n: honest_difference(*sides, n) for n in _SCORES}
      if found['loss']['mean'] is not None:
        name, means = other.label, found
        common = sorted(sides[0].keys() & sides[1].keys())
        # NaN, and dropped, where a side lacks the client.
        total = sum(sides[0][seeds] - sides[1][seeds] for seeds in common)
        differences = (total / len(common)).dropna()
        break
  return RunScores(run, evaluation.model, clients, name, differences, means)


def _clients(evaluation) -> pd.DataFrame:
  """Returns `RunScores.clients` of an evaluation."""
  found = evaluation.clients_at(0.0).set_index('client_id')
  return pd.DataFrame({name: found[f'{name}_after'] for name in _SCORES})


def _cell(
  scores: pd.DataFrame, client: bytes, name: str, sign: str = ''
) -> str:
  if client not in scores.index:
    return '–'
  return shown(scores.loc[client, name], *_SCORES[name], sign)

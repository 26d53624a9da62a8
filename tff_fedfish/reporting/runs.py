"""A run as the report sees it: configuration, curves, evaluations."""

import dataclasses
import functools
import pathlib
import statistics
from collections.abc import Sequence
from typing import Any

from tff_fedfish.config import loading as config_loading
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.errors import UserError
from tff_fedfish.evaluation.results import ClientBarrier
from tff_fedfish.methods import registry
from tff_fedfish.methods.settings import AlgorithmConfig
from tff_fedfish.reporting.evaluations import Evaluation
from tff_fedfish.reporting.reading import is_finite
from tff_fedfish.run.divergence import RoundHistory

Row = dict[str, float | int | None]


@dataclasses.dataclass(frozen=True, eq=False)
class Run:
  """One run directory.

  Attributes:
    directory: Where it lies, as the user named it.
    name: The directory's name, with as many parents as make it unique.
    label: Method and local epochs, for tables and plots; unique among the runs
      of a report.
    config: The resolved configuration, nested.
    metrics: Rows of metrics.csv, by ascending `round`.
    timings: Rows of timings.csv; empty if there is none.
    environment: Versions and machine; empty if there is none.
    evaluations: Finished evaluations, by name.
    remarks: What was left out while reading, as sentences.
    round_barriers: Clients of the rounds whose Client-Server Barrier was
      measured while training, those with finite values.
    repetitions: The runs with other seeds whose mean this one is; empty for
      what lies in one directory.
  """

  directory: pathlib.Path
  name: str
  label: str
  config: dict[str, Any]
  metrics: tuple[Row, ...]
  timings: tuple[Row, ...]
  environment: dict[str, Any]
  evaluations: tuple[Evaluation, ...]
  remarks: tuple[str, ...] = ()
  round_barriers: dict[int, tuple[ClientBarrier, ...]] = dataclasses.field(
    default_factory=dict
  )
  repetitions: tuple['Run', ...] = ()

  @property
  def algorithm(self) -> str:
    """`algorithm.name` as in the configuration, such as 'fed_fish'."""
    return str(self.setting('algorithm.name') or 'unnamed')

  @property
  def method(self) -> str:
    """The method's title, such as 'FedFish'; its name if it is unknown."""
    method = registry.find_or_none(self.algorithm)
    return method.title if method else self.algorithm

  @functools.cached_property
  def train_config(self) -> TrainConfig | None:
    """The checked configuration; None if the method is unknown."""
    try:
      return config_loading.from_json_dict(self.config, str(self.directory))
    except UserError:
      return None

  @property
  def corpus_kind(self) -> str:
    """`data.corpus`: losses on different ones have no common scale."""
    return str(self.setting('data.corpus') or 'grouped_text')

  @property
  def num_local_epochs(self) -> int | float | None:
    """Local epochs per round; None if the configuration does not say."""
    value = self.setting('client_work.num_local_epochs')
    return value if isinstance(value, int | float) else None

  @property
  def num_rounds(self) -> int | None:
    """Rounds that the run is configured for."""
    value = self.setting('training.num_rounds')
    return value if isinstance(value, int) else None

  @property
  def num_seeds(self) -> int:
    """Runs that this one stands for."""
    return len(self.repetitions) or 1

  @property
  def num_diverged(self) -> int:
    """Runs, of those it stands for, that stopped as they diverged."""
    if self.repetitions:
      return sum(run.num_diverged for run in self.repetitions)
    limit = self.setting('training.max_non_finite_rounds')
    limit = limit if isinstance(limit, int) else 0
    return int(RoundHistory(self.directory, limit, self.metrics).has_diverged)

  @property
  def last_round(self) -> int | None:
    """The last round in metrics.csv; None before the first row."""
    return int(self.metrics[-1]['round']) if self.metrics else None

  @property
  def seconds_per_round(self) -> float | None:
    """Median over the rounds, so that the slow first one does not count."""
    return self._timing('seconds', statistics.median)

  @property
  def tokens_per_second(self) -> float | None:
    """Median over the rounds."""
    return self._timing('tokens_per_second', statistics.median)

  @property
  def peak_memory_bytes(self) -> float | None:
    """Maximum over the rounds."""
    return self._timing('peak_memory_bytes', max)

  def labelled(self, label: str) -> 'Run':
    """Returns the run with a label that says, too, if it diverged."""
    num_diverged, num_seeds = self.num_diverged, self.num_seeds
    if num_diverged:
      share = f'{num_diverged} of {num_seeds} ' if num_seeds > 1 else ''
      label = f'{label} ({share}diverged)'
    return dataclasses.replace(self, label=label)

  def setting(self, name: str) -> Any:
    """Returns a value of the configuration by dotted name; None: no value."""
    value: Any = self.config
    for key in name.split('.'):
      value = value.get(key) if isinstance(value, dict) else None
    return value

  def reads(self, name: str) -> bool:
    """Says whether the run's method reads a setting, 'section.setting'.

    A former version wrote settings of other methods, too. All settings of a
    method that cannot be loaded are its own.
    """
    section, _, setting = name.partition('.')
    if section != AlgorithmConfig.section:
      return True
    method = registry.find_or_none(self.algorithm)
    return method is None or setting in registry.settings_of(method)

  def series(self, *names: str) -> list[tuple[float, ...]]:
    """Returns the rows in which all the named metrics are finite."""
    return [
      tuple(row[name] for name in names)
      for row in self.metrics
      if all(is_finite(row.get(name)) for name in names)
    ]

  def last(self, name: str) -> float | None:
    """Returns the last finite value of a metric."""
    values = self.series(name)
    return values[-1][0] if values else None

  def held_out(self) -> Evaluation | None:
    """Returns the latest evaluation on held-out clients, by most seeds."""
    return _latest(e for e in self.evaluations if e.kind == 'held_out')

  def transfer(self, corpus: str) -> Evaluation | None:
    """Returns the latest evaluation on the clients of another corpus."""
    return _latest(
      e for e in self.evaluations if e.kind == 'transfer' and e.corpus == corpus
    )

  def barrier(self) -> Evaluation | None:
    """Returns the latest evaluation with a Client-Server Barrier."""
    return _latest(e for e in self.evaluations if e.has_barrier)

  def barriers_by_round(self) -> dict[int | None, tuple[ClientBarrier, ...]]:
    """Returns the clients of each round whose barrier was measured, ascending.

    An evaluation of round r replays round r + 1; what was measured while
    training comes first. None stands for an evaluation of an unknown round.
    """
    found: dict[int | None, tuple[ClientBarrier, ...]] = {
      None if e.round_num is None else e.round_num + 1: e.barrier_clients
      for e in self.evaluations
      if e.barrier_clients
    }
    found.update((r, c) for r, c in self.round_barriers.items() if c)
    return dict(
      sorted(found.items(), key=lambda item: -1 if item[0] is None else item[0])
    )

  def evaluation_at(
    self, kind: str, corpus: str | None, round_num: int
  ) -> Evaluation | None:
    """Returns the evaluation of one checkpoint.

    Args:
      kind: 'held_out', 'participating' or 'transfer'.
      corpus: Whose clients; None: any.
      round_num: The checkpoint's round.
    """
    return _latest(
      e
      for e in self.evaluations
      if e.kind == kind
      and corpus in (None, e.corpus)
      and e.round_num == round_num
    )

  def final_evaluation(self) -> Evaluation | None:
    """Returns that on held-out clients after the last planned round."""
    if self.num_rounds is None:
      return None
    return self.evaluation_at('held_out', None, self.num_rounds)

  def _timing(self, name, reduce):
    values = [
      row[name]
      for row in self.timings
      if row['round'] and is_finite(row.get(name))
    ]
    return reduce(values) if values else None


def transfer_corpora(runs: Sequence[Run]) -> list[str]:
  """Returns the names of all transfer corpora, sorted."""
  return sorted(
    {
      evaluation.corpus
      for run in runs
      for evaluation in run.evaluations
      if evaluation.kind == 'transfer'
    }
  )


def _latest(evaluations):
  return max(
    evaluations,
    # Of a pooled run: a later score of one seed is no score of all of them.
    key=lambda e: (
      e.num_seeds,
      -1 if e.round_num is None else e.round_num,
      e.name,
    ),
    default=None,
  )

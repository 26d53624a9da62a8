"""A run as the report sees it: configuration, curves, evaluations."""

import dataclasses
import functools
import math
import pathlib
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

import pandas as pd

from tff_fedfish.config import load as config_loading
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.errors import UserError
from tff_fedfish.methods import registry
from tff_fedfish.methods.settings import AlgorithmConfig
from tff_fedfish.reporting.evaluations import Evaluation
from tff_fedfish.run.corpus_identity import CorpusIdentity
from tff_fedfish.run.divergence import RoundHistory

Row = dict[str, float | int | None]


class Subject(NamedTuple):
  """Clients or rows that models are scored on, such as held-out clients."""

  kind: str
  corpus: str | None = None
  """Name of another corpus; None: the run's own, see `Run.shows_as`."""

  def __str__(self):
    if self.kind == 'own_test':
      return 'own test rows'
    clients = 'held-out clients' if self.kind == 'held_out' else 'clients'
    return f'{clients} of {self.corpus}' if self.corpus else clients


HELD_OUT = Subject('held_out')
OWN_TEST = Subject('own_test')
"""The run's clients, each on its own test rows."""

SEEDS = tuple(
  f'seeds.{name}_seed' for name in ('model', 'cohort', 'shuffle', 'privacy')
)
"""Settings in which runs differ that are repetitions of one another."""


@dataclasses.dataclass(frozen=True, eq=False)
class Run:
  """One run directory, or the mean of several that differ in seeds only."""

  directory: pathlib.Path
  """Path as the user named it."""
  name: str
  """The directory's name, with as many parents as make it unique."""
  label: str
  """Method and local epochs, for tables and plots; unique among the runs of a
  report."""
  config: dict[str, Any]
  """The resolved configuration, nested."""
  metrics: tuple[Row, ...]
  """Rows of metrics.csv, by ascending `round`."""
  timings: tuple[Row, ...]
  """Rows of timings.csv; empty if there is none."""
  environment: dict[str, Any]
  """Versions and machine; empty if there is none."""
  evaluations: tuple[Evaluation, ...]
  """Finished evaluations, by name."""
  remarks: tuple[str, ...] = ()
  """Sentences on what was left out while reading."""
  round_barriers: dict[int, pd.DataFrame] = dataclasses.field(
    default_factory=dict
  )
  """Round -> `client_barriers` measured while training."""
  identity: CorpusIdentity | None = None
  """Identity of the corpus; None: a run of an older version."""
  vocabulary: str | None = None
  """SHA-256 of the vocabulary's tokenizer.json; None: the run keeps none."""
  repetitions: tuple['Run', ...] = ()
  """The runs with other seeds whose mean this one is; empty for what lies in
  one directory."""

  @property
  def algorithm(self) -> str:
    """`algorithm.name` as in the configuration, such as 'fed_fish'."""
    return str(self.setting('algorithm.name') or 'unnamed')

  @property
  def is_baseline(self) -> bool:
    """Whether the method is the one that others are compared with."""
    return self.algorithm == registry.BASELINE.name

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
    """`data.corpus`: 'grouped_text', or the name of an image corpus."""
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
  def seeds(self) -> str:
    """The seeds in which repetitions differ; that of privacy with DP-SGD."""
    names = SEEDS if self.setting('local_privacy.clip_norm') else SEEDS[:-1]
    return ', '.join(repr(self.setting(name)) for name in names)

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
  def base_label(self) -> str:
    """The method with its local epochs, such as 'FedFish, E = 8'."""
    epochs = self.num_local_epochs
    return self.method if epochs is None else f'{self.method}, E = {epochs}'

  def labelled(self, label: str) -> 'Run':
    """Returns the run with a label that also says if it diverged."""
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

    A former version also wrote settings of other methods. All settings of a
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

  def typical(self, name: str) -> float | None:
    """Returns the median of a timing over the rounds; of memory the maximum.

    Round 0, which trains nothing, does not count.
    """
    rows = (row for row in self.timings if row['round'])
    values = [row[name] for row in rows if is_finite(row.get(name))]
    reduce = max if name == 'peak_memory_bytes' else statistics.median
    return reduce(values) if values else None

  def evaluation(
    self, subject: Subject, round_num: int | None = None
  ) -> Evaluation | None:
    """Returns the latest evaluation on some clients, by most seeds.

    That is of any round's checkpoint, or only of `round_num`.
    """
    return _latest(self.evaluations_on(subject, round_num))

  def evaluations_on(
    self, subject: Subject, round_num: int | None = None
  ) -> list[Evaluation]:
    """Returns evaluations on some clients, by name."""
    return [
      e
      for e in self.evaluations
      if self.shows_as(e) == subject and round_num in (None, e.round_num)
    ]

  def shows_as(self, evaluation: Evaluation) -> Subject | None:
    """Returns the clients that an evaluation is on; None: of the training.

    The held-out clients of a run are those of its own corpus or, where none of
    these was evaluated, of another part of the same grouping. Further parts are
    subjects of their own.
    """
    if evaluation.kind in ('participating', 'own_validation'):
      return None
    if evaluation.kind == OWN_TEST.kind:
      return OWN_TEST  # Always of the run's own corpus.
    if evaluation.kind == 'held_out' and (
      evaluation.identity is None
      or evaluation.identity.fingerprint == self._held_out_fingerprint
    ):
      return HELD_OUT
    return Subject(evaluation.kind, evaluation.corpus)

  @functools.cached_property
  def _held_out_fingerprint(self):
    own = self.identity and self.identity.fingerprint
    held_out = [e for e in self.evaluations if e.kind == 'held_out']
    found = [e.identity.fingerprint for e in held_out if e.identity]
    return own if own in found else next(iter(found), None)

  def held_out(self) -> Evaluation | None:
    """Returns the latest evaluation on held-out clients."""
    return self.evaluation(HELD_OUT)

  def final_evaluation(self) -> Evaluation | None:
    """Returns that on held-out clients after the last planned round."""
    last = self.num_rounds
    return None if last is None else self.evaluation(HELD_OUT, last)

  def barrier(self) -> Evaluation | None:
    """Returns the latest evaluation with a Client-Server Barrier."""
    return _latest(e for e in self.evaluations if e.has_barrier)

  def barriers_by_round(self) -> dict[int | None, pd.DataFrame]:
    """Returns the clients of each round whose barrier was measured, ascending.

    An evaluation of round r replays round r + 1; what was measured while
    training comes first. None stands for an evaluation of an unknown round.
    """
    found: dict[int | None, pd.DataFrame] = {
      None if e.round_num is None else e.round_num + 1: e.barrier_clients
      for e in self.evaluations
      if len(e.barrier_clients)
    }
    found |= {r: c for r, c in self.round_barriers.items() if len(c)}
    rounds = sorted(found, key=lambda r: -1 if r is None else r)
    return {r: found[r] for r in rounds}


def subjects(runs: Sequence[Run]) -> list[Subject]:
  """Returns held-out clients, then those of further parts and other corpora."""
  found = {run.shows_as(e) for run in runs for e in run.evaluations}
  return [HELD_OUT, *sorted(found - {HELD_OUT, None})]


def models_in_words(runs: Sequence[Run]) -> str:
  """Returns which runs have personal models and which a global one.

  Such as 'Personal models: A. Global model: B.', of the runs with an evaluation
  on own test rows.
  """
  labels = {'Personal models': [], 'Global model': []}
  for run in runs:
    if evaluation := run.evaluation(OWN_TEST):
      is_personal = evaluation.model == 'personal'
      kind = 'Personal models' if is_personal else 'Global model'
      labels[kind].append(run.label)
  return ' '.join(f'{k}: {"; ".join(x)}.' for k, x in labels.items() if x)


def is_finite(value: float | None) -> bool:
  """Returns whether `value` is there and is neither NaN nor infinite."""
  return value is not None and math.isfinite(value)


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

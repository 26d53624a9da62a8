"""A run directory and its evaluations, as they were read."""

import dataclasses
import functools
import math
import pathlib
import statistics
from typing import Any, NamedTuple

import pandas as pd

from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.evaluation.results import Evaluation
from tff_fedfish.methods import registry
from tff_fedfish.run.corpus_identity import CorpusIdentity
from tff_fedfish.run.divergence import RoundHistory

Row = dict[str, float | int | None]

SEEDS = tuple(
  f'seeds.{name}_seed' for name in ('model', 'cohort', 'shuffle', 'privacy')
)
"""Settings in which runs differ that are repetitions of one another."""
Seeds = tuple[int, ...]
"""Values of `SEEDS`, without that of privacy where there is no DP-SGD."""


class Subject(NamedTuple):
  """Clients or rows that models are scored on, such as held-out clients."""

  kind: str
  corpus: str | None = None
  """Name of another corpus; None: the run's own, see `Run.subject_of`."""

  def __str__(self):
    if self.kind == 'own_test':
      return 'own test rows'
    clients = 'held-out clients' if self.kind == 'held_out' else 'clients'
    return f'{clients} of {self.corpus}' if self.corpus else clients

  @property
  def key(self) -> str:
    """The beginning of its columns in summary.csv: 'transfer/CORPUS'."""
    return '/'.join(filter(None, self))


HELD_OUT = Subject('held_out')
OWN_TEST = Subject('own_test')
"""The run's clients, each on its own test rows."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class NamedEvaluation(Evaluation):
  """One directory `evaluations/NAME` of a run.

  The accuracy of a non-finite loss is NaN.
  """

  name: str
  corpus: str
  """Name of the corpus whose clients were scored; in a report, different for
  different corpora."""
  written: float = 0.0
  """Time at which it was written, in seconds; the newest of equals counts."""

  @property
  def round_num(self) -> int:
    """Round of the checkpoint."""
    return self.summary.round_num

  @property
  def fingerprint(self) -> str:
    """That of the corpus."""
    return self.summary.corpus_identity.fingerprint

  @property
  def model(self) -> str:
    """'personal' if each client was scored with its own model, or 'global'."""
    return next(iter(self.clients['model']), 'global')

  @property
  def fractions(self) -> list[float]:
    """Fractions of the client's data that were personalized on, ascending."""
    return sorted(set(self.clients['fraction']))

  def scores_at(self, fraction: float) -> pd.DataFrame:
    """Returns the rows of `clients` at a fraction, by client."""
    rows = self.clients[self.clients['fraction'] == fraction]
    return rows.set_index('client_id')

  @property
  def num_trials(self) -> int:
    """Rounds that the checkpoint was chosen from, as the best; 1: no choice."""
    return self.summary.checkpoint.get('best_of_rounds', 1)

  @property
  def is_chosen_on_scored(self) -> bool:
    """Whether the checkpoint was chosen on the clients that were scored."""
    chosen_on = self.summary.checkpoint.get('chosen_on')
    return (self.summary.kind, chosen_on) in (
      ('held_out', 'held_out_clients'),
      ('own_test', 'own_test_rows'),
    )


class Measured:
  """Config, metrics and timings of one run, or of runs but for their seeds."""

  train_config: TrainConfig
  metrics: tuple[Row, ...]
  timings: tuple[Row, ...]

  @property
  def algorithm(self) -> str:
    """The method's name, `algorithm.name`."""
    return self.train_config.algorithm.name

  @property
  def method(self) -> str:
    """The method's title, such as 'FedFish'."""
    return registry.find(self.algorithm).title

  @property
  def num_local_epochs(self) -> int | None:
    """Local epochs per round; None: local steps are counted instead."""
    return self.train_config.client_work.num_local_epochs

  @property
  def num_rounds(self) -> int:
    """Rounds that the run is configured for."""
    return self.train_config.training.num_rounds

  def series(self, *names: str) -> list[tuple[float, ...]]:
    """Returns the rows in which all the named metrics are finite."""
    return [
      tuple(row[name] for name in names)
      for row in self.metrics
      if all(is_finite(row.get(name)) for name in names)
    ]

  def last(self, name: str) -> float | None:
    """Returns the last value of a metric; None if it is not finite."""
    values = [row[name] for row in self.metrics if row.get(name) is not None]
    return values[-1] if values and is_finite(values[-1]) else None

  def in_round(self, name: str, round_num: int) -> float | None:
    """Returns a metric in one round; None where it is not finite."""
    return dict(self.series('round', name)).get(round_num)

  def typical(self, name: str) -> float | None:
    """Returns the median of a timing over the rounds; of memory the maximum.

    Round 0, which trains nothing, does not count.
    """
    rows = (row for row in self.timings if row['round'])
    values = [row[name] for row in rows if is_finite(row.get(name))]
    reduce = max if name == 'peak_memory_bytes' else statistics.median
    return reduce(values) if values else None

  @property
  def last_round(self) -> int | None:
    """The last round in metrics.csv; None before the first row."""
    return int(self.metrics[-1]['round']) if self.metrics else None


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Run(Measured):
  """One run directory."""

  directory: pathlib.Path
  """Path as the user named it."""
  name: str = ''
  """The directory's name, with as many parents as make it unique."""
  label: str = ''
  """Method and local epochs; unique among the runs of a report."""
  config: dict[str, Any]
  """config.json, nested."""
  train_config: TrainConfig
  """The same, checked."""
  metrics: tuple[Row, ...]
  """Rows of metrics.csv, by ascending `round`."""
  timings: tuple[Row, ...]
  """Rows of timings.csv; empty if there is none."""
  environment: dict[str, Any]
  """Versions and machine; empty if there is none."""
  evaluations: tuple[NamedEvaluation, ...] = ()
  """Finished evaluations, by name."""
  remarks: tuple[str, ...] = ()
  """Clauses on what was left out while reading."""
  identity: CorpusIdentity | None = None
  """Identity of the corpus; None: the run has no corpus.json."""
  vocabulary: str | None = None
  """SHA-256 of the vocabulary's tokenizer.json; None: the run keeps none."""
  search: tuple[int, int] | None = None
  """Trials of the learning-rate search that chose the run's rates, and its
  validation clients; None: no search did."""

  @property
  def holds_images(self) -> bool:
    """Whether the run was trained on images."""
    return self.train_config.data.corpus != 'grouped_text'

  @property
  def seeds(self) -> Seeds:
    """The seeds in which repetitions differ; that of privacy with DP-SGD."""
    is_private = self.train_config.local_privacy.is_on
    values = vars(self.train_config.seeds)
    names = SEEDS if is_private else SEEDS[:-1]
    return tuple(values[name.partition('.')[2]] for name in names)

  @functools.cached_property
  def history(self) -> RoundHistory:
    """The history that metrics.csv has: divergence, early stop."""
    training = self.train_config.training
    return RoundHistory(
      self.directory,
      training.max_non_finite_rounds,
      self.metrics,
      training.patience,
    )

  @property
  def has_diverged(self) -> bool:
    """Whether the run stopped as it diverged."""
    return self.history.has_diverged

  @property
  def is_over(self) -> bool:
    """Whether it has no further round."""
    is_stopped = self.has_diverged or self.history.has_stopped_early
    return is_stopped or (self.last_round or 0) >= self.num_rounds

  @property
  def base_label(self) -> str:
    """The method with its local epochs, such as 'FedFish, E = 8'."""
    epochs = self.num_local_epochs
    return self.method if epochs is None else f'{self.method}, E = {epochs}'

  def subject_of(self, evaluation: NamedEvaluation) -> Subject | None:
    """Returns the clients of an evaluation; None: clients or rows of training.

    The held-out clients of a run are those of its own corpus or, where none of
    these was evaluated, of another part of the same grouping. Further parts are
    subjects of their own.
    """
    kind = evaluation.summary.kind
    if kind in ('participating', 'own_validation'):
      return None
    if kind == OWN_TEST.kind:
      return OWN_TEST  # Always of the run's own corpus.
    if kind == 'held_out':
      others = [e for e in self.evaluations if e.summary.kind == kind]
      fingerprints = [e.fingerprint for e in others]
      own = self.identity and self.identity.fingerprint
      if own not in fingerprints:
        own = fingerprints[0]
      if evaluation.fingerprint == own:
        return HELD_OUT
    return Subject(kind, evaluation.corpus)


def shared_seeds(seeds: Seeds) -> Seeds:
  """Returns the seeds but for that of privacy, which repeats the noise only."""
  return seeds[: len(SEEDS) - 1]


def is_finite(value: float | None) -> bool:
  """Returns whether `value` is there and is neither NaN nor infinite."""
  return value is not None and math.isfinite(value)

"""Contents of `evaluations/NAME` of a run, checked and typed."""

import dataclasses
import pathlib
import statistics
from collections.abc import Sequence
from typing import Any

from tff_fedfish.errors import UserError
from tff_fedfish.evaluation.results import (
  ClientBarrier,
  ClientEvaluation,
  read_evaluation,
)
from tff_fedfish.reporting.reading import is_finite

_KINDS = ('held_out', 'participating', 'transfer')


@dataclasses.dataclass(frozen=True)
class Interval:
  """A mean over clients with its 95 % interval, where one was computed.

  Attributes:
    mean: Over clients, and over seeds where runs were repeated.
    ci_low: Lower end of the interval.
    ci_high: Upper end.
    seed_means: (seeds of a run, its mean) of the runs that it is of; empty
      where nobody asked which these are.
  """

  mean: float
  ci_low: float | None = None
  ci_high: float | None = None
  seed_means: tuple[tuple[Any, float], ...] = ()

  @property
  def sd_over_seeds(self) -> float | None:
    """Sample standard deviation of the runs' means; None for a single run."""
    means = [mean for _, mean in self.seed_means]
    return statistics.stdev(means) if len(means) > 1 else None


@dataclasses.dataclass(frozen=True)
class FractionScore:
  """Scores after personalization on one fraction of each client's data.

  Attributes:
    loss: Mean over clients of the token loss. Unit: nats per token.
    accuracy: Mean over clients of the token accuracy, in [0, 1].
  """

  loss: Interval | None
  accuracy: Interval | None


@dataclasses.dataclass(frozen=True)
class Evaluation:
  """One evaluation directory.

  Attributes:
    name: The directory's name.
    kind: 'held_out', 'participating' or 'transfer'.
    corpus: Name of the corpus whose clients were scored.
    round_num: Round of the checkpoint that was scored; None if not given.
    num_clients: Clients scored.
    fractions: Scores by fraction of the client's data, ascending.
    clients: Rows of per_client.csv with finite losses.
    barrier: Mean Client-Server Barrier in 'loss' and 'error'; may be empty.
    barrier_clients: Rows of barrier.csv with finite values.
    num_non_finite_rows: Rows of both files that were left out as non-finite.
    skipped_clients: Clients that were not scored, by reason.
    personalization: Settings of the fine-tuning, by name.
    has_barrier: Whether the barrier was measured, with whatever result.
    effective_clients: How many clients the mean of a weight is worth in the
      round that was replayed, over all weights; None: not measured.
    unknown_tokens: Fraction of unknown tokens in what was scored; None: of
      images, or not counted.
    num_seeds: Runs whose evaluations this one stands for.
    num_left_out_clients: Clients that were not scored, or not with a finite
      loss, in some of these runs and therefore count in none.
  """

  name: str
  kind: str
  corpus: str
  round_num: int | None
  num_clients: int | None
  fractions: dict[float, FractionScore]
  clients: tuple[ClientEvaluation, ...]
  barrier: dict[str, Interval]
  barrier_clients: tuple[ClientBarrier, ...]
  num_non_finite_rows: int
  skipped_clients: dict[str, int]
  personalization: dict[str, Any]
  has_barrier: bool
  effective_clients: Interval | None = None
  unknown_tokens: float | None = None
  num_seeds: int = 1
  num_left_out_clients: int = 0

  def clients_at(self, fraction: float) -> tuple[ClientEvaluation, ...]:
    """Returns the clients personalized on `fraction` of their data."""
    return tuple(c for c in self.clients if c.fraction == fraction)

  def largest_client_fraction(self) -> float | None:
    """Returns the largest personalization fraction in per_client.csv."""
    fractions = {c.fraction for c in self.clients if c.fraction > 0}
    return max(fractions, default=None)


def barrier_of(client: ClientBarrier, measure: str) -> float:
  """Returns one client's barrier in 'loss' or 'error'; positive is worse.

  Error is 1 - accuracy: (1 - global) - (1 - local) = local - global accuracy.
  """
  if measure == 'loss':
    return client.global_loss - client.local_loss
  return client.local_accuracy - client.global_accuracy


def load_evaluation(directory: pathlib.Path) -> Evaluation:
  """Returns the evaluation in `directory`.

  Args:
    directory: What `fedfish evaluate` wrote.

  Returns:
    The evaluation.

  Raises:
    UserError: If a file is missing, damaged or of a newer schema.
  """
  found = read_evaluation(directory)
  summary = found.summary
  checked = _Checked(directory / 'summary.json')
  kind = summary.get('kind')
  if kind not in _KINDS:
    raise checked.error('kind', f'one of {", ".join(_KINDS)}', kind)
  clients = finite_rows(found.clients)
  barriers = finite_rows(found.barriers or ())
  num_rows = len(found.clients) + len(found.barriers or ())
  checkpoint = checked.object(summary, 'checkpoint')
  barrier = checked.object(summary, 'client_server_barrier')
  skipped = checked.object(summary, 'skipped_clients')
  return Evaluation(
    name=directory.name,
    kind=kind,
    corpus=str(summary.get('corpus', 'unnamed corpus')),
    round_num=checked.count(checkpoint, 'round'),
    num_clients=checked.count(summary, 'num_clients'),
    fractions=checked.fractions(summary),
    clients=clients,
    barrier={
      name: interval
      for name in ('loss', 'error')
      if (interval := checked.interval(barrier, name))
    },
    barrier_clients=barriers,
    num_non_finite_rows=num_rows - len(clients) - len(barriers),
    skipped_clients={
      reason: count
      for reason in skipped
      if (count := checked.count(skipped, reason))
    },
    personalization=checked.object(summary, 'personalization'),
    has_barrier=bool(barrier) or found.barriers is not None,
    effective_clients=checked.interval(summary, 'effective_clients'),
    unknown_tokens=checked.number(summary, 'unknown_token_fraction'),
  )


class _Checked:
  """Takes values out of a parsed file; a wrong type is a UserError."""

  def __init__(self, path: pathlib.Path):
    self._path = path

  def object(self, parent: dict[str, Any], name: str) -> dict[str, Any]:
    value = parent.get(name)
    if value is not None and not isinstance(value, dict):
      raise self.error(name, 'an object', value)
    return value or {}

  def number(self, parent: dict[str, Any], name: str) -> float | None:
    value = parent.get(name)
    if value is not None and (
      isinstance(value, bool) or not isinstance(value, int | float)
    ):
      raise self.error(name, 'a number', value)
    return value if is_finite(value) else None

  def count(self, parent: dict[str, Any], name: str) -> int | None:
    value = self.number(parent, name)
    return None if value is None else int(value)

  def interval(self, parent: dict[str, Any], name: str) -> Interval | None:
    values = self.object(parent, name)
    mean = self.number(values, 'mean')
    if mean is None:
      return None
    low, high = self.number(values, 'ci_low'), self.number(values, 'ci_high')
    if low is None or high is None:
      return Interval(mean)
    return Interval(mean, low, high)

  def fractions(self, summary: dict[str, Any]) -> dict[float, FractionScore]:
    entries = summary.get('fractions', [])
    if not isinstance(entries, list):
      raise self.error('fractions', 'a list', entries)
    scores = {}
    for entry in entries:
      if not isinstance(entry, dict):
        raise self.error('fractions', 'a list of objects', entry)
      fraction = self.number(entry, 'fraction')
      if fraction is None:
        raise self.error('fractions', 'a list with `fraction` in each', entry)
      scores[float(fraction)] = FractionScore(
        self.interval(entry, 'loss'), self.interval(entry, 'accuracy')
      )
    return dict(sorted(scores.items()))

  def error(self, name: str, required: str, found: Any) -> UserError:
    return UserError(
      f'{str(self._path)!r}: `{name}` must be {required}, but is '
      f'{repr(found)[:60]}. Repeat the evaluation, or remove this directory.'
    )


def finite_rows(rows: Sequence[Any]) -> tuple[Any, ...]:
  """Returns the rows whose numbers are all finite.

  Args:
    rows: Dataclasses with numbers, such as `ClientBarrier`.
  """
  return tuple(
    row
    for row in rows
    if all(
      is_finite(value)
      for value in dataclasses.asdict(row).values()
      if isinstance(value, float)
    )
  )

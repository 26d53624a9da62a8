"""summary.csv: everything that can be said of a run in numbers.

Tables of the page and of the console choose from the same columns.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from tff_fedfish import files
from tff_fedfish.evaluation import intervals
from tff_fedfish.evaluation.statistics import with_differences
from tff_fedfish.reporting import keys
from tff_fedfish.reporting.arms import Arm, mean
from tff_fedfish.reporting.estimates import MEASURES, Estimate, estimate
from tff_fedfish.reporting.runs import HELD_OUT, Run, Subject
from tff_fedfish.reporting.scores import Sample, Scores, read_scores

_BARRIERS = tuple(
  f'barrier/{name}' for name in ('loss', 'global_loss', 'local_loss', 'error')
)
_TRAFFIC = ('communication/uplink_units', 'communication/total_units')
DOWNLINK = 'communication/downlink_units'
_TIMINGS = {
  'seconds_per_round': 'seconds',
  'tokens_per_second': 'tokens_per_second',
  'peak_memory_bytes': 'peak_memory_bytes',
}
_LAST = (
  *('train/loss', 'held_out/loss', 'held_out/accuracy'),
  *('personal/loss', 'personal/accuracy'),
  *('privacy/epsilon_mean', 'privacy/epsilon_max'),
)


class Value(NamedTuple):
  """One number of an arm."""

  mean: float
  estimate: Estimate | None = None
  """The same with its interval, where one was computed."""
  problem: str = ''
  """`Sample.problem`: the mean is of survivors and not shown."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Column:
  """One number of each arm that has it."""

  key: str
  """Name in summary.csv, such as 'held_out/loss/0.25'."""
  measure: str
  """'loss', 'hurt' and the like; of what is not of an evaluation, the key."""
  values: dict[str, Value]
  """Values by the arm's label; not empty."""
  subject: Subject | None = None
  """Clients that were scored; None: it is not of an evaluation."""
  fraction: float | None = None
  """Fraction of the client's data that was personalized on."""


def find_columns(scores: Scores) -> list[Column]:
  """Returns the columns in which any arm has a value."""
  arms = scores.arms

  def last(key):
    return {arm.label: arm.last(key) for arm in arms}

  columns = list(_scores(scores))
  barriers = {arm.label: _barrier(arm) for arm in arms}
  for key in _BARRIERS:
    # Where no round was replayed, as measured while training.
    replayed = {label: own[key] for label, own in barriers.items() if own}
    columns.append(_column(key, last(key) | replayed))
  columns += [_column(key, last(key)) for key in _TRAFFIC]
  uplinks, totals = map(last, _TRAFFIC)
  downlinks = {
    label: None if total is None else total - uplinks[label]
    for label, total in totals.items()
  }
  columns.append(_column(DOWNLINK, downlinks))
  for key, timing in _TIMINGS.items():
    values = {arm.label: arm.typical(timing) for arm in arms}
    columns.append(_column(key, values))
  columns.append(_column('round', {arm.label: arm.last_round for arm in arms}))
  columns.append(_column('tokens_seen', dict(map(_tokens_seen, arms))))
  of_methods = _columns_of_methods(arms)
  columns += [_column(key, last(key)) for key in (*_LAST, *of_methods)]
  return [column for column in columns if column.values]


def summary_csv(runs: Sequence[Run]) -> str:
  """Returns all columns as CSV, a row per run, with the ends of intervals.

  A mean of survivors is left empty.
  """
  header = ['run', 'directory', 'method', 'num_local_epochs', 'round']
  lines = [
    [run.label, run.name, run.algorithm, run.num_local_epochs, run.last_round]
    for run in runs
  ]
  for column in find_columns(read_scores(runs, averages_seeds=False)):
    if column.key == 'round':
      continue
    values = [column.values.get(run.label) for run in runs]
    values = [None if v and v.problem else v for v in values]
    header.append(column.key)
    has_ends = any(v and v.estimate for v in values)
    if has_ends:
      header += [f'{column.key}/ci_low', f'{column.key}/ci_high']
    for value, line in zip(values, lines, strict=True):
      line.append(value and value.mean)
      if has_ends:
        own = value and value.estimate
        line += [own and own.low, own and own.high]
  return files.csv_file(header, lines)


def _scores(scores: Scores) -> Iterator[Column]:
  """Yields the scores on each subject, then how they spread over clients."""
  by_subject = keys.grouped(scores.shown, lambda sample: sample.subject)
  ordered = sorted(by_subject.items(), key=lambda i: (i[0] != HELD_OUT, i[0]))
  for _, samples in ordered:
    by_fraction = keys.grouped(samples, lambda sample: sample.fraction)
    fractions = sorted(by_fraction.items())
    for measure in MEASURES:
      for fraction, own in fractions:
        yield _score(own, measure, f'{measure}/{fraction:g}', _estimated)
    for fraction, own in fractions:
      key = f'bits_per_byte/{fraction:g}'
      yield _score(own, 'bits_per_byte', key, lambda s, m: s.bits_per_byte)
    yield _score(samples, 'unknown_tokens', 'unknown_tokens', _unknown_tokens)
    yield _score(samples, 'round', 'round', lambda s, m: s.rounds[-1])
  for _, samples in ordered:
    by_fraction = keys.grouped(samples, lambda sample: sample.fraction)
    for fraction, own in sorted(by_fraction.items()):
      for measure in ('p10', 'p50', 'p90', 'worst', 'hurt'):
        key = f'spread/{fraction:g}/{measure}'
        yield _score(own, measure, key, _spread)


def _score(
  samples: Sequence[Sample],
  measure: str,
  key: str,
  value: Callable[[Sample, str], Estimate | float | None],
) -> Column:
  values = {}
  for sample in samples:
    own = value(sample, measure)
    estimate = own if isinstance(own, Estimate) else None
    if own is not None or (sample.problem and measure in MEASURES):
      values[sample.arm.label] = Value(
        estimate.mean if estimate else own,
        estimate,
        # How many clients are hurt includes those with no finite loss.
        sample.problem if measure != 'hurt' else '',
      )
  return Column(
    key=f'{samples[0].subject.key}/{key}',
    measure=measure,
    values=values,
    subject=samples[0].subject,
    fraction=samples[0].fraction,
  )


def _estimated(sample: Sample, measure: str) -> Estimate | None:
  return sample.estimates[measure]


def _unknown_tokens(sample: Sample, _: str) -> float | None:
  summaries = [e.summary for e in sample.evaluations.values()]
  return mean([s.unknown_token_fraction for s in summaries])


def _spread(sample: Sample, measure: str) -> float | None:
  if measure == 'hurt':
    return sample.hurt
  if not len(sample.losses):
    return None
  if measure == 'worst':
    return intervals.worst_decile(sample.losses)
  return float(sample.losses.quantile(int(measure[1:]) / 100))


def _barrier(arm: Arm) -> dict[str, Value] | None:
  """Returns the barrier's columns, of the seeds that replayed the last round.

  Clients that are not finite leave it: it ranks nothing.
  """
  replayed = [(r.seeds, e) for r in arm.runs for e in r.evaluations]
  replayed = [(s, e) for s, e in replayed if e.barriers is not None]
  if not replayed:
    return None
  last = max(e.round_num for _, e in replayed)
  by_seed = {s: e.barriers for s, e in replayed if e.round_num == last}
  names = ('global_loss', 'local_loss', 'global_accuracy', 'local_accuracy')
  clients: dict[str, dict[str, dict[bytes, float]]] = {}
  for seeds, table in by_seed.items():
    table = table[np.isfinite(table[list(names)]).all(axis='columns')]
    table = with_differences(table.set_index('client_id'))
    for key in _BARRIERS:
      column = table[key.removeprefix('barrier/')].to_dict()
      clients.setdefault(key, {})[seeds] = column
  values = {}
  for key, own in clients.items():
    # Each seed's round has clients of its own.
    means = [sum(c.values()) / len(c) for c in own.values() if c]
    is_one = len(own) == 1 and not key.endswith('l_loss')
    one = estimate(own) if is_one else None
    if means:
      values[key] = Value(sum(means) / len(means), one)
  return values or None


def _column(key: str, values: dict[str, Value | float | None]) -> Column:
  typed = {
    label: value if isinstance(value, Value) else Value(value)
    for label, value in values.items()
    if value is not None
  }
  return Column(key=key, measure=key, values=typed)


def _tokens_seen(arm: Arm) -> tuple[str, float | None]:
  total = sum(row.get('train/num_tokens') or 0 for row in arm.metrics)
  return arm.label, total or None


def _columns_of_methods(arms: Sequence[Arm]) -> Iterable[str]:
  """Returns columns that methods add; not those that end at 0 in all arms."""
  return dict.fromkeys(
    column.name
    for arm in arms
    for column in arm.train_config.method.columns(arm.train_config)
    if arm.last(column.name)
  )

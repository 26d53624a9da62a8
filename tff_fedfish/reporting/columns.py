"""The columns of the main table: where values come from and how they look."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Sequence

from tff_fedfish.reporting.evaluations import Evaluation, Interval
from tff_fedfish.reporting.runs import Run, transfer_corpora
from tff_fedfish.reporting.words import words_of

# None: neither direction is better.
_LOWER_IS_BETTER = {
  'communication/uplink_units': True,
  'communication/total_units': True,
  'seconds_per_round': True,
  'tokens_per_second': False,
  'peak_memory_bytes': True,
  'round': None,
  'train/loss': None,
  'held_out/loss': True,
  'held_out/accuracy': False,
}


@dataclasses.dataclass(frozen=True)
class Column:
  """One column of the main table.

  Attributes:
    key: Name in summary.csv, such as 'held_out/loss/0.25'.
    panel: 'held_out', 'transfer: CORPUS', 'cost', 'training' or 'method'.
    measure: 'loss', 'accuracy', 'barrier', 'cost' or 'further'.
    group: Heading shared by neighbours, with the unit.
    heading: The column's own heading; may be empty.
    lower_is_better: None where neither direction is better.
    show: Formats a value.
    value: Returns a run's value, or None if it has none.
  """

  key: str
  panel: str
  measure: str
  group: str
  heading: str
  lower_is_better: bool | None
  show: Callable[[float], str]
  value: Callable[[Run], Interval | None]


def main_columns(runs: Sequence[Run]) -> Iterator[Column]:
  """Yields all columns that the main table of `runs` may have, in order."""
  yield from _score_columns(runs, 'held_out', Run.held_out)
  for corpus in transfer_corpora(runs):
    yield from _score_columns(
      runs, f'transfer: {corpus}', lambda run, c=corpus: run.transfer(c)
    )
  yield _barrier_column('loss', 'Barrier, loss (nats)', _signed)
  yield _barrier_column('error', 'Barrier, error (points)', _signed_points)
  yield Column(
    'effective_clients',
    'cost',
    'further',
    'Effective clients',
    '',
    # A mean over fewer is noisier, but may be of those who know.
    None,
    _one_digit,
    _effective_clients,
  )
  metric, cost = _metric_column, _cost_column
  words = words_of(runs)
  # Fewer rounds are not a saving.
  is_fair = len({run.last_round for run in runs}) == 1
  yield metric(
    'communication/uplink_units',
    'Uplink (units)',
    _count,
    'cost',
    is_ranked=is_fair,
  )
  yield metric(
    'communication/total_units', 'Both ways (units)', _count, is_ranked=is_fair
  )
  yield cost('seconds_per_round', 'Seconds per round', _seconds, 'cost')
  yield cost(
    'tokens_per_second', f'{words.unit.capitalize()}s per second', _whole
  )
  yield cost('peak_memory_bytes', 'Peak memory (GiB)', _gibibytes)
  yield metric('round', 'Rounds', _count, panel='training')
  yield metric(
    'train/loss', f'Train {words.loss_label}', _loss, panel='training'
  )
  yield metric(
    'held_out/loss', f'Held-out {words.loss_label}', _loss, panel='training'
  )
  yield metric(
    'held_out/accuracy',
    f'Held-out {words.accuracy_label}',
    _percent,
    panel='training',
  )
  for name in _method_columns(runs):
    yield metric(name, name, _number, panel='method', is_ranked=False)


def _method_columns(runs) -> Iterable[str]:
  """Returns columns that methods add; not those that end at 0 in all runs."""
  return dict.fromkeys(
    column.name
    for run in runs
    if (config := run.train_config)
    for column in config.method.columns(config)
    if run.last(column.name)
  )


def _score_columns(runs, panel, choose: Callable[[Run], Evaluation | None]):
  evaluations = [evaluation for run in runs if (evaluation := choose(run))]
  fractions = sorted({f for e in evaluations for f in e.fractions})
  words = words_of(runs)
  for measure, show in (('loss', _loss), ('accuracy', _percent)):
    for fraction in fractions:

      def value(run, measure=measure, fraction=fraction):
        evaluation = choose(run)
        score = evaluation and evaluation.fractions.get(fraction)
        return getattr(score, measure) if score else None

      yield Column(
        key=f'{panel.replace(": ", "/")}/{measure}/{fraction:g}',
        panel=panel,
        measure=measure,
        group=words.label(measure),
        heading=f'{100 * fraction:g} %',
        lower_is_better=measure == 'loss',
        show=show,
        value=value,
      )

  def unknown_tokens(run):
    evaluation = choose(run)
    found = evaluation and evaluation.unknown_tokens
    return None if found is None else Interval(found)

  yield Column(
    f'{panel.replace(": ", "/")}/unknown_tokens',
    panel,
    'further',
    'Unknown tokens (%)',
    '',
    None,
    _percent,
    unknown_tokens,
  )


def _barrier_column(measure, group, show):
  def value(run):
    evaluation = run.barrier()
    found = evaluation and evaluation.barrier.get(measure)
    # As measured while training.
    last = run.last(f'barrier/{measure}')
    return found or (None if last is None else Interval(last))

  return Column(
    f'barrier/{measure}',
    'cost',
    'barrier' if measure == 'loss' else 'further',
    group,
    '',
    True,
    show,
    value,
  )


def _effective_clients(run):
  evaluation = run.barrier()
  return evaluation and evaluation.effective_clients


def _metric_column(
  name, group, show, measure='further', *, panel='cost', is_ranked=True
):
  def value(run):
    last = run.last(name)
    return None if last is None else Interval(last)

  better = _LOWER_IS_BETTER[name] if is_ranked else None
  return Column(name, panel, measure, group, '', better, show, value)


def _cost_column(name, group, show, measure='further'):
  def value(run):
    found = getattr(run, name)
    return None if found is None else Interval(found)

  return Column(
    name, 'cost', measure, group, '', _LOWER_IS_BETTER[name], show, value
  )


def _loss(value):
  return f'{value:.3f}'


def _percent(value):
  return f'{100 * value:.1f}'


def _signed(value):
  return f'{value:+.3f}'.replace('-', '−')


def _signed_points(value):
  return f'{100 * value:+.2f}'.replace('-', '−')


def _count(value):
  return f'{value:,.0f}' if abs(value) >= 10_000 else f'{value:.5g}'


def _number(value):
  return _count(value).replace('-', '−')


def _one_digit(value):
  return f'{value:.1f}'


def _whole(value):
  return f'{value:,.0f}'


def _seconds(value):
  return (
    f'{value:.{max(0, 1 - math.floor(math.log10(value)))}f}'
    if (0.001 <= value < 10)
    else f'{value:.1f}'
  )


def _gibibytes(value):
  return f'{value / 2**30:.2f}'

"""Rows of the tables in docs/experiments.md, made from the runs' results.

  PYTHONPATH=.:tests python tests/result_tables.py DIR

writes their numbers as DIR/NAME.csv, one file for each experiment.
"""

import csv
import functools
import json
import pathlib
import sys
from typing import Any

from tff_fedfish.reporting import matching
from tff_fedfish.reporting.comparisons import (
  Comparison,
  compare_methods,
  paired_difference,
)
from tff_fedfish.reporting.loading import load_runs
from tff_fedfish.reporting.repetitions import pool_repetitions
from tff_fedfish.reporting.runs import Run, transfer_corpora

RESULTS = pathlib.Path(__file__).parents[1] / 'docs' / 'results'
METHODS = ('fed_avg', 'fed_fish')

# As the comparisons name them.
_SETTINGS = {
  'E': 'client_work__num_local_epochs',
  'rounds': 'training__num_rounds',
}


class Results:
  """The runs of one sweep, pooled over seeds, and how methods compare."""

  def __init__(self, directory: pathlib.Path):
    """Reads sweep.json and arms/ of a directory."""
    self.sweep = json.loads((directory / 'sweep.json').read_text())
    self.runs = load_runs(sorted((directory / 'arms').iterdir()))
    self.pooled = pool_repetitions(self.runs)

  @functools.cached_property
  def comparisons(self) -> list[Comparison]:
    """All of them, as the report has them."""
    return compare_methods(self.runs)

  def find(self, **settings: Any) -> Run:
    """Returns the pooled run with these settings, as `section__setting`."""
    [found] = [
      run
      for run in self.pooled
      if all(run.setting(*n.split('__')) == v for n, v in settings.items())
    ]
    return found


@functools.cache
def results(name: str) -> Results:
  """Returns the results in docs/results/NAME."""
  return Results(RESULTS / name)


def search(found: Results) -> list[str]:
  """Returns a row per server's rate tried: the scores of both methods."""
  names = ('client_work.learning_rate', 'server.learning_rate')
  scores: dict[tuple[float, ...], dict[str, float]] = {}
  for run in found.sweep['search_runs']:
    settings = run['settings']
    rates = tuple(settings[name] for name in names)
    scores.setdefault(rates, {})[settings['algorithm.name']] = run['score']
  return [
    _row(
      *(f'{rate:g}' for rate in rates),
      *(
        # Beyond that of any model that says the same of all digits.
        f'{both[name]:.3f}' if both[name] < 100 else 'diverged'
        for name in METHODS
      ),
    )
    for rates, both in scores.items()
  ]


def local_epochs(
  found: Results, fraction: float, corpus: str | None = None
) -> list[str]:
  """Returns a row per number of local epochs and, if they differ, of rounds.

  Args:
    found: The runs.
    fraction: Share of each client's data that was personalized on.
    corpus: Whose clients; None: those held out of the runs' own corpus.
  """
  subject = f'clients of {corpus}' if corpus else 'held-out clients'
  rows = []
  for sizes in _sizes(found):
    scores = [
      (run.transfer(corpus) if corpus else run.held_out()).fractions[fraction]
      for run in _pair(found, sizes)
    ]
    setting = ', '.join(f'{name} = {value}' for name, value in sizes.items())
    [row] = [
      c
      for c in found.comparisons
      if (c.fraction, c.subject, c.setting) == (fraction, subject, setting)
    ]
    rows.append(
      _row(
        *sizes.values(),
        *(f'{100 * p.accuracy.mean:.2f}' for p in scores),
        _difference(row.accuracy, 100, 2),
        *(f'{p.loss.mean:.4f}' for p in scores),
        _difference(row.loss, 1, 4),
      )
    )
  return rows


def rounds(found: Results) -> list[str]:
  """Returns rows as `local_epochs`, of what the last round leaves."""
  rows = []
  for sizes in _sizes(found):
    pair = [run.barrier() for run in _pair(found, sizes)]
    rows.append(
      _row(
        *sizes.values(),
        *(f'{e.barrier["loss"].mean:+.3f}'.replace('-', '−') for e in pair),
        *(f'{e.effective_clients.mean:.1f}' for e in pair),
      )
    )
  return rows


def variants(found: Results, fraction: float) -> list[str]:
  """Returns a row per variant of an ablation, beside FedAvg."""
  baseline = found.find(algorithm__name='fed_avg', cohorts__cohort_size=8)
  rows = []
  for run in found.pooled:
    accuracy, loss = (
      _difference(_paired(run, baseline, fraction, name), *shown)
      if run is not baseline
      else ''
      for name, shown in (('accuracy_after', (100, 2)), ('loss_after', (1, 4)))
    )
    score, barrier = run.held_out().fractions[fraction], run.barrier()
    effective = barrier.effective_clients
    rows.append(
      _row(
        _variant(run),
        f'{100 * score.accuracy.mean:.2f}',
        accuracy,
        f'{score.loss.mean:.4f}',
        loss,
        f'{barrier.barrier["loss"].mean:+.3f}',
        f'{effective.mean:.1f}' if effective else '',
      )
    )
  return rows


def _paired(run, baseline, fraction, name):
  """Returns the difference as a report has it, in whatever runs differ."""
  sides = [
    {
      matching.seeds_of(one): one.held_out()
      for one in side.repetitions or (side,)
    }
    for side in (run, baseline)
  ]
  return paired_difference(*sides, fraction, name)


def _variant(run):
  """Returns what differs from FedFish as printed."""
  if run.algorithm == 'fed_avg':
    cohort_size = run.setting('cohorts', 'cohort_size')
    return 'FedAvg' if cohort_size == 8 else f'FedAvg, cohorts of {cohort_size}'
  as_printed = {
    'fisher_estimator': 'extra_pass',
    'fisher_reduction': 'sum',
    'fisher_normalization': 'none',
    'client_weighting': 'num_examples',
    'relative_floor': 1e-8,
  }
  changed = [
    f'`{name}` {run.setting("algorithm", name)}'
    for name, value in as_printed.items()
    if run.setting('algorithm', name) not in (value, None)
  ]
  return ', '.join(changed) or 'FedFish as printed'


def _sizes(found):
  """Returns what tells compared runs apart, name -> value."""
  sizes = sorted({(run.num_local_epochs, run.num_rounds) for run in found.runs})
  if len({num_rounds for _, num_rounds in sizes}) == 1:
    return [{'E': epochs} for epochs, _ in sizes]
  return [dict(zip(_SETTINGS, size, strict=True)) for size in sizes]


def _pair(found, sizes):
  settings = {_SETTINGS[name]: value for name, value in sizes.items()}
  return [found.find(algorithm__name=name, **settings) for name in METHODS]


def _row(*cells):
  return f'| {" | ".join(map(str, cells))} |'


def _difference(summary, scale, digits):
  """Returns a mean and its interval, bold where that leaves 0 out."""
  values = [scale * summary[name] for name in ('mean', 'ci_low', 'ci_high')]
  mean, low, high = (f'{v:+.{digits}f}'.replace('-', '−') for v in values)
  text = f'{mean} ({low} to {high})'
  return text if values[1] <= 0 <= values[2] else f'**{text}**'


_COLUMNS = (
  'table',
  'corpus',
  'fraction',
  'local_epochs',
  'rounds',
  'variant',
  'measure',
  'value',
  'ci_low',
  'ci_high',
)


def _numbers(found):
  """Yields a dict with the columns above for each number of the tables."""
  for run in found.sweep['search_runs']:
    settings = run['settings']
    yield dict(
      table='search',
      variant=settings['algorithm.name'],
      measure='/'.join(
        f'{settings[name]:g}'
        for name in ('client_work.learning_rate', 'server.learning_rate')
      ),
      value=run['score'],
    )
  if len(found.pooled) == len(METHODS) * len(_sizes(found)):
    yield from _comparison_numbers(found)
  else:
    yield from _variant_numbers(found)


def _comparison_numbers(found):
  corpora = [None, *transfer_corpora(found.pooled)]
  for sizes in _sizes(found):
    setting = ', '.join(f'{name} = {value}' for name, value in sizes.items())
    pair = _pair(found, sizes)
    shared = dict(
      local_epochs=pair[0].num_local_epochs, rounds=pair[0].num_rounds
    )
    for corpus in corpora:
      subject = f'clients of {corpus}' if corpus else 'held-out clients'
      for fraction in (0.0, 0.25, 0.5):
        at = shared | dict(
          table='local_epochs', corpus=corpus or '', fraction=fraction
        )
        for method, run in zip(METHODS, pair, strict=True):
          scored = run.transfer(corpus) if corpus else run.held_out()
          score = scored.fractions[fraction]
          for name in ('accuracy', 'loss'):
            value = getattr(score, name).mean
            yield at | dict(variant=method, measure=name, value=value)
        [row] = [
          c
          for c in found.comparisons
          if (c.fraction, c.subject, c.setting) == (fraction, subject, setting)
        ]
        for name in ('accuracy', 'loss'):
          yield at | dict(
            variant='difference', measure=name, **_interval(getattr(row, name))
          )
    for method, run in zip(METHODS, pair, strict=True):
      yield from _round_numbers(run, shared | dict(variant=method))


def _variant_numbers(found):
  baseline = found.find(algorithm__name='fed_avg', cohorts__cohort_size=8)
  for run in found.pooled:
    shared = dict(
      local_epochs=run.num_local_epochs,
      rounds=run.num_rounds,
      variant=_variant(run),
    )
    for fraction in (0.0, 0.5):
      at = shared | dict(table='variants', fraction=fraction)
      score = run.held_out().fractions[fraction]
      for name in ('accuracy', 'loss'):
        yield at | dict(measure=name, value=getattr(score, name).mean)
        if run is not baseline:
          found_difference = _paired(run, baseline, fraction, f'{name}_after')
          yield at | dict(
            measure=f'{name} difference', **_interval(found_difference)
          )
    yield from _round_numbers(run, shared)


def _round_numbers(run, shared):
  barrier = run.barrier()
  at = shared | dict(table='rounds')
  yield at | dict(measure='barrier', value=barrier.barrier['loss'].mean)
  if barrier.effective_clients:
    value = barrier.effective_clients.mean
    yield at | dict(measure='effective clients', value=value)


def _interval(summary):
  return dict(
    value=summary['mean'], ci_low=summary['ci_low'], ci_high=summary['ci_high']
  )


def main():
  directory = pathlib.Path(sys.argv[1])
  for path in sorted(RESULTS.iterdir()):
    with open(directory / f'{path.name}.csv', 'w', newline='') as file:
      writer = csv.DictWriter(file, _COLUMNS, lineterminator='\n')
      writer.writeheader()
      writer.writerows(_numbers(results(path.name)))


if __name__ == '__main__':
  main()

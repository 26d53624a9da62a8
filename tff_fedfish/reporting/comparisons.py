"""Methods compared on the same clients, with intervals over clients and seeds.

Arms are compared where they differ in the method only, as `keys.py` says.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from tff_fedfish import files
from tff_fedfish.evaluation import intervals
from tff_fedfish.reporting import keys, match
from tff_fedfish.reporting.match import Arm, Pair
from tff_fedfish.reporting.runs import HELD_OUT, NamedEvaluation, Run

# Of an `intervals.paired_difference`.
_NUMBERS = (
  *('mean', 'ci_low', 'ci_high', 'share_below_zero'),
  *('num_seeds', 'num_clients', 'seed_means'),
)
_COLUMNS = (
  *('setting', 'method', 'baseline', 'subject', 'fraction', 'measure'),
  *_NUMBERS,
  'round',
)
# Not in the CSV file.
_FURTHER = (
  *('arm', 'baseline_arm', 'is_against_baseline', 'evaluations', 'scale'),
  *('lowest', 'hurt', 'baseline_hurt'),
  *('num_local_epochs', 'client_rate', 'baseline_client_rate'),
)


def compare_methods(arms: Sequence[Arm]) -> pd.DataFrame:
  """Returns all comparisons that the arms allow, on clients that both scored.

  Returns:
    A row by setting, pair, subject and fraction, in the order of the arms; two
    for each, of the 'loss' (nats per token) and of the 'accuracy' ([-1, 1]).
    Intervals are the wider, at either end, of the bootstrap over clients and
    seeds and of Student's t over three or more seeds; two seeds have none.
    `seed_means` has the difference of each seed, separated by spaces.
    `registry.BASELINE` is subtracted where it takes part, else the first method
    is. `setting` tells compared arms from other compared ones, such as 'E = 8';
    '' if nothing does. Further columns, which comparisons.csv lacks: arm and
    baseline_arm, labels; is_against_baseline; evaluations, those compared;
    scale, equal where losses may be ranked; lowest, the lower mean of the two;
    hurt and baseline_hurt, fractions of clients or None; num_local_epochs;
    client_rate and baseline_client_rate, learning rates of the clients.
  """
  rows = [row for pair in match.find_pairs(arms) for row in _compare(pair)]
  return pd.DataFrame(rows, columns=[*_COLUMNS, *_FURTHER], dtype=object)


def comparisons_csv(comparisons: pd.DataFrame) -> str:
  """Returns comparisons.csv."""
  rows = comparisons[list(_COLUMNS)].itertuples(index=False)
  return files.csv_file(_COLUMNS, rows)


def main_rows(comparisons: pd.DataFrame) -> pd.DataFrame:
  """Returns the rows that answer which method is best.

  They are of the loss on held-out clients, or else on the first subject that
  was compared. Where any pair is against the baseline, the others are left out.
  """
  rows = comparisons[comparisons['measure'] == 'loss']
  if rows.empty:
    return rows
  subjects = [str(HELD_OUT), *rows['subject']]
  subject = next(s for s in subjects if s in set(rows['subject']))
  rows = rows[rows['subject'] == subject]
  if rows['is_against_baseline'].any():
    rows = rows[rows['is_against_baseline'].astype(bool)]
  return rows


def main_comparisons(comparisons: pd.DataFrame) -> list[Any]:
  """Returns the `main_rows` with the least personalization, one for a pair."""
  rows = main_rows(comparisons)
  return list(rows[rows['fraction'] == rows['fraction'].min()].itertuples())


def most_personalized(comparisons: pd.DataFrame, row: Any) -> Any:
  """Returns the row of the same models with the most personalization.

  None: neither more personalization nor the same pair in the same round.
  """
  rows = comparisons[comparisons['fraction'] > row.fraction]
  for name in ('setting', 'method', 'baseline', 'subject', 'measure', 'round'):
    rows = rows[rows[name] == getattr(row, name)]
  return max(rows.itertuples(), key=lambda r: r.fraction, default=None)


def verdict(row: Any) -> str:
  """Returns which has the lower mean loss, if the interval leaves no doubt."""
  if row.ci_high is None:
    return 'undecided'
  if row.ci_high < 0:
    return f'{row.method} lower'
  return f'{row.baseline} lower' if row.ci_low > 0 else 'undecided'


def shown_interval(row: Any, spec: str, scale: float = 1.0) -> str:
  """Returns the interval of a row of `compare_methods` as text.

  Two seeds have 'by seed' and their differences instead. Numbers are scaled,
  and shown by a format such as '+z.4f'.
  """
  if row.ci_low is None:
    numbers = [scale * float(number) for number in row.seed_means.split()]
    start, between = 'by seed ', ' and '
  else:
    numbers = sorted((scale * row.ci_low, scale * row.ci_high))
    start, between = '', ' to '
  text = between.join(format(number, spec) for number in numbers)
  return start + text.replace('-', '−')


def difference(
  scores: Mapping[str, pd.DataFrame],
  baseline: Mapping[str, pd.DataFrame],
  name: str,
) -> dict[str, Any]:
  """Returns a paired difference whose interval does not rest on few seeds.

  Args:
    scores: Seeds of a run -> its clients' scores, indexed by client.
    baseline: The other side, the same.
    name: Column of the score, such as 'loss_after'.

  Returns:
    `intervals.paired_difference` with the interval that `compare_methods`
    describes, and `seed_means` as a text.
  """
  sides = (
    {seeds: rows[name].to_dict() for seeds, rows in side.items()}
    for side in (scores, baseline)
  )
  found = intervals.paired_difference(*sides)
  low, high = found['ci_low'], found['ci_high']
  if found['seed_low'] is not None:
    low, high = min(low, found['seed_low']), max(high, found['seed_high'])
  elif found['num_seeds'] == 2:
    low = high = None
  seed_means = ' '.join(map(repr, found['seed_means']))
  return found | {'ci_low': low, 'ci_high': high, 'seed_means': seed_means}


def _compare(pair: Pair) -> Iterator[tuple]:
  """Yields the rows for every subject and fraction that both have."""
  arms = pair.arm, pair.baseline_arm
  runs = [run for arm in arms for run in arm.runs]
  for subject in match.subjects(runs):
    fractions = {
      fraction
      for run in runs
      for evaluation in run.evaluations
      if run.subject_of(evaluation) == subject
      for fraction in evaluation.clients['fraction']
    }
    for fraction in sorted(fractions):
      sides = match.paired_evaluations(pair, subject, fraction)
      scores = [
        {seeds: e.scores_at(fraction) for seeds, e in side.items()}
        for side in sides
      ]
      found = {
        measure: difference(*scores, f'{measure}_after')
        for measure in ('loss', 'accuracy')
      }
      if any(one['mean'] is None for one in found.values()):
        continue
      words = pair.setting, pair.method, pair.baseline, str(subject), fraction
      evaluations = [e for side in sides for e in side.values()]
      further = (
        evaluations[0].round_num,
        pair.arm.label,
        pair.baseline_arm.label,
        pair.is_against_baseline,
        evaluations,
        _scale(pair.arm.first, evaluations[0], fraction),
        _lowest_loss(scores),
        *(_hurt(side.values(), fraction) for side in sides),
        pair.arm.num_local_epochs,
        *(a.train_config.client_work.learning_rate for a in arms),
      )
      for measure, one in found.items():
        numbers = (one[number] for number in _NUMBERS)
        yield *words, measure, *numbers, *further


def _scale(run: Run, evaluation: NamedEvaluation, fraction: float) -> tuple:
  """Returns clients and fine-tuning; settings may plan other rounds."""
  key = keys.evaluation_key(run, evaluation, fraction)
  return keys.client_key(run), [pair for pair in key if pair[0] != 'round']


def _lowest_loss(sides: Sequence[Mapping[str, pd.DataFrame]]) -> float:
  """Returns the lower mean of the sides, over the clients that all have."""
  tables = [table for side in sides for table in side.values()]
  common = set.intersection(*(set(table.index) for table in tables))
  means = [
    sum(t['loss_after'][t.index.isin(common)].mean() for t in side.values())
    for side in sides
  ]
  return min(means) / len(sides[0])


def _hurt(
  evaluations: Iterable[NamedEvaluation], fraction: float
) -> float | None:
  """Returns the mean share of clients that personalization hurts."""
  shares = [
    scores.share_of_clients_hurt
    for evaluation in evaluations
    for scores in evaluation.summary.fractions
    if scores.fraction == fraction
  ]
  return match.mean(shares or [None])

"""Caveats: what a reader must know before comparing numbers."""

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence

from tff_fedfish.data import unknown_tokens
from tff_fedfish.planning.client_steps import cap_line
from tff_fedfish.printing import count
from tff_fedfish.reporting import keys, match, means
from tff_fedfish.reporting.match import Arm
from tff_fedfish.reporting.means import Repeated
from tff_fedfish.reporting.runs import HELD_OUT, NamedEvaluation, Run, Subject
from tff_fedfish.reporting.scores import Scores
from tff_fedfish.reporting.words import listed

_MAX_NAMED = 4
"""Runs, or settings, that a sentence names; more are counted."""


def notes(scores: Scores) -> list[str]:
  """Returns what a reader must know before comparing the numbers."""
  runs, arms = scores.runs, scores.arms
  compared = set(itertools.chain(*scores.comparisons['evaluations']))
  shown, clauses = [], []
  for arm in arms:
    groups = means.repeated_evaluations(arm)
    shown.append(means.shown(groups))
    used = [*shown[-1].values(), means.shown_barrier(groups)]
    visible = compared.union(*(g.evaluations.values() for g in used if g))
    for run in arm.runs:
      found = *_run_clauses(run), *_evaluation_clauses(run, shown[-1], visible)
      clauses += [(clause, run.label) for clause in found]
  sentences = []
  for clause, concerned in keys.grouped(clauses, lambda c: c[0]).items():
    labels = [label for _, label in concerned]
    is_all = len(labels) == len(runs) > 1
    sentences.append(f'{"All runs" if is_all else listed(labels)}: {clause}.')
  for arm in arms:
    sentences += [f'{arm.label}: {c}.' for c in _arm_clauses(arm, scores)]
  sentences += [*_not_compared(scores), *_between_runs(runs, shown)]
  if any(arm.num_seeds > 1 for arm in arms):
    sentences.append(
      'Runs that differ only in their seeds are averaged. With few seeds their '
      'intervals are too narrow.'
      + ' A comparison of two seeds has none: both differences are shown.'
      * (2 in set(scores.comparisons['num_seeds']))
    )
  elif len(runs) > 1 and any(run.evaluations for run in runs):
    sentences.append(
      'Intervals are over the clients of one run each; other seeds may rank '
      'the runs differently.'
    )
  return sentences


def _run_clauses(run: Run) -> Iterator[str]:
  last, planned = run.last_round, run.num_rounds
  if last is None:
    yield 'no round is finished yet'
  elif run.has_diverged:
    yield f'diverged and stopped after round {last} of {planned}'
  elif last < planned:
    yield f'{last} of {planned} rounds so far'
  if dropped := sum(n for (n,) in run.series('train/num_non_finite_clients')):
    yield (
      f'{count(int(dropped), "client")} with non-finite results counted with '
      'weight 0 in training'
    )
  num_read, num_cut = (
    sum(number for (number,) in run.series(f'train/num_{name}'))
    for name in ('sequences', 'dropped_sequences')
  )
  num_read /= run.num_local_epochs or 1
  if clause := cap_line(run.train_config, num_read, num_cut):
    yield clause
  yield from run.remarks


def _evaluation_clauses(
  run: Run,
  shown: Mapping[Subject, Repeated],
  visible: Collection[NamedEvaluation],
) -> Iterator[str]:
  """Yields what a score lacks, and which evaluations are not shown.

  Args:
    run: The run.
    shown: Evaluations of its arm that stand for a subject.
    visible: These, those that are compared, and that with the barrier.
  """
  for evaluation in run.evaluations:
    name, summary = f'evaluation {evaluation.name}', evaluation.summary
    subject = run.subject_of(evaluation)
    if evaluation in visible:
      if evaluation.round_num != run.last_round:
        number = evaluation.round_num
        yield f'{name} is of round {number}, not of the last round'
      reasons = [
        f'{number} ({reason.replace("_", " ")})'
        for reason, number in summary.skipped_clients.items()
        if number
      ]
      if reasons:
        yield f'{name} left out clients: {listed(reasons)}'
      if warning := unknown_tokens.warning(summary.unknown_token_fraction):
        percent = f'{100 * summary.unknown_token_fraction:.2f}'
        yield f'{name} has {percent} % unknown tokens: {warning}'
      numbers = [scores.loss.num_non_finite for scores in summary.fractions]
      if bad := max(numbers, default=0):
        yield f'{name} left out {count(bad, "client")} with a non-finite loss'
    elif subject is None:
      yield f'{name} is of clients or rows of the training and is not shown'
    # An earlier score of held-out clients is a point of a curve.
    elif (
      subject != HELD_OUT
      or not any(evaluation.fractions)
      or evaluation.round_num >= shown[subject].first.round_num
    ):
      own = shown[subject].evaluations.get(run.seeds)
      other = own.name if own else 'that of other seeds'
      yield f'{name} on {subject} is not shown: {other} is'


def _arm_clauses(arm: Arm, scores: Scores) -> Iterator[str]:
  """Yields where personalization hurts, and what a mean over seeds lacks."""
  table = scores.means
  table = table[table['is_shown'] & (table['arm'] == arm.label)]
  for subject, rows in table[table['subject'] != ''].groupby('subject'):
    name, num_seeds = rows.iloc[0][['evaluation', 'num_seeds']]
    hurt = list(rows[rows['measure'] == 'hurt'].itertuples())
    if hurt and hurt[-1].mean > 0.5:
      yield (
        f'personalization on {100 * hurt[-1].fraction:g} % hurt '
        f'{100 * hurt[-1].mean:.0f} % of the {subject} in evaluation {name}'
      )
    if num_seeds < arm.num_seeds:
      yield f'evaluation {name} is of {num_seeds} of {arm.num_seeds} seeds'
    if num_left_out := rows['num_left_out'].max():
      clients = count(int(num_left_out), 'client')
      yield f'evaluation {name} left out {clients} that not every seed has'
  barrier = table[table['measure'] == 'barrier/loss']['num_seeds']
  if (barrier < arm.num_seeds).any():
    yield f'the barrier is of {barrier.iloc[0]} of {arm.num_seeds} seeds'


def _not_compared(scores: Scores) -> Iterator[str]:
  """Yields in what arms that are not compared differ from those that are."""
  lines = scores.comparisons
  compared = {*lines['arm'], *lines['baseline_arm']}
  rest = [arm for arm in scores.arms if arm.label not in compared]
  others = [arm for arm in scores.arms if arm.label in compared]
  if others and len(rest) > _MAX_NAMED:
    number = sum(arm.num_seeds for arm in rest)
    yield (
      f'{number} of {len(scores.runs)} runs are not compared: each is a copy, '
      'or differs from all others in settings or evaluations.'
    )
    return
  copied = {
    keys.repetition_key(arm.first): arm.label for arm in reversed(others)
  }
  for arm in rest if others else ():
    names = min((_differing(arm, other) for other in others), key=len)
    if len(names) > _MAX_NAMED:
      num_more = len(names) - _MAX_NAMED + 1
      names = [*names[: _MAX_NAMED - 1], f'{num_more} more settings']
    reason = 'was not evaluated alike'
    if names:
      reason = f'differs in {listed(names)}'
    elif original := copied.get(keys.repetition_key(arm.first)):
      reason = f'is a copy of {original}'
    yield f'{arm.label} is not compared: it {reason}.'


def _differing(arm: Arm, other: Arm) -> list[str]:
  """Returns in what two arms differ; nothing if it is the method alone."""
  runs = arm.first, other.first
  if keys.setting_key(runs[0]) == keys.setting_key(runs[1]):
    return []
  both = [keys.setting_key(run) + keys.optimizer_key(run) for run in runs]
  return list(map(keys.label_of, keys.differing(both)))


def _between_runs(
  runs: Sequence[Run], shown: Sequence[Mapping[Subject, Repeated]]
) -> Iterator[str]:
  if differing := keys.differing(list(map(keys.client_key, runs))):
    yield (
      'The runs were not measured on the same data: they differ in '
      f'{_with_values(differing)}.'
    )
  rounds = {run.last_round for run in runs if run.last_round}
  if len(rounds) > 1:
    numbers = ', '.join(map(str, sorted(rounds)))
    yield f'The runs have different numbers of rounds ({numbers}).'
  for subject in match.subjects(runs):
    groups = [of_arm[subject] for of_arm in shown if subject in of_arm]
    without = [
      run.label
      for run in runs
      if subject not in map(run.subject_of, run.evaluations)
    ]
    if without and groups:
      yield f'Without an evaluation on {subject}: {listed(without)}.'
    differing = keys.differing([group.key for group in groups])
    differing.pop('round', None)
    if differing:
      yield (
        f'The evaluations on {subject} differ in {_with_values(differing)}; '
        'only equal ones are compared.'
      )


def _with_values(differing: Mapping[str, Sequence[str]]) -> str:
  return ', '.join(
    f'{name} ({" / ".join(values)})' for name, values in differing.items()
  )

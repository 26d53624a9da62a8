"""Caveats: what a reader must know before comparing numbers."""

from collections.abc import Iterator, Mapping, Sequence

from tff_fedfish.data import unknown_tokens
from tff_fedfish.reporting import keys, match, means
from tff_fedfish.reporting.match import Arm
from tff_fedfish.reporting.runs import NamedEvaluation, Run, Subject
from tff_fedfish.reporting.scores import Scores
from tff_fedfish.reporting.words import counted, listed

_MAX_NAMED = 4
"""Runs, or settings, that a sentence names; more are counted."""


def notes(scores: Scores) -> list[str]:
  """Returns what a reader must know before comparing the numbers."""
  runs, arms = scores.runs, scores.arms
  shown = {
    run: {
      subject: group.first
      for subject, group in means.shown(
        means.repeated_evaluations(Arm(run.label, (run,)))
      ).items()
    }
    for run in runs
  }
  clauses = [
    (clause, run.label)
    for run in runs
    for clause in (*_run_clauses(run), *_evaluation_clauses(run, shown[run]))
  ]
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
      f'{counted(dropped, "client")} with non-finite results counted with '
      'weight 0 in training'
    )
  yield from run.remarks


def _evaluation_clauses(
  run: Run, shown: Mapping[Subject, NamedEvaluation]
) -> Iterator[str]:
  for evaluation in run.evaluations:
    name, summary = f'evaluation {evaluation.name}', evaluation.summary
    subject = run.subject_of(evaluation)
    if subject is None:
      yield f'{name} is of clients or rows of the training and is not shown'
    elif evaluation is shown[subject]:
      if evaluation.round_num != run.last_round:
        number = evaluation.round_num
        yield f'{name} is of round {number}, not of the last round'
      reasons = [
        f'{count} ({reason.replace("_", " ")})'
        for reason, count in summary.skipped_clients.items()
        if count
      ]
      if reasons:
        yield f'{name} left out clients: {listed(reasons)}'
      if warning := unknown_tokens.warning(summary.unknown_token_fraction):
        percent = f'{100 * summary.unknown_token_fraction:.2f}'
        yield f'{name} has {percent} % unknown tokens: {warning}'
      if bad := max(s.loss.num_non_finite for s in summary.fractions):
        yield f'{name} left out {counted(bad, "client")} with a non-finite loss'
    # A score before the last round is a point of a curve.
    elif evaluation.round_num == shown[subject].round_num:
      yield (
        f'{name} is not shown: only one per checkpoint and corpus is. Shown: '
        f'{shown[subject].name}'
      )


def _arm_clauses(arm: Arm, scores: Scores) -> Iterator[str]:
  """Yields where personalization hurts, and what a mean over seeds lacks."""
  table = scores.means
  table = table[table['is_shown'] & (table['arm'] == arm.label)]
  for subject, rows in table[table['subject'] != ''].groupby('subject'):
    hurt = list(rows[rows['measure'] == 'hurt'].itertuples())
    if hurt and hurt[-1].mean > 0.5:
      yield (
        f'personalization on {100 * hurt[-1].fraction:g} % hurt '
        f'{100 * hurt[-1].mean:.0f} % of the {subject}'
      )
    name, num_seeds = rows.iloc[0][['evaluation', 'num_seeds']]
    if num_seeds < arm.num_seeds:
      yield f'evaluation {name} is of {num_seeds} of {arm.num_seeds} seeds'
    if num_left_out := rows['num_left_out'].max():
      clients = counted(num_left_out, 'client')
      yield f'evaluation {name} left out {clients} that not every seed has'


def _not_compared(scores: Scores) -> Iterator[str]:
  """Yields in what arms that are not compared differ from those that are."""
  lines = scores.comparisons
  compared = {*lines['arm'], *lines['baseline_arm']}
  rest = [arm for arm in scores.arms if arm.label not in compared]
  others = [arm for arm in scores.arms if arm.label in compared]
  if others and len(rest) > _MAX_NAMED:
    yield f'{len(rest)} further runs differ from these and are not compared.'
    return
  for arm in rest if others else ():
    names = min((_differing(arm, other) for other in others), key=len)
    if len(names) > _MAX_NAMED:
      num_more = len(names) - _MAX_NAMED + 1
      names = [*names[: _MAX_NAMED - 1], f'{num_more} more settings']
    reason = 'was not evaluated alike'
    if names:
      reason = f'differs in {listed(names)}'
    yield f'{arm.label} is not compared: it {reason}.'


def _differing(arm: Arm, other: Arm) -> list[str]:
  """Returns in what two arms differ; nothing if it is the method alone."""
  runs = arm.first, other.first
  if keys.setting_key(runs[0]) == keys.setting_key(runs[1]):
    return []
  both = [keys.setting_key(run) + keys.optimizer_key(run) for run in runs]
  return list(map(keys.label_of, keys.differing(both)))


def _between_runs(
  runs: Sequence[Run],
  shown: Mapping[Run, Mapping[Subject, NamedEvaluation]],
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
    scored = [run for run in runs if subject in shown[run]]
    without = [run.label for run in runs if subject not in shown[run]]
    if without and scored:
      yield f'Without an evaluation on {subject}: {listed(without)}.'
    differing = keys.differing(
      [keys.evaluation_key(run, shown[run][subject]) for run in scored]
    )
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

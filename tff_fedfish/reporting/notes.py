"""Caveats: what a reader must know before comparing numbers."""

from collections.abc import Iterator, Mapping, Sequence

from tff_fedfish.data import unknown_tokens
from tff_fedfish.reporting import keys, match, means
from tff_fedfish.reporting.match import Arm
from tff_fedfish.reporting.runs import NamedEvaluation, Run, is_finite
from tff_fedfish.reporting.scores import Scores
from tff_fedfish.reporting.words import counted, listed

_MAX_NAMED = 4
"""Runs, or settings, that a sentence names; more are counted."""


def notes(scores: Scores) -> list[str]:
  """Returns what a reader must know before comparing the numbers."""
  runs, arms = scores.runs, scores.arms
  by_run = [(clause, run.label) for run in runs for clause in _run_clauses(run)]
  sentences = _by_clause(by_run, len(runs))
  for arm in arms:
    sentences += [f'{arm.label}: {c}.' for c in _arm_clauses(arm, scores)]
  sentences += [*_not_compared(scores), *_between_runs(runs)]
  if any(arm.num_seeds > 1 for arm in arms):
    sentences.append(
      'Runs that differ only in their seeds are averaged. With few seeds their '
      'intervals are too narrow.'
    )
  elif len(runs) > 1:
    sentences.append(
      'Intervals are over the clients of one run each; other seeds may order '
      'the runs otherwise.'
    )
  return sentences


def _by_clause(clauses: Sequence[tuple[str, str]], num_runs: int) -> list[str]:
  """Returns a sentence per clause that names its runs."""
  sentences = []
  for clause, concerned in keys.grouped(clauses, lambda c: c[0]).items():
    labels = [label for _, label in concerned]
    is_all = len(labels) == num_runs > 1
    sentences.append(f'{"All runs" if is_all else listed(labels)}: {clause}.')
  return sentences


def _run_clauses(run: Run) -> Iterator[str]:
  last, planned = run.last_round, run.num_rounds
  if last is None:
    yield 'no round is finished yet'
  elif run.has_diverged:
    yield f'diverged and stopped after round {last} of {planned}'
  elif planned is not None and last < planned:
    yield f'{last} of {planned} rounds so far'
  if dropped := sum(n for (n,) in run.series('train/num_non_finite_clients')):
    yield (
      f'{counted(dropped, "client")} with non-finite results counted with '
      'weight 0 in training'
    )
  for name in ('train/loss', 'held_out/loss', 'personal/loss'):
    bad = sum(
      row.get(name) is not None and not is_finite(row[name])
      for row in run.metrics
    )
    if bad:
      yield f'{name} is not finite in {counted(bad, "round")}: a gap in plots'
  groups = means.repeated_evaluations(Arm(run.label, (run,)))
  shown = {s: g.first for s, g in means.shown(groups).items()}
  for evaluation in run.evaluations:
    yield from _evaluation_clauses(run, evaluation, shown)
  yield from run.remarks


def _evaluation_clauses(
  run: Run,
  evaluation: NamedEvaluation,
  shown: Mapping[match.Subject, NamedEvaluation],
) -> Iterator[str]:
  name, summary = f'evaluation {evaluation.name}', evaluation.summary
  subject = run.subject_of(evaluation)
  if subject is None:
    rows = 'validation rows'
    if summary.kind == 'participating':
      rows = 'clients that may have taken part in training'
    yield f'{name} is of {rows}; its scores are not shown'
    return
  if evaluation is not shown[subject]:
    other = shown[subject]
    # A score before the last round is a point of a curve.
    if subject.kind != 'held_out' or evaluation.round_num == other.round_num:
      yield (
        f'{name} is not shown: only the latest on each corpus is. Shown: '
        f'{other.name}'
      )
    return
  if evaluation.round_num != run.last_round:
    yield f'{name} is of round {evaluation.round_num}, not of the last round'
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
  if evaluation.num_non_finite_rows:
    yield (
      f'{name} has {counted(evaluation.num_non_finite_rows, "row")} of clients '
      'with non-finite scores, left out of the scatter plots'
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
    first = rows.iloc[0]
    if first['num_seeds'] < arm.num_seeds:
      yield (
        f'evaluation {first["evaluation"]} is of {first["num_seeds"]} of '
        f'{arm.num_seeds} seeds'
      )
    if num_left_out := rows['num_left_out'].max():
      yield (
        f'evaluation {first["evaluation"]} left out '
        f'{counted(num_left_out, "client")} that not every seed has a finite '
        'score of'
      )


def _not_compared(scores: Scores) -> Iterator[str]:
  """Yields in what arms that are not compared differ from those that are."""
  lines = scores.comparisons
  compared = {*lines['arm'], *lines['baseline_arm']}
  rest = [arm for arm in scores.arms if arm.label not in compared]
  others = [arm for arm in scores.arms if arm.label in compared]
  if not others or not rest:
    return
  if len(rest) > _MAX_NAMED:
    yield f'{len(rest)} further runs differ from these and are not compared.'
    return
  for arm in rest:
    differing = min((_differing(arm, other) for other in others), key=len)
    if len(differing) > _MAX_NAMED:
      num_more = len(differing) - _MAX_NAMED + 1
      differing = [*differing[: _MAX_NAMED - 1], f'{num_more} more settings']
    name = arm.label if arm.num_seeds > 1 else f'run `{arm.name}`'
    reason = 'it was not evaluated alike'
    if differing:
      reason = f'it differs in {listed(differing)}'
    yield f'{name} is not compared: {reason}.'


def _differing(arm: Arm, other: Arm) -> list[str]:
  """Returns what two arms differ in; () if it is the method alone."""
  runs = arm.first, other.first
  settings = [keys.setting_key(run) for run in runs]
  if not keys.differing(settings):
    return []
  optimizers = [keys.optimizer_key(run) for run in runs]
  names = keys.differing(
    [s + o for s, o in zip(settings, optimizers, strict=True)]
  )
  return list(map(keys.label_of, names))


def _between_runs(runs: Sequence[Run]) -> Iterator[str]:
  if differing := keys.differing(list(map(keys.client_key, runs))):
    yield (
      'The runs were not measured on the same data: they differ in '
      f'{_with_values(differing)}.'
    )
  rounds = {run.last_round for run in runs if run.last_round}
  if len(rounds) > 1:
    yield f'The runs have different numbers of rounds ({_joined(rounds)}).'
  for subject in match.subjects(runs):
    evaluations, without = {}, []
    for run in runs:
      groups = means.repeated_evaluations(Arm(run.label, (run,)))
      if shown := means.shown(groups).get(subject):
        evaluations[run.label] = shown.first
      else:
        without.append(run.label)
    if without and evaluations:
      yield f'Without an evaluation on {subject}: {listed(without)}.'
    yield from _between_evaluations(subject, list(evaluations.values()))


def _between_evaluations(
  subject: match.Subject, evaluations: Sequence[NamedEvaluation]
) -> Iterator[str]:
  counts = {e.summary.num_clients for e in evaluations}
  if len(counts) > 1:
    yield (
      f'The evaluations on {subject} have different numbers of clients '
      f'({_joined(counts)}).'
    )
  differing = keys.differing(
    [
      tuple((name, str(v)) for name, v in e.summary.personalization.items())
      for e in evaluations
    ]
  )
  if differing:
    yield (
      f'The evaluations on {subject} differ in {_with_values(differing)}; only '
      'equal ones are compared.'
    )
  corpora = {e.corpus for e in evaluations}
  if len(corpora) > 1:
    yield (
      f'The evaluations on {subject} are on different corpora '
      f'({_joined(corpora)}).'
    )


def _with_values(differing: Mapping[str, Sequence[str]]) -> str:
  return ', '.join(
    f'{name} ({" / ".join(values)})' for name, values in differing.items()
  )


def _joined(values) -> str:
  return ', '.join(map(str, sorted(values)))

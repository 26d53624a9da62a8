"""Caveats: what a reader must know before comparing numbers."""

from collections.abc import Sequence

from tff_fedfish.data import unknown_tokens
from tff_fedfish.reporting import match
from tff_fedfish.reporting.evaluations import Evaluation
from tff_fedfish.reporting.runs import OWN_TEST, Run, is_finite, subjects
from tff_fedfish.reporting.words import listed


def notes(runs: Sequence[Run], pooled: Sequence[Run] = ()) -> list[str]:
  """Returns what a reader must know before comparing the runs' numbers.

  `pooled` are the same runs, repetitions pooled; (): none is repeated.
  """
  clauses = [
    (clause, run.label) for run in runs for clause in _run_clauses(run)
  ]
  found = []
  for clause, concerned in match.grouped(clauses, lambda c: c[0]).items():
    labels = [label for _, label in concerned]
    is_all = len(labels) == len(runs) > 1
    found.append(f'{"All runs" if is_all else listed(labels)}: {clause}.')
  for run in pooled or runs:
    found += [f'{run.label}: {clause}.' for clause in _hurt_clauses(run)]
  for run in pooled:
    found += [f'{run.label}: {clause}.' for clause in _pooled_clauses(run)]
  found += _between_runs(runs)
  if any(run.repetitions for run in pooled):
    found.append(
      'Scores of runs that differ in seeds only are means over these; with a '
      'few seeds the intervals are too narrow.'
    )
  elif len(runs) > 1:
    found.append(
      'Intervals of the results are over the clients of one run each; other '
      'seeds may order the runs otherwise.'
    )
  return found


def _run_clauses(run):
  last, planned = run.last_round, run.num_rounds
  if last is None:
    yield 'no round is finished yet'
  elif run.num_diverged:
    yield f'diverged and stopped after round {last} of {planned}'
  elif planned is not None and last < planned:
    yield f'{last} of {planned} rounds so far'
  if dropped := sum(n for (n,) in run.series('train/num_non_finite_clients')):
    yield (
      f'{_counted(dropped, "client")} with non-finite results counted with '
      'weight 0 in training'
    )
  for name in ('train/loss', 'held_out/loss', 'personal/loss'):
    bad = sum(
      row.get(name) is not None and not is_finite(row[name])
      for row in run.metrics
    )
    if bad:
      yield f'{name} is not finite in {_counted(bad, "round")}: a gap in plots'
  yield from _evaluation_clauses(run)
  yield from run.remarks


def _evaluation_clauses(run):
  shown = [run.barrier(), *map(run.evaluation, subjects([run]))]
  for evaluation in run.evaluations:
    name = f'evaluation {evaluation.name}'
    if evaluation.kind == 'participating':
      yield (
        f'{name} is of clients that may have taken part in training; its '
        'scores are not shown'
      )
    elif evaluation.kind == 'own_validation':
      yield f'{name} is of validation rows; its scores are not shown'
    elif not any(evaluation is other for other in shown):
      if not _is_on_the_way(run, evaluation):
        yield f'{name} is not shown, as there is a later one of its kind'
      continue
    if evaluation.round_num not in (None, run.last_round):
      yield f'{name} is of round {evaluation.round_num}, not of the last round'
    if evaluation.skipped_clients:
      reasons = [
        f'{count} ({reason.replace("_", " ")})'
        for reason, count in evaluation.skipped_clients.items()
      ]
      yield f'{name} left out clients: {listed(reasons)}'
    if warning := unknown_tokens.warning(evaluation.unknown_tokens):
      percent = f'{100 * evaluation.unknown_tokens:.2f}'
      yield f'{name} has {percent} % unknown tokens: {warning}'
    if evaluation.num_non_finite_rows:
      yield (
        f'{name} has {_counted(evaluation.num_non_finite_rows, "row")} of '
        'clients with non-finite scores, left out of the scatter plots'
      )


def _is_on_the_way(run: Run, evaluation: Evaluation) -> bool:
  """Returns whether it is shown as a score before the last round."""
  if evaluation.round_num is None or evaluation.kind == OWN_TEST.kind:
    return False
  return (
    evaluation.kind == 'held_out'
    and evaluation.round_num != run.held_out().round_num
  )


def _hurt_clauses(run):
  """Yields where fine-tuning raised the loss of more than half of clients."""
  for subject in subjects([run]):
    evaluation = run.evaluation(subject)
    hurt = evaluation.hurt if evaluation else {}
    if hurt and (share := hurt[max(hurt)]) > 0.5:
      yield (
        f'personalization on {100 * max(hurt):g} % hurt {100 * share:.0f} % of '
        f'the {subject}'
      )


def _pooled_clauses(run):
  """Yields what a mean over seeds does not hold."""
  for evaluation in filter(None, map(run.evaluation, subjects([run]))):
    name = f'evaluation {evaluation.name}'
    if evaluation.num_seeds < run.num_seeds:
      yield f'{name} is of {evaluation.num_seeds} of {run.num_seeds} seeds'
    if evaluation.num_left_out_clients:
      yield (
        f'{name} left out '
        f'{_counted(evaluation.num_left_out_clients, "client")} that not '
        'every seed has a finite score of'
      )


def _between_runs(runs):
  if differing := match.differing(list(map(match.clients_of, runs))):
    yield (
      'The runs were not measured on the same data: they differ in '
      f'{_with_values(differing)}.'
    )
  elif differing := match.differing(list(map(match.sample_of, runs))):
    yield (
      'The scores during training are not of the same sample of clients: they '
      f'differ in {_with_values(differing)}.'
    )
  rounds = {run.last_round for run in runs if run.last_round}
  if len(rounds) > 1:
    yield f'The runs have different numbers of rounds ({_joined(rounds)}).'
  for subject in subjects(runs):
    found = {run.label: run.evaluation(subject) for run in runs}
    evaluations = [evaluation for evaluation in found.values() if evaluation]
    without = [label for label, evaluation in found.items() if not evaluation]
    if without and evaluations:
      yield f'Without an evaluation on {subject}: {listed(without)}.'
    counts = {e.num_clients for e in evaluations} - {None}
    if len(counts) > 1:
      yield (
        f'The evaluations on {subject} have different numbers of clients '
        f'({_joined(counts)}).'
      )
    fine_tuning = match.differing(
      [
        tuple((n, str(v)) for n, v in e.personalization.items())
        for e in evaluations
      ]
    )
    if fine_tuning:
      yield (
        f'The evaluations on {subject} are not alike, and only those that are '
        f'are compared: they differ in {_with_values(fine_tuning)}.'
      )
    corpora = {e.corpus for e in evaluations}
    if len(corpora) > 1:
      yield (
        f'The evaluations on {subject} are on different corpora '
        f'({_joined(corpora)}).'
      )


def _with_values(differing):
  return ', '.join(
    f'{name} ({" / ".join(values)})' for name, values in differing.items()
  )


def _joined(values):
  return ', '.join(map(str, sorted(values)))


def _counted(count, noun):
  return f'{count:g} {noun}{"" if count == 1 else "s"}'

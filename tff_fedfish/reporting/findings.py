"""Findings in a sentence, and caveats.

Only what was computed is said: the lowest mean is called the lowest, and no
difference between runs is called significant.
"""

from collections.abc import Iterator, Sequence

from tff_fedfish.data import unknown_tokens
from tff_fedfish.reporting import match
from tff_fedfish.reporting.evaluations import Evaluation, Interval
from tff_fedfish.reporting.runs import (
  HELD_OUT,
  OWN_TEST,
  Run,
  is_finite,
  subjects,
)
from tff_fedfish.reporting.words import listed, words_of


def summary_sentence(runs: Sequence[Run]) -> str:
  """Returns one sentence on which of the pooled runs scores best."""
  by_corpus = match.grouped(runs, lambda run: run.corpus_name)
  groups = dict(by_corpus)
  if len(by_corpus) > 1:
    # Losses on different corpora have no common scale.
    groups = {c: group for c, group in by_corpus.items() if len(group) > 1}
    if not groups:
      return f'{len(runs)} runs on different corpora: no two can be ranked.'
  won: dict[str, list[str]] = {}
  for corpus, members in groups.items():
    prefix = f'{corpus}: ' if len(by_corpus) > 1 else ''
    for where, losses in _compared(members):
      winners, words = _winners(members, losses)
      won.setdefault(winners, []).append(f'{where} ({prefix}{words})')
  unit = f'nats per {words_of(runs).unit}'
  if not won:
    return f'{_counted(len(runs), "run")} without a held-out score so far.'
  if len(runs) == 1:
    run, who = runs[0], runs[0].label
    # Of fewer seeds than the run stands for: said beside the number.
    if run.repetitions and len(losses[run].seed_means) in (0, run.num_seeds):
      who += f', over {run.num_seeds} seeds,'
    return f'Mean loss ({unit}) of {who} {listed(*won.values())}.'
  clauses = [f'{winner} {listed(places)}' for winner, places in won.items()]
  num_runs = sum(run.num_seeds for run in runs)
  who = f'{len(runs)} runs'
  if num_runs > len(runs):
    who = f'{len(runs)} settings with {num_runs} runs'
  return (
    f'Of {who}, the lowest mean loss ({unit}) is reached by '
    f'{"; by ".join(clauses)}.'
  )


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


def _compared(runs: Sequence[Run]) -> Iterator[tuple[str, dict[Run, Interval]]]:
  """Yields (where, mean loss of each run that has one) for the summary."""
  is_evaluated = False
  for subject in subjects(runs):
    scores = {run: e for run in runs if (e := run.evaluation(subject))}
    fractions = sorted({f for e in scores.values() for f in e.fractions})
    names = {e.corpus for e in scores.values()}
    own = ''
    if subject == HELD_OUT and len(names) == 1:
      own = f' of {names.pop()}'
    # The smallest and, on held-out clients, also the largest.
    last = fractions[-1:] if subject == HELD_OUT else []
    for fraction in dict.fromkeys(fractions[:1] + last):
      losses = {
        run: loss
        for run, evaluation in scores.items()
        if (loss := evaluation.scores.get((fraction, 'loss')))
      }
      if losses:
        is_evaluated = True
        words = 'without personalization'
        if fraction != 0.0:
          words = f'after personalization on {100 * fraction:g} % of their data'
        where = f'on {subject}{own}'
        # Models are not fine-tuned on rows of the client's own.
        yield where if subject == OWN_TEST else f'{where} {words}', losses
        # Whose clients they are is said once.
        own = ''
  last = {run: run.last('held_out/loss') for run in runs}
  losses = {run: Interval(x) for run, x in last.items() if x is not None}
  if losses and not is_evaluated:
    yield 'on the held-out clients sampled during training', losses


def _winners(
  runs: Sequence[Run], losses: dict[Run, Interval]
) -> tuple[str, str]:
  """Returns the runs with the lowest loss, and that loss, in words."""
  best = min(losses, key=lambda run: losses[run].mean)
  lowest = losses[best]
  words = f'{lowest.mean:.3f}'
  if ends := lowest.shown_ends('{:.3f}'.format):
    words += f', 95 % interval {ends}'
  if 0 < len(lowest.seed_means) < best.num_seeds:
    words += f'; {len(lowest.seed_means)} of {best.num_seeds} seeds'
  if len(losses) < len(runs):
    words += f'; {len(losses)} runs were evaluated'
  # Equal as shown is equal.
  shown = {run.label: f'{loss.mean:.3f}' for run, loss in losses.items()}
  winners = [label for label in shown if shown[label] == shown[best.label]]
  if len(winners) > 3:
    return f'{len(winners)} runs alike', words
  return listed(winners), words


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
  return run.num_rounds == 2 * evaluation.round_num or (
    evaluation.kind == 'held_out'
    and evaluation.round_num != run.held_out().round_num
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

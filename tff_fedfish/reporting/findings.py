"""Findings in a sentence, and caveats.

Only what was computed is said: the lowest mean is called the lowest, and no
difference between runs is called significant.
"""

from collections.abc import Sequence

from tff_fedfish.data import unknown_tokens
from tff_fedfish.reporting.evaluations import Interval
from tff_fedfish.reporting.reading import is_finite
from tff_fedfish.reporting.repetitions import has_repetitions
from tff_fedfish.reporting.runs import Run, transfer_corpora
from tff_fedfish.reporting.settings import compare
from tff_fedfish.reporting.words import words_of

# Runs that differ here were not measured on the same thing.
_DEFINES_THE_MEASUREMENT = (
  'data.',
  'partition.',
  'client_splits.',
  'model.vocabulary_size',
  'evaluation.',
  'seeds.split_seed',
  'seeds.partition_seed',
)


def summary_sentence(runs: Sequence[Run]) -> str:
  """Returns one sentence on which run scores best, from only the data.

  Args:
    runs: The runs of the report, repetitions pooled.
  """
  won: dict[str, list[str]] = {}
  num_seeds = {run.label: run.num_seeds for run in runs}
  corpora = dict.fromkeys(run.corpus_kind for run in runs)
  groups = [[r for r in runs if r.corpus_kind == corpus] for corpus in corpora]
  if len(groups) > 1:
    # Losses on different corpora have no common scale.
    groups = [group for group in groups if len(group) > 1]
    if not groups:
      return f'{len(runs)} runs on different corpora: no two can be ranked.'
  for members, where, losses in (
    (group, *found) for group in groups for found in _comparisons(group)
  ):
    lowest = min(losses.values(), key=lambda loss: loss.mean)
    words = f'{lowest.mean:.3f}'
    if len(corpora) > 1:
      words = f'{members[0].corpus_kind}: {words}'
    if lowest.ci_low is not None:
      words += f', 95 % interval {lowest.ci_low:.3f} to {lowest.ci_high:.3f}'
    label = next(label for label in losses if losses[label] is lowest)
    if 0 < len(lowest.seed_means) < num_seeds[label]:
      words += f'; {len(lowest.seed_means)} of {num_seeds[label]} seeds'
    if len(losses) < len(members):
      words += f'; {len(losses)} runs were evaluated'
    # Equal as shown is equal.
    winners = [
      label
      for label, loss in losses.items()
      if f'{loss.mean:.3f}' == f'{lowest.mean:.3f}'
    ]
    won.setdefault(_named(winners), []).append(f'{where} ({words})')
  unit = f'nats per {words_of(runs).unit}'
  if not won:
    return f'{_counted(len(runs), "run")} without a held-out score so far.'
  if len(runs) == 1:
    return (
      f'Mean loss ({unit}) of {_counted_seeds(runs[0], losses[label])} '
      f'{listed(*won.values())}.'
    )
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
  """Returns what a reader must know before comparing the numbers.

  Args:
    runs: The runs of the report, not pooled.
    pooled: The same, repetitions pooled.
  """
  concerned: dict[str, list[str]] = {}
  for run in runs:
    for clause in _run_clauses(run):
      concerned.setdefault(clause, []).append(run.label)
  found = []
  for clause, labels in concerned.items():
    is_all = len(labels) == len(runs) > 1
    found.append(f'{"All runs" if is_all else listed(labels)}: {clause}.')
  for run in pooled:
    found += [f'{run.label}: {clause}.' for clause in _pooled_clauses(run)]
  found += _between_runs(runs)
  if has_repetitions(runs):
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


def listed(words: Sequence[str]) -> str:
  """Returns 'a', 'a and b' or 'a, b and c'."""
  return ' and '.join(
    part for part in (', '.join(words[:-1]), words[-1]) if part
  )


def _comparisons(runs):
  """Yields (where, {label: mean loss}) of what the summary speaks about."""
  choices = [('held-out clients', Run.held_out, 2)]
  choices += [
    (f'clients of {corpus}', lambda run, c=corpus: run.transfer(c), 1)
    for corpus in transfer_corpora(runs)
  ]
  is_evaluated = False
  for subject, choose, num_fractions in choices:
    scores = {
      run.label: evaluation.fractions
      for run in runs
      if (evaluation := choose(run))
    }
    fractions = sorted({f for found in scores.values() for f in found})
    # The smallest and, on held-out clients, the largest, too.
    for fraction in dict.fromkeys(fractions[:1] + fractions[-1:]):
      losses = {
        label: found[fraction].loss
        for label, found in scores.items()
        if fraction in found and found[fraction].loss
      }
      if losses and (fraction == fractions[0] or num_fractions == 2):
        is_evaluated = True
        yield f'on {subject} {_personalized(fraction)}', losses
  losses = {
    run.label: Interval(value)
    for run in runs
    if (value := run.last('held_out/loss')) is not None
  }
  if losses and not is_evaluated:
    yield 'on the held-out clients sampled during training', losses


def _personalized(fraction):
  if fraction == 0.0:
    return 'without personalization'
  return f'after personalization on {100 * fraction:g} % of their data'


def _run_clauses(run):
  last, planned = run.last_round, run.num_rounds
  if last is None:
    yield 'no round is finished yet'
  elif run.num_diverged:
    yield f'diverged and stopped after round {last} of {planned}'
  elif planned is not None and last < planned:
    yield f'{last} of {planned} rounds so far'
  dropped = sum(
    row['train/num_non_finite_clients']
    for row in run.metrics
    if is_finite(row.get('train/num_non_finite_clients'))
  )
  if dropped:
    yield (
      f'{_counted(dropped, "client")} with non-finite results counted with '
      'weight 0 in training'
    )
  for name in ('train/loss', 'held_out/loss'):
    bad = sum(
      row.get(name) is not None and not is_finite(row[name])
      for row in run.metrics
    )
    if bad:
      yield f'{name} is not finite in {_counted(bad, "round")}: a gap in plots'
  yield from _evaluation_clauses(run)
  yield from run.remarks


def _evaluation_clauses(run):
  shown = [run.held_out(), run.barrier()]
  shown += [run.transfer(corpus) for corpus in transfer_corpora([run])]
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


def _pooled_clauses(run):
  """Yields what a mean over seeds does not hold."""
  shown = [run.held_out()]
  shown += [run.transfer(corpus) for corpus in transfer_corpora([run])]
  for evaluation in shown:
    if evaluation is None:
      continue
    name = f'evaluation {evaluation.name}'
    if evaluation.num_seeds < run.num_seeds:
      yield f'{name} is of {evaluation.num_seeds} of {run.num_seeds} seeds'
    if evaluation.num_left_out_clients:
      yield (
        f'{name} left out '
        f'{_counted(evaluation.num_left_out_clients, "client")} that not '
        'every seed has a finite score of'
      )


def _is_on_the_way(run, evaluation):
  """Returns whether it is shown as a score before the last round."""
  if evaluation.round_num is None:
    return False
  latest = run.held_out()
  return run.num_rounds == 2 * evaluation.round_num or (
    evaluation.kind == 'held_out' and evaluation.round_num != latest.round_num
  )


def _between_runs(runs):
  differing = [
    f'{setting.name} ({" / ".join(dict.fromkeys(setting.values))})'
    for setting in compare([run.config for run in runs])
    if setting.differs and setting.name.startswith(_DEFINES_THE_MEASUREMENT)
  ]
  if differing:
    yield (
      'The runs were not measured on the same data: they differ in '
      f'{", ".join(differing)}.'
    )
  rounds = sorted({run.last_round for run in runs if run.last_round})
  if len(rounds) > 1:
    yield (
      'The runs have different numbers of rounds '
      f'({", ".join(map(str, rounds))}).'
    )
  choices = [('held-out clients', Run.held_out)]
  choices += [
    (f'clients of {corpus}', lambda run, c=corpus: run.transfer(c))
    for corpus in transfer_corpora(runs)
  ]
  for words, choose in choices:
    without = [run.label for run in runs if not choose(run)]
    if without and len(without) < len(runs):
      yield f'Without an evaluation on {words}: {listed(without)}.'
    counts = {e.num_clients for run in runs if (e := choose(run))} - {None}
    if len(counts) > 1:
      yield (
        f'The evaluations on {words} have different numbers of clients '
        f'({", ".join(map(str, sorted(counts)))}).'
      )
    corpora = {e.corpus for run in runs if (e := choose(run))}
    if len(corpora) > 1:
      yield (
        f'The evaluations on {words} are on different corpora '
        f'({", ".join(sorted(corpora))}).'
      )


def _named(labels):
  """Names up to three runs, counts more."""
  return listed(labels) if len(labels) <= 3 else f'{len(labels)} runs alike'


def _counted_seeds(run, loss):
  # Of fewer seeds than the run stands for: said beside the number.
  if not run.repetitions or 0 < len(loss.seed_means) < run.num_seeds:
    return run.label
  return f'{run.label}, over {run.num_seeds} seeds,'


def _counted(count, noun):
  return f'{count:g} {noun}{"" if count == 1 else "s"}'

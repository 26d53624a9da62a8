"""Caveats: what a reader must know before comparing numbers."""

import shlex
from collections.abc import Iterator, Mapping, Sequence

from tff_fedfish.data import unknown_tokens
from tff_fedfish.planning.client_steps import cap_line
from tff_fedfish.printing import count
from tff_fedfish.reporting import keys
from tff_fedfish.reporting.arms import Arm, subjects
from tff_fedfish.reporting.estimates import MIN_SEEDS
from tff_fedfish.reporting.findings import Findings
from tff_fedfish.reporting.reproduction import (
  evaluate_command,
  is_measurable,
  more_seeds_commands,
)
from tff_fedfish.reporting.runs import (
  NamedEvaluation,
  Run,
  Subject,
)
from tff_fedfish.reporting.scores import Sample
from tff_fedfish.reporting.words import listed, said_fraction

MORE_SEEDS = 'three_seeds.sh'
"""File with commands for further seeds, beside the page."""
_MAX_NAMED = 4
"""Runs, or settings, that a sentence names; more are counted."""


def notes(findings: Findings) -> list[str]:
  """Returns what a reader must know before comparing the numbers."""
  runs, arms = findings.runs, findings.arms
  compared = [s for c in findings.comparisons for s in c.sides]
  visible = {
    evaluation
    for sample in [*findings.shown, *compared]
    for evaluation in sample.evaluations.values()
  }
  sentences = list(_seeds(findings))
  sentences += [*_not_compared(findings), *_not_personalized(findings)]
  sentences += _left_out(findings)
  clauses = [
    (clause, run.label)
    for run in runs
    for clause in (*_run_clauses(run), *_evaluation_clauses(run, visible))
  ]
  for clause, concerned in keys.grouped(clauses, lambda c: c[0]).items():
    labels = [label for _, label in concerned]
    is_all = len(labels) == len(runs) > 1
    sentences.append(f'{"All runs" if is_all else listed(labels)}: {clause}.')
  for arm in arms:
    sentences += [f'{arm.label}: {c}.' for c in _arm_clauses(arm, findings)]
  return [*sentences, *_between_runs(findings)]


def _seeds(findings: Findings) -> Iterator[str]:
  """Yields what the intervals are over, and how to make a finding."""
  rows = [row for row in findings.comparisons if not row.problem]
  fewest = min((row.num_seeds for row in rows), default=MIN_SEEDS)
  if fewest < MIN_SEEDS:
    commands = ''
    if more_seeds_commands(findings.compared_arms):
      commands = f' {MORE_SEEDS}, beside this page, has commands for more.'
    yield (
      'Fewer than three seeds are not a finding: other seeds may rank the runs '
      f'differently.{commands}'
    )
  if fewest == 1:
    yield 'Intervals of one seed are over its clients.'
  if any(row.has_choice for row in rows):
    yield (
      'The best of several trials, chosen on the clients that are scored, '
      'looks better than it is. Validation clients '
      '(client_splits.validation_clients_fraction) make the choice fair.'
    )


def _left_out(findings: Findings) -> Iterator[str]:
  """Yields how many clients left a comparison as one side lacks them."""
  for (pair, subject), rows in keys.grouped(
    findings.comparisons, lambda c: (c.pair, c.subject)
  ).items():
    one, two = (set(side.clients) for side in rows[0].sides)
    if number := len(one ^ two):
      verb = 'is' if number == 1 else 'are'
      yield (
        f'{count(number, "client")} of {subject} that only one of '
        f'{" and ".join(pair.names)} was scored on {verb} not compared.'
      )


def _run_clauses(run: Run) -> Iterator[str]:
  last, planned = run.last_round, run.num_rounds
  if last is None:
    yield 'no round is finished yet'
  elif run.has_diverged:
    yield f'diverged and stopped after round {last} of {planned}'
  elif last < planned and run.history.has_stopped_early:
    yield f'stopped early after round {last} of {planned}'
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
  if run.search:
    trials, clients = run.search
    yield (
      f'learning rates are the best of {trials} on '
      f'{count(clients, "validation client")}'
    )
  yield from run.remarks


def _not_personalized(findings: Findings) -> Iterator[str]:
  """Yields why pairs are not compared after personalization."""
  done = set()
  for c in findings.comparisons:
    place = c.pair, c.subject
    if place in done:
      continue
    done.add(place)
    if any(
      o.fraction for o in findings.comparisons if (o.pair, o.subject) == place
    ):
      continue
    sides = [
      [s for s in findings.shown_of(c.subject) if s.arm is arm and s.fraction]
      for arm in c.pair.arms
    ]
    if all(sides):
      differing = keys.differing([own[-1].key for own in sides])
      yield (
        f'After personalization {" and ".join(c.pair.names)} are not compared '
        f'on {c.subject}: {_with_values(differing)} differ.'
      )


def _evaluation_clauses(
  run: Run, visible: set[NamedEvaluation]
) -> Iterator[str]:
  """Yields what a score lacks, and which evaluations are not shown."""
  shown = (e for e in run.evaluations if e in visible)
  by_subject = keys.grouped(shown, run.subject_of)
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
      overlap = summary.overlap
      if overlap and (overlap.clients or overlap.documents):
        line = overlap.line()
        yield f'{name} on {subject}: {line[0].lower()}{line[1:]}'
    elif subject is None:
      yield f'{name} is of clients or rows of the training and is not shown'
    elif subject in by_subject:
      # An earlier score is a point of a curve.
      last_shown = max(e.round_num for e in by_subject[subject])
      if evaluation.round_num >= last_shown:
        yield f'{name} on {subject} is not shown: another one is'
    elif evaluation.fractions:
      yield f'{name} on {subject} is not shown: that of other seeds is'


def _arm_clauses(arm: Arm, findings: Findings) -> Iterator[str]:
  """Yields where personalization hurts, and what a mean over seeds lacks."""
  if arm.train_config.local_privacy.is_on and arm.num_seeds > 1:
    privacy_seeds = {run.train_config.seeds.privacy_seed for run in arm.runs}
    if len(privacy_seeds) < arm.num_seeds:
      yield 'seeds share a seeds.privacy_seed, and so the noise'
  for subject, samples in keys.grouped(
    (s for s in findings.shown if s.arm is arm), lambda s: s.subject
  ).items():
    last = samples[-1]
    if last.hurt and last.hurt > 0.5:
      yield (
        f'personalization on {100 * last.fraction:g} % hurt '
        f'{100 * last.hurt:.0f} % of the {subject}'
      )
    fewest = min(samples, key=lambda s: len(s.by_seed))
    if (num_seeds := len(fewest.by_seed)) < arm.num_seeds:
      yield f'{subject} were scored for {num_seeds} of {arm.num_seeds} seeds'
    tables = fewest.by_seed.values()
    every = set().union(*(t.index for t in tables))
    if num_left_out := len(every) - len(fewest.clients):
      clients = count(num_left_out, 'client')
      yield f'{clients} of the {subject} that not every seed has are left out'


def _not_compared(findings: Findings) -> Iterator[str]:
  """Yields why arms are not compared, and the command that would help."""
  if len(findings.arms) < 2 or not findings.samples:
    return
  compared = {arm for c in findings.comparisons for arm in c.pair.arms}
  # Trials of a side of which another was the best are not named.
  sides = {keys.side_key(arm.first) for arm in compared}
  rest = [a for a in findings.arms if a not in compared]
  if compared:
    rest = [
      a
      for a in rest
      if keys.side_key(a.first) not in sides or not _samples(findings, a)
    ]
  copied = {keys.repetition_key(a.first): a for a in reversed(findings.arms)}
  for arm in findings.arms:
    if arm is not (original := copied[keys.repetition_key(arm.first)]):
      yield f'{arm.label} is not compared: it is a copy of {original.label}.'
      rest = [a for a in rest if a is not arm]
  others = [a for a in findings.arms if a in compared] or findings.arms[:1]
  rest = [a for a in rest if a is not others[0]]
  for arm in rest[:_MAX_NAMED]:
    yield f'{arm.label} is not compared: {_reason(findings, arm, others[0])}'
  if len(rest) > _MAX_NAMED:
    more = count(sum(arm.num_seeds for arm in rest[_MAX_NAMED:]), 'run')
    yield f'Also not compared: {more}.'


def _reason(findings: Findings, arm: Arm, other: Arm) -> str:
  """Returns why two arms are not compared, with a command where one helps."""
  run = arm.first
  directory = shlex.quote(str(run.directory))
  theirs, ours = _samples(findings, other), _samples(findings, arm)
  if over := _over(findings, arm, other) or _over(findings, other, arm):
    return over
  if not theirs and not ours:
    return (
      'neither has an evaluation. `fedfish evaluate --checkpoint '
      f'{directory} --data CORPUS` makes one.'
    )
  sample, target = (theirs[0], run) if theirs else (ours[0], other.first)
  reason = f'{arm.label if theirs else other.label} was not evaluated'
  if theirs and ours:
    differing = keys.differing([ours[0].key, theirs[0].key])
    if ours[0].round_num != theirs[0].round_num:
      differing['round'] = [str(s[0].round_num) for s in (ours, theirs)]
    seeds = [set(side[0].by_seed) for side in (ours, theirs)]
    if not differing and seeds[0] & seeds[1]:
      return 'no client has a finite loss on both sides.'
    if not differing:
      return f'it has no seed in common with {other.label}.'
    if 'vocabulary' in differing or 'corpus' in differing:
      return f'it was scored on other data: {_with_values(differing)}.'
    reason = f'it was evaluated differently: {_with_values(differing)}'
  evaluation = next(iter(sample.evaluations.values()))
  if not is_measurable(target, evaluation):
    return f'{reason}. It cannot be evaluated alike.'
  command = evaluate_command(target, evaluation, str(target.directory))
  return f'{reason}. `{" ".join(command)}` evaluates it alike.'


def _over(findings: Findings, arm: Arm, other: Arm) -> str:
  """Returns that an arm has no model of the round of the other's scores."""
  run, theirs = arm.first, _samples(findings, other)
  if run.last_round is None or not theirs:
    return ''
  rounds = theirs[0].round_num
  if theirs[0].num_trials > 1 or run.last_round >= rounds:
    return ''
  found = (
    f'{arm.label} has {count(run.last_round, "round")}, {other.label} was '
    f'evaluated after {rounds:,}.'
  )
  if run.has_diverged or run.history.has_stopped_early:
    return found
  command = f'fedfish train --workdir {shlex.quote(str(run.directory))}'
  # It keeps its plan where that goes as far.
  if run.num_rounds < rounds:
    command += f' --config.training.num_rounds={rounds}'
  return f'{found} `{command}` continues it.'


def _samples(findings: Findings, arm: Arm) -> list[Sample]:
  return [s for s in findings.shown if s.arm is arm]


def _between_runs(findings: Findings) -> Iterator[str]:
  runs = findings.runs
  if differing := keys.differing(list(map(keys.client_key, runs))):
    yield (
      'The runs were not trained on the same data: they differ in '
      f'{_with_values(differing)}.'
    )
  rounds = {run.last_round for run in runs if run.last_round}
  if len(rounds) > 1:
    numbers = ', '.join(map(str, sorted(rounds)))
    yield f'The runs have different numbers of rounds ({numbers}).'
  for subject in subjects(runs):
    without = [
      run.label
      for run in runs
      if subject not in map(run.subject_of, run.evaluations)
    ]
    if 0 < len(without) < len(runs):
      yield f'Without an evaluation on {subject}: {_some(without)}.'
    own = findings.shown_of(subject)
    if differing := _not_alike(findings, subject):
      yield (
        f'Scores on {subject} that are shown are not of one evaluation: they '
        f'differ in {_with_values(differing)}.'
      )
    first = min((s.fraction for s in own), default=0.0)
    scored = {s.arm for s in own if s.fraction == first}
    if later := list(dict.fromkeys(s.arm for s in own if s.arm not in scored)):
      labels = _some([arm.label for arm in later])
      yield f'Not scored on {subject} {said_fraction(first)}: {labels}.'


def _not_alike(findings: Findings, subject: Subject) -> dict[str, list[str]]:
  """Returns what differs between the first scores of arms that are compared.

  What differs after personalization alone, its own note says.
  """
  compared = findings.compared_arms
  samples = [s for s in findings.shown_of(subject) if s.arm in compared]
  first = min((s.fraction for s in samples), default=0.0)
  return keys.differing([s.key for s in samples if s.fraction == first])


def _some(labels: Sequence[str]) -> str:
  if len(labels) <= _MAX_NAMED:
    return listed(labels)
  return f'{listed(labels[:_MAX_NAMED])} and {len(labels) - _MAX_NAMED} more'


def _with_values(differing: Mapping[str, Sequence[str]]) -> str:
  parts = []
  for name, values in differing.items():
    # Of clients the hash says nothing to a reader.
    numbers = [value.strip("'").split(' (')[0] for value in values]
    if name != 'clients':
      parts.append(f'{name} ({" / ".join(v.strip(chr(39)) for v in values)})')
    elif len(set(numbers)) > 1:
      parts.append(f'clients ({" / ".join(numbers)})')
    else:
      parts.append('which clients, or which of their rows')
  return ', '.join(parts)

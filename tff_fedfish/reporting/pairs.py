"""Which arms are compared, and which question each pair answers."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Sequence

from tff_fedfish.reporting import keys
from tff_fedfish.reporting.arms import Arm
from tff_fedfish.reporting.runs import HELD_OUT, Subject
from tff_fedfish.reporting.scores import Sample, Scores

SAME, BEST, OTHER = 'same settings', 'each at its best', 'other settings'
"""Questions of a comparison: `OTHER` is of a single trial a side."""
QUESTIONS = (SAME, BEST, OTHER)
_VALIDATION = 'validation clients'
# Sides of which every pair is compared; of more, those with the baseline.
_MAX_PAIRED = 6


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Pair:
  """Two arms to compare, and the question that they answer."""

  question: str
  setting: str
  """Words for what both arms share and other pairs of the question do not."""
  names: tuple[str, str]
  """The method and what is subtracted, with all that differs between them and
  the trials that they are the best of."""
  arms: tuple[Arm, Arm]
  names_of_curves: tuple[str, str]
  """The names without the rounds that were scored."""
  rounds: tuple[int | None, int | None] = (None, None)
  """Rounds that were chosen; None: the latest that both sides have."""
  are_best: tuple[bool, bool] = (False, False)
  """Whether the models of each side are those that its runs kept as best."""
  trials: tuple[int, int] = (1, 1)
  """Trials of which each side is the best."""
  chosen_on: Subject | str = ''
  """Clients by whose loss the trials were chosen; '' without a choice."""

  @property
  def is_against_baseline(self) -> bool:
    """Whether another method is compared with `registry.BASELINE`."""
    arm, baseline = self.arms
    return baseline.is_baseline and not arm.is_baseline


def rounds_words(rounds: Sequence[int]) -> str:
  """Returns 'round 6', or 'rounds 2 to 6' of an ascending list."""
  if len(rounds) == 1:
    return f'round {rounds[0]:,}'
  return f'rounds {rounds[0]:,} to {rounds[-1]:,}'


def find_pairs(scores: Scores) -> Iterator[Pair]:
  """Yields the pairs of the same settings, then the others."""
  yield from _same_settings(scores.arms)
  yield from _each_at_its_best(scores)


def _same_settings(arms: Sequence[Arm]) -> Iterator[Pair]:
  """Yields pairs of methods whose common settings are all equal."""
  pairs = [
    pair
    for pair in itertools.combinations(_without_copies(arms), 2)
    if _is_same(*pair)
  ]
  # Words for a pair are those of the settings that its sides share.
  firsts = [_ordered(pair)[1].first for pair in pairs]
  settings = keys.differing_words(firsts)
  for pair, words in zip(pairs, settings, strict=True):
    sides = _ordered(pair)
    names = tuple(keys.names([arm.first for arm in sides]))
    yield Pair(
      question=SAME,
      setting=', '.join(words),
      names=names,
      arms=sides,
      names_of_curves=names,
    )


def _each_at_its_best(scores: Scores) -> Iterator[Pair]:
  """Yields pairs of sides, each the best of its trials.

  A side is all arms that differ in learning rates, local epochs and rounds
  only. Of a single side each arm is one. A pair that is one of the same
  settings, without a choice, is left out.
  """
  arms = _without_copies(scores.arms)
  sides = list(
    keys.grouped(arms, lambda arm: keys.side_key(arm.first)).values()
  )
  if len(sides) == 1:
    sides = [[arm] for arm in arms]
  pairs = list(itertools.combinations(sides, 2))
  if len(sides) > _MAX_PAIRED:
    is_baseline = [side[0].is_baseline for side in sides]
    first = sides[is_baseline.index(True) if True in is_baseline else 0]
    pairs = [pair for pair in pairs if any(side is first for side in pair)]
  for pair in pairs:
    best = _best_of_both(scores, pair)
    if best is None:
      continue
    samples, trials, chosen_on = best
    arms = [sample.arm for sample in samples]
    rounds = [sample.round_num for sample in samples]
    are_equal = samples[0].rounds == samples[1].rounds
    if not are_equal and not all(map(_is_final, samples)):
      continue
    if trials == [1, 1] and are_equal and _is_same(*arms):
      continue
    order = [arms.index(arm) for arm in _ordered(arms)]
    # Where all rounds are the last planned ones their number is a setting.
    is_last = all(s.rounds == [s.arm.num_rounds] for s in samples)
    has_one_plan = arms[0].num_rounds == arms[1].num_rounds
    names_rounds = not is_last and not (are_equal and has_one_plan)
    words = [
      _trial_words(pair[n], samples[n], trials[n], chosen_on) for n in order
    ]
    scored = [
      [*own, *[rounds_words(samples[n].rounds)] * names_rounds]
      for n, own in zip(order, words, strict=True)
    ]
    firsts = [arms[n].first for n in order]
    yield Pair(
      question=BEST if max(trials) > 1 else OTHER,
      setting='',
      names=tuple(keys.names(firsts, further=scored)),
      arms=tuple(arms[n] for n in order),
      names_of_curves=tuple(keys.names(firsts, further=words)),
      rounds=tuple(rounds[n] for n in order),
      are_best=tuple(samples[n].num_trials > 1 for n in order),
      trials=tuple(trials[n] for n in order),
      chosen_on=chosen_on if max(trials) > 1 else '',
    )


def _best_of_both(
  scores: Scores, pair: Sequence[Sequence[Arm]]
) -> tuple[list[Sample], list[int], Subject | str] | None:
  """Returns the best sample of each side, the trials, and who chose.

  The samples are of the first subject, and the least personalization, at which
  both sides were evaluated alike.
  """
  arms = {arm for side in pair for arm in side}
  samples = [s for s in scores.samples if s.arm in arms]
  places = keys.grouped(samples, lambda s: (s.subject, s.fraction, s.key))

  def sides(group):
    """Returns each arm's sample of highest rank, and its best checkpoints."""
    by_arm = keys.grouped(group, lambda s: s.arm)
    for own in by_arm.values():
      own.sort(key=lambda s: s.rank, reverse=True)
      own[1:] = [s for s in own[1:] if s.num_trials > 1]
    return [[by_arm[arm] for arm in side if arm in by_arm] for side in pair]

  def rank(item):
    (subject, fraction, _), group = item
    return subject != HELD_OUT, subject, fraction, -len(group[0].clients)

  for (subject, _, _), group in sorted(places.items(), key=rank):
    candidates = sides(group)
    if not all(candidates):
      continue
    every = [list(itertools.chain(*own)) for own in candidates]
    choice = _by_validation(every)
    chosen_on = _VALIDATION if choice else subject
    if not choice and all(len(own) == 1 for own in every):
      # The runs chose, on clients of their own.
      chosen_on = _chosen_by_runs(every) or subject
    best = [min(own, key=choice or _scored_loss) for own in every]
    trials = [
      sum(max(s.num_trials for s in of_arm) for of_arm in own)
      for own in candidates
    ]
    return best, trials, chosen_on
  return None


def _trial_words(
  side: Sequence[Arm], best: Sample, num_trials: int, chosen_on: Subject | str
) -> list[str]:
  """Returns what tells the best trial from the others, and their number."""
  if num_trials == 1:
    return []
  words = keys.differing_words([arm.first for arm in side])
  where = ' on validation clients' * (chosen_on == _VALIDATION)
  return [*words[side.index(best.arm)], f'best of {num_trials}{where}']


def _by_validation(
  candidates: Sequence[Sequence[Sample]],
) -> Callable[[Sample], float] | None:
  """Returns the loss of validation clients; None unless all samples have it."""

  def loss(sample):
    return math.inf if sample.problem else sample.in_rounds('validation/loss')

  if any(loss(sample) is None for own in candidates for sample in own):
    return None
  return loss


def _chosen_by_runs(
  candidates: Sequence[Sequence[Sample]],
) -> Subject | str:
  """Returns the clients of all choices of a best round; '' of several."""
  found = {
    evaluation.summary.checkpoint.get('chosen_on')
    for [sample] in candidates
    for evaluation in sample.evaluations.values()
    if evaluation.num_trials > 1
  }
  if len(found) != 1:
    return ''
  return {'validation_clients': _VALIDATION, 'held_out_clients': HELD_OUT}.get(
    found.pop(), ''
  )


def _scored_loss(sample: Sample) -> float:
  """Returns the mean loss; infinite where a client or a seed is missing."""
  loss = sample.estimates['loss']
  return math.inf if sample.problem or loss is None else loss.mean


def _is_final(sample: Sample) -> bool:
  """Returns whether a run has no later round, or the round was chosen."""
  arm = sample.arm
  is_over = sample.round_num >= arm.num_rounds or all(
    run.history.has_stopped_early for run in arm.runs
  )
  return is_over or sample.num_trials > 1


def _is_same(arm: Arm, other: Arm) -> bool:
  return arm.algorithm != other.algorithm and keys.are_same_settings(
    arm.first, other.first
  )


def _without_copies(arms: Sequence[Arm]) -> list[Arm]:
  """Returns the arms but for repeated runs of equal seeds."""
  first: dict[keys.Key, Arm] = {}
  for arm in arms:
    first.setdefault(keys.repetition_key(arm.first), arm)
  return list(first.values())


def _ordered(arms: Sequence[Arm]) -> tuple[Arm, Arm]:
  """Returns two arms with the one that is subtracted last.

  It is the baseline, or without it the first.
  """
  arm, baseline = sorted(reversed(arms), key=lambda arm: arm.is_baseline)
  return arm, baseline

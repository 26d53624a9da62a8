"""The parts of `make bench-engine`."""

import dataclasses
import itertools
import statistics
from collections.abc import Sequence

from benchmarks.engine_figures import Figure, Goal, absent, measured, ratio
from benchmarks.engine_processes import MeasuredProcess, once, take_turns
from benchmarks.engine_settings import (
  BFLOAT16,
  MAX_STOCK_ROUNDS,
  OURS,
  PLAIN,
  RAY,
  STOCK,
  Settings,
  Workload,
)
from benchmarks.shared import say

_GIB = 2**30
# The same arithmetic in another order; bfloat16 has 8 bits.
_LOSS_TOLERANCE = {'float32': 1e-3, BFLOAT16: 2e-2}


def rounds(settings: Settings) -> list[Figure]:
  """Tokens/s of the plain loop, our engine and TFF's own, in float32."""
  goals = Goal(0.95), Goal(2.2), Goal(3)
  return _compare_engines(settings, settings.workload, *goals)


def rounds_bfloat16(settings: Settings) -> list[Figure]:
  """The same in bfloat16."""
  if not settings.measures_bfloat16:
    return [
      absent(
        'this processor has no instructions for bfloat16; --bfloat16 insists'
      )
    ]
  workload = dataclasses.replace(settings.workload, compute_dtype=BFLOAT16)
  return _compare_engines(settings, workload, Goal(0.95), Goal(4), None)


def fisher(settings: Settings) -> list[Figure]:
  """How much longer a round of FedFish takes than one of FedAvg."""
  figures = []
  # An extra pass is a step without the optimizer's for every batch.
  bounds = {
    1: {'extra_pass': 1.05 * 2 / 1, 'last_epoch': 1.12},
    2: {'extra_pass': 1.05 * 3 / 2},
    4: {'extra_pass': 1.05 * 5 / 4, 'last_epoch': 1.05},
  }
  for num_epochs, estimator_to_bound in bounds.items():
    workload = dataclasses.replace(
      settings.workload, num_local_epochs=num_epochs
    )
    variants = {'fed_avg': _rounds(OURS, workload)}
    for estimator in estimator_to_bound:
      fields = dict(algorithm='fed_fish', fisher_estimator=estimator)
      variants[estimator] = _rounds(
        OURS, dataclasses.replace(workload, **fields)
      )
    turns = take_turns(settings, variants, repeats=settings.repeats)
    seconds = {name: _values(turns[name], 'seconds') for name in variants}
    name = f'E={num_epochs}: fed_avg'
    figures.append(measured(name, seconds['fed_avg'], 's/round'))
    for estimator, bound in estimator_to_bound.items():
      name = f'E={num_epochs}: fed_fish {estimator} / fed_avg, time'
      goal = Goal(bound, is_at_least=False)
      figures.append(ratio(name, seconds[estimator], seconds['fed_avg'], goal))
  return figures


def workers(settings: Settings) -> list[Figure]:
  """Tokens/s of two worker processes, of one thread each, beside one."""
  workload = settings.workload
  variants = {
    name: _rounds(RAY, workload, num_workers=count)
    for count, name in ((1, '1 ray worker'), (2, '2 ray workers'))
  }
  turns = take_turns(settings, variants, repeats=settings.repeats)
  _require_equal_losses(turns, tolerance=0)
  one, two = (_rates(workload, turns[name]) for name in variants)
  name = 'two workers / twice one worker'
  return [
    *(
      measured(*pair, 'tokens/s')
      for pair in zip(turns, (one, two), strict=True)
    ),
    ratio(name, two, [2 * rate for rate in one], Goal(0.85)),
  ]


def build(settings: Settings) -> list[Figure]:
  """Seconds until `small` can run its first round."""
  return _build(settings, settings.workload.preset, goal_seconds=10)


def build_large(settings: Settings) -> list[Figure]:
  """The same of 350m."""
  return _build(settings, settings.large_preset, goal_seconds=30)


def memory(settings: Settings) -> list[Figure]:
  """Whether resident memory stays as it is from round to round."""
  tiny = Workload(
    preset='tiny',
    num_clients=1,
    num_local_steps=1,
    local_batch_size=2,
    sequence_length=16,
  )
  small = dataclasses.replace(settings.workload, num_local_steps=1)
  figures = []
  for workload, marks in ((tiny, (20, 300)), (small, (20, 60))):
    sizes = _resident(settings, OURS, workload, marks)
    name = f'{workload.preset}: after {marks[1]} rounds'
    # Equal, if they differ by 2 % at the most.
    goal = Goal(1.02, is_at_least=False)
    figures += [
      ratio(f'{name} / after {marks[0]}', sizes[1:], sizes[:1], goal),
      measured(name, sizes[1:], 'GiB'),
    ]
  marks = range(1, 1 + MAX_STOCK_ROUNDS)
  sizes = _resident(settings, STOCK, small, marks)
  growth = [after - before for before, after in itertools.pairwise(sizes)]
  name, note = f'stock, {small.preset}', 'with its worker process'
  return figures + [
    measured(f'{name}: after {marks[-1]} rounds', sizes[-1:], 'GiB', note=note),
    measured(f'{name}: growth with a round', growth, 'GiB', note=note),
  ]


def plan(settings: Settings) -> list[Figure]:
  """Time and peak memory of a round of small, planned and measured."""
  workload = settings.workload
  variants = {
    'planned': ('Plan', {'workload': workload}),
    OURS: _rounds(OURS, workload),
  }
  turns = take_turns(settings, variants, repeats=settings.repeats)
  return _compare_plan(workload, turns['planned'], turns[OURS])


def memory_large(settings: Settings) -> list[Figure]:
  """Peak memory of a round of FedFish with the large preset, and the plan's."""
  workload = dataclasses.replace(
    settings.workload,
    preset=settings.large_preset,
    num_clients=2,
    num_local_steps=4,
    algorithm='fed_fish',
  )
  kind, options = _rounds(OURS, workload)
  with MeasuredProcess(kind, settings.num_threads, **options) as process:
    # The first compiles.
    found = [process.turn(), process.turn()][1:]
  say(f'a round of {workload.preset}: {found[0]["seconds"]:.0f} s')
  planned = [once(settings, 'Plan', workload=workload)]
  goal = Goal(14, is_at_least=False)
  name = f'{workload.preset}: peak of rounds of fed_fish'
  peak = measured(name, [found[0]['peak_bytes'] / _GIB], 'GiB', goal)
  return [peak, *_compare_plan(workload, planned, found)]


def factor(planned: float, found: Sequence[float]) -> list[float]:
  """Returns by what factor each value differs from the planned one, >= 1."""
  return [max(planned / value, value / planned) for value in found]


def _compare_engines(settings, workload, plain_goal, stock_goal, half_goal):
  """Figures of all engines, and of two of them with half the local steps.

  The goals are of our engine's speed over that of the plain loop, over TFF's
  own, and over TFF's own with half the local steps.
  """
  half = dataclasses.replace(
    workload, num_local_steps=max(1, workload.num_local_steps // 2)
  )
  figures, rates = [], {}
  for what, cohort, engines in (
    ('', workload, (PLAIN, OURS, STOCK)),
    (', half the steps', half, (OURS, STOCK)),
  ):
    variants = {name: _rounds(name, cohort) for name in engines}
    turns = take_turns(settings, variants, repeats=settings.stock_repeats)
    _require_equal_losses(turns, _LOSS_TOLERANCE[workload.compute_dtype])
    for name in engines:
      rates[name + what] = _rates(cohort, turns[name])
      figures.append(measured(name + what, rates[name + what], 'tokens/s'))
  for name, goal in (
    (PLAIN, plain_goal),
    (STOCK, stock_goal),
    (f'{STOCK}, half the steps', half_goal),
  ):
    ours = rates[name.replace(STOCK, OURS).replace(PLAIN, OURS)]
    figures.append(ratio(f'ours / {name}', ours, rates[name], goal))
  return figures


def _build(settings, preset, goal_seconds):
  workload = dataclasses.replace(
    settings.workload, preset=preset, num_clients=1, num_local_steps=1
  )
  # Each in a new process: what is built once is built faster again.
  turns = [
    once(settings, 'Build', workload=workload) for _ in range(settings.repeats)
  ]
  figures = [
    measured(f'{preset}: {name}', _values(turns, f'{key}_seconds'), 's')
    for name, key in (
      ('build', 'build'),
      ('first initialize, beyond a second', 'initialize'),
      ('first round, beyond a second', 'next'),
    )
  ]
  goal = Goal(goal_seconds, is_at_least=False)
  name = f'{preset}: build and first calls'
  return [*figures, measured(name, _values(turns, 'seconds'), 's', goal)]


def _resident(settings, engine, workload, marks):
  """Returns the resident GiB after each of some numbers of rounds."""
  kind, options = _rounds(engine, workload)
  sizes, done = [], 0
  with MeasuredProcess(kind, settings.num_threads, **options) as process:
    for mark in marks:
      turn = process.turn(num_rounds=mark - done)
      sizes.append(turn['resident_bytes'] / _GIB)
      done = mark
      size = f'{sizes[-1]:.3f} GiB'
      say(f'{engine} {workload.preset}: {size} after {mark} rounds')
  return sizes


def _compare_plan(workload, planned, found):
  """Figures of turns of `Plan` and of rounds."""
  figures = []
  for what, unit, scale, planned_key, key in (
    ('time', 's', 1, 'round_seconds', 'seconds'),
    ('peak', 'GiB', _GIB, 'peak_bytes', 'peak_bytes'),
  ):
    expected = [turn[planned_key] / scale for turn in planned]
    values = [turn[key] / scale for turn in found]
    name = f'{workload.preset} {workload.algorithm}: {what}'
    differences = factor(statistics.median(expected), values)
    # Within 15 %, whichever is the larger one.
    goal = Goal(1.15, is_at_least=False)
    figures += [
      measured(f'{name}, planned', expected, unit),
      measured(f'{name}, measured', values, unit),
      measured(f'{name}, off by', differences, 'x', goal),
    ]
  return figures


def _rounds(engine, workload, **options):
  return 'Rounds', {'engine': engine, 'workload': workload} | options


def _values(turns, name):
  return [turn[name] for turn in turns]


def _rates(workload, turns):
  return [workload.num_tokens / turn['seconds'] for turn in turns]


def _require_equal_losses(turns, tolerance):
  """Raises RuntimeError unless all variants lost the same in every turn."""
  for losses in zip(
    *(_values(variant, 'loss') for variant in turns.values()), strict=True
  ):
    if not max(losses) - min(losses) <= tolerance * abs(min(losses)):
      found = dict(zip(turns, losses, strict=True))
      raise RuntimeError(
        f'The engines must compute the same, but their losses are {found}.'
      )

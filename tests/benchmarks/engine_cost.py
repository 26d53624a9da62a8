"""Parts of `make bench-engine`: building, and memory."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

from benchmarks.engine_figures import Figure, Goal, measured, ratio
from benchmarks.engine_processes import (
  MeasuredProcess,
  alternating,
  once,
)
from benchmarks.engine_settings import (
  MAX_STOCK_ROUNDS,
  OURS,
  STOCK,
  Settings,
  Workload,
  say,
)

_GIB = 2**30
# Two sizes of resident memory are equal if they differ by 2 % at the most.
_FLAT = Goal(1.02, is_at_least=False)


def build(settings: Settings) -> list[Figure]:
  """Seconds until `small` can run its first round."""
  return _build('build', settings, settings.workload.preset, 10)


def build_large(settings: Settings) -> list[Figure]:
  """The same of 350m; and 1.5b, for which nobody has the memory here."""
  figures = _build('build_large', settings, settings.large_preset, 30)
  preset = settings.largest_preset
  workload = _one_step(settings.workload, preset)
  turns = []
  for _ in range(settings.repeats):
    turns.append(once(settings, 'build', {'workload': workload}))
    say(f'build {preset}: {turns[-1]["seconds"]:.2f} s')
  return (
    figures
    + _compiled('build_large', preset, turns)
    + [_gib('build_large', f'{preset}: peak, nothing run', turns, 'peak_bytes')]
  )


def memory(settings: Settings) -> list[Figure]:
  """Whether resident memory stays as it is from round to round."""
  part = 'memory'
  tiny = Workload(
    preset='tiny',
    num_clients=1,
    num_local_steps=1,
    local_batch_size=2,
    sequence_length=16,
  )
  small = dataclasses.replace(settings.workload, num_local_steps=1)
  figures = []
  for workload, first, last in ((tiny, 20, 300), (small, 20, 60)):
    marks = settings.scaled(first), settings.scaled(last)
    name = f'{workload.preset}: after {marks[1]} rounds / after {marks[0]}'
    sizes = _resident(settings, OURS, workload, marks)
    figures += [
      ratio(part, name, sizes[1:], sizes[:1], _FLAT),
      measured(
        part,
        f'{workload.preset}: after {marks[1]} rounds',
        [sizes[1] / _GIB],
        'GiB',
      ),
    ]
  marks = tuple(range(1, 1 + MAX_STOCK_ROUNDS))
  sizes = _resident(settings, STOCK, small, marks)
  growth = [
    (after - before) / _GIB for before, after in itertools.pairwise(sizes)
  ]
  name = f'stock, {small.preset}'
  note = 'with its worker process'
  return figures + [
    measured(
      part,
      f'{name}: after {marks[-1]} rounds',
      [sizes[-1] / _GIB],
      'GiB',
      note=note,
    ),
    measured(part, f'{name}: growth with a round', growth, 'GiB', note=note),
  ]


def _build(part, settings, preset, goal_seconds):
  workload = _one_step(settings.workload, preset)
  turns = {'build': [], 'first_calls': []}
  for repeat in range(settings.repeats):
    for kind in alternating(list(turns), repeat):
      # Each in a new process: what is built once is built faster again.
      turns[kind].append(once(settings, kind, {'workload': workload}))
      say(f'{kind} {preset}: {turns[kind][-1]["seconds"]:.2f} s')

  def seconds(name, key, goal=None):
    values = [turn[key] for turn in turns['first_calls']]
    return measured(part, f'{preset}: {name}', values, 's', goal)

  return _compiled(part, preset, turns['build']) + [
    seconds('first initialize, beyond a second', 'initialize_seconds'),
    seconds('first round, beyond a second', 'next_seconds'),
    seconds(
      'build and first calls', 'seconds', Goal(goal_seconds, is_at_least=False)
    ),
    seconds('initialize, once compiled', 'draw_seconds'),
  ]


def _compiled(part, preset, turns):
  """Figures of `engine_build.Build`."""
  return [
    measured(part, f'{preset}: {name}', [turn[key] for turn in turns], 's')
    for name, key in (
      ('build', 'build_seconds'),
      ('compile initialize', 'compile_initialize_seconds'),
      ('compile next', 'compile_next_seconds'),
      ('build and compile', 'seconds'),
    )
  ]


def _one_step(workload: Workload, preset: str) -> Workload:
  return dataclasses.replace(
    workload, preset=preset, num_clients=1, num_local_steps=1
  )


def _resident(
  settings: Settings, engine: str, workload: Workload, marks: Sequence[int]
) -> list[int]:
  """Returns the resident bytes after each of some numbers of rounds."""
  options = {'engine': engine, 'workload': workload}
  sizes, done = [], 0
  with MeasuredProcess(
    'rounds', options, num_threads=settings.num_threads
  ) as process:
    for mark in marks:
      turn = process.turn(num_rounds=mark - done)
      sizes.append(turn['resident_bytes'])
      done = mark
      size = f'{sizes[-1] / _GIB:.3f} GiB'
      say(f'{engine} {workload.preset}: {size} after {mark} rounds')
  return sizes


def _gib(
  part: str,
  name: str,
  turns: Sequence[dict[str, Any]],
  key: str,
  goal: Goal | None = None,
) -> Figure:
  values = [turn[key] / _GIB for turn in turns]
  return measured(part, name, values, 'GiB', goal)

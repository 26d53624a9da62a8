"""Parts of `make bench-engine`: what `fedfish plan` says, beside what is so."""

import dataclasses
import statistics
import time
from collections.abc import Sequence

from benchmarks.engine_figures import Figure, Goal, measured
from benchmarks.engine_processes import MeasuredProcess, once, take_turns
from benchmarks.engine_settings import OURS, Settings, Workload, say

from tff_fedfish.config import load as config_loading
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.planning import plan as planning

_GIB = 2**30
# Within 15 %, whichever is the larger one.
_AGREES = Goal(1.15, is_at_least=False)


class Plan:
  """Plans a round, which times steps of smaller models on this machine."""

  def __init__(self, workload: dict):
    """Makes the config.

    Args:
      workload: The fields of a `Workload`.
    """
    self._config = train_config(Workload(**workload))

  def turn(self) -> dict:
    """Returns the planned `round_seconds` and `peak_bytes`; its `seconds`."""
    start = time.perf_counter()
    planned = planning.plan_round(self._config)
    return {
      'seconds': time.perf_counter() - start,
      'round_seconds': planned.time.round_seconds,
      'peak_bytes': planned.memory[0].peak_bytes,
    }


def plan(settings: Settings) -> list[Figure]:
  """Time and peak memory of a round of small, planned and measured."""
  part, workload = 'plan', settings.workload
  variants = {
    'planned': ('plan', {'workload': workload}),
    OURS: ('rounds', {'engine': OURS, 'workload': workload}),
  }
  turns = take_turns(settings, variants, repeats=settings.repeats)
  return _compare(part, workload, turns['planned'], turns[OURS])


def memory_large(settings: Settings) -> list[Figure]:
  """Peak memory of a round of FedFish with the large preset, and the plan's."""
  part = 'memory_large'
  workload = dataclasses.replace(
    settings.workload,
    preset=settings.large_preset,
    num_clients=2,
    num_local_steps=max(1, 16 // settings.workload.local_batch_size),
    algorithm='fed_fish',
  )
  with MeasuredProcess(
    'rounds',
    {'engine': OURS, 'workload': workload},
    num_threads=settings.num_threads,
  ) as process:
    # The first compiles.
    rounds = [process.turn(), process.turn()][1:]
  say(f'a round of {workload.preset}: {rounds[0]["seconds"]:.0f} s')
  planned = [once(settings, 'plan', {'workload': workload})]
  goal = Goal(14, is_at_least=False)
  name = f'{workload.preset}: peak of rounds of fed_fish'
  peak = measured(part, name, [rounds[0]['peak_bytes'] / _GIB], 'GiB', goal)
  return [peak, *_compare(part, workload, planned, rounds)]


def train_config(workload: Workload) -> TrainConfig:
  """Returns the demo's config with the sizes of a workload."""
  values = {
    'algorithm.name': workload.algorithm,
    'client_work.num_local_epochs': workload.num_local_epochs,
    'client_work.local_batch_size': workload.local_batch_size,
    'client_work.max_sequences_per_client': workload.local_batch_size
    * workload.num_local_steps,
    'model.preset': workload.preset,
    'model.compute_dtype': workload.compute_dtype,
    'data.sequence_length': workload.sequence_length,
    'cohorts.cohort_size': workload.num_clients,
  }
  if workload.algorithm == 'fed_fish':
    values['algorithm.fisher_estimator'] = workload.fisher_estimator
  return config_loading.load_config(
    'demo',
    [f'--config.{name}={value}' for name, value in values.items()],
  )


def factor(planned: float, found: Sequence[float]) -> list[float]:
  """Returns by what factor each value differs from the planned one, >= 1."""
  return [max(planned / value, value / planned) for value in found]


def _compare(part, workload, planned, rounds):
  """Figures of turns of `Plan` and of rounds."""
  figures = []
  for what, unit, scale, planned_key, key in (
    ('time', 's', 1, 'round_seconds', 'seconds'),
    ('peak', 'GiB', _GIB, 'peak_bytes', 'peak_bytes'),
  ):
    expected = [turn[planned_key] / scale for turn in planned]
    found = [turn[key] / scale for turn in rounds]
    name = f'{workload.preset} {workload.algorithm}: {what}'
    differences = factor(statistics.median(expected), found)
    figures += [
      measured(part, f'{name}, planned', expected, unit),
      measured(part, f'{name}, measured', found, unit),
      measured(part, f'{name}, off by', differences, 'x', _AGREES),
    ]
  return figures

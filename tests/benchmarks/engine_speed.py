"""Parts of `make bench-engine`: rounds of engines, FedFish, and workers."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from benchmarks.engine_figures import Figure, Goal, absent, measured, ratio
from benchmarks.engine_processes import take_turns
from benchmarks.engine_settings import (
  BFLOAT16,
  NO_BFLOAT16,
  OURS,
  PLAIN,
  RAY,
  STOCK,
  Settings,
  Workload,
  describe_machine,
)

# The same arithmetic in another order; bfloat16 has 8 bits.
_LOSS_TOLERANCE = {'float32': 1e-3, BFLOAT16: 2e-2}


def rounds(settings: Settings) -> list[Figure]:
  """Tokens/s of the plain loop, our engine and TFF's own, in float32."""
  part, workload = 'rounds', settings.workload
  goals = {'plain': Goal(0.95), 'stock': Goal(2.2), 'half': Goal(3)}
  return _compare_engines(part, settings, workload, goals, {})


def rounds_bfloat16(settings: Settings) -> list[Figure]:
  """The same in bfloat16, and how much faster that makes our engine."""
  part = 'rounds_bfloat16'
  if not settings.measures_bfloat16:
    return [absent(part, 'all', NO_BFLOAT16)]
  workload = dataclasses.replace(settings.workload, compute_dtype=BFLOAT16)
  goals = {'plain': Goal(0.95), 'stock': Goal(4), 'half': None}
  float32 = f'{OURS} float32'
  others = {float32: _rounds(OURS, settings.workload)}
  figures = _compare_engines(part, settings, workload, goals, others)
  return figures


def fisher(settings: Settings) -> list[Figure]:
  """How much longer a round of FedFish takes than one of FedAvg."""
  part, figures = 'fisher', []
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
    figures.append(measured(part, name, seconds['fed_avg'], 's/round'))
    for estimator, bound in estimator_to_bound.items():
      name = f'E={num_epochs}: fed_fish {estimator} / fed_avg, time'
      goal = Goal(bound, is_at_least=False)
      figures.append(
        ratio(part, name, seconds[estimator], seconds['fed_avg'], goal)
      )
  return figures


def workers(settings: Settings) -> list[Figure]:
  """Tokens/s of two worker processes, of one thread each, beside one."""
  part, workload = 'workers', settings.workload
  if settings.num_threads < 2:
    return [absent(part, 'all', 'two workers need --threads 2')]
  options = {'engine': RAY, 'workload': workload}
  variants = {
    f'{count} ray worker{"s" if count > 1 else ""}': (
      'rounds',
      options | {'num_workers': count},
    )
    for count in (1, 2)
  }
  turns = take_turns(settings, variants, repeats=settings.repeats)
  _require_equal_losses(turns, tolerance=0)
  one, two = (
    [workload.num_tokens / turn['seconds'] for turn in turns[name]]
    for name in variants
  )
  figures = [
    measured(part, name, rates, 'tokens/s')
    for name, rates in zip(variants, (one, two), strict=True)
  ]
  twice = [2 * rate for rate in one]
  name = 'two workers / twice one worker'
  return [*figures, ratio(part, name, two, twice, Goal(0.85))]


def _compare_engines(part, settings, workload, goals, others):
  """Figures of all engines, and of two of them with half the local steps.

  Args:
    part: The part.
    settings: The settings.
    workload: The round.
    goals: Of our engine's speed over 'plain', over 'stock', and over stock with
      'half' the local steps.
    others: Further variants that take turns with the first three: that of our
      engine in float32, or none.
  """
  dtype = workload.compute_dtype
  half = dataclasses.replace(
    workload, num_local_steps=max(1, workload.num_local_steps // 2)
  )
  engines = {name: _rounds(name, workload) for name in (PLAIN, OURS, STOCK)}
  repeats = settings.stock_repeats
  turns = take_turns(settings, engines | others, repeats=repeats)
  half_turns = take_turns(
    settings,
    {name: _rounds(name, half) for name in (OURS, STOCK)},
    repeats=repeats,
  )
  for compared in (
    {name: turns[name] for name in engines},
    half_turns,
  ):
    _require_equal_losses(compared, _LOSS_TOLERANCE[dtype])
  rates = {
    name: [workload.num_tokens / turn['seconds'] for turn in turns[name]]
    for name in turns
  }
  half_rates = {
    name: [half.num_tokens / turn['seconds'] for turn in half_turns[name]]
    for name in half_turns
  }
  figures = [
    measured(
      part, name if name in others else f'{name} {dtype}', values, 'tokens/s'
    )
    for name, values in rates.items()
  ]
  figures += [
    measured(part, f'{name} {dtype}, half the steps', values, 'tokens/s')
    for name, values in half_rates.items()
  ]
  figures += [
    ratio(
      part, f'ours / plain, {dtype}', rates[OURS], rates[PLAIN], goals['plain']
    ),
    ratio(
      part, f'ours / stock, {dtype}', rates[OURS], rates[STOCK], goals['stock']
    ),
    ratio(
      part,
      f'ours / stock, {dtype}, half the steps',
      half_rates[OURS],
      half_rates[STOCK],
      goals['half'],
    ),
  ]
  for name in others:
    has_amx = describe_machine()['amx_bf16']
    figures.append(
      ratio(
        part,
        f'ours {dtype} / {name}',
        rates[OURS],
        rates[name],
        Goal(1.5) if has_amx else None,
        '' if has_amx else 'the goal of 1.5 is for processors with AMX',
      )
    )
  return figures


def _rounds(engine: str, workload: Workload) -> tuple[str, dict[str, Any]]:
  return 'rounds', {'engine': engine, 'workload': workload}


def _values(turns: Sequence[dict[str, Any]], name: str) -> list[float]:
  return [turn[name] for turn in turns]


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

"""Parts of `make bench-engine`: local steps beside products of matrices."""

import dataclasses

from benchmarks.engine_figures import Figure, Goal, absent, measured, ratio
from benchmarks.engine_processes import take_turns
from benchmarks.engine_settings import (
  BFLOAT16,
  NO_BFLOAT16,
  Settings,
  Workload,
)

from tff_fedfish.planning import flops as planned_flops


def flops(settings: Settings) -> list[Figure]:
  """Share of the machine's rate of products that local steps reach."""
  return _flops('flops', settings, settings.workload, Goal(0.45))


def flops_large(settings: Settings) -> list[Figure]:
  """The same of the large preset, with two local steps a turn."""
  workload = dataclasses.replace(
    settings.workload, preset=settings.large_preset, num_local_steps=2
  )
  return _flops('flops_large', settings, workload, Goal(0.6))


def step_flops(workload: Workload) -> int:
  """Returns the operations of a local step's products, as they are computed."""
  config, num_rows = workload.transformer_config(), workload.local_batch_size
  return (
    planned_flops.forward(config, num_rows).total
    + planned_flops.backward(config, num_rows).total
  )


def _flops(part, settings, workload, bfloat16_goal):
  figures = []
  for dtype in ('float32', BFLOAT16):
    if dtype == BFLOAT16 and not settings.measures_bfloat16:
      figures.append(absent(part, BFLOAT16, NO_BFLOAT16))
      continue
    options = {'workload': dataclasses.replace(workload, compute_dtype=dtype)}
    variants = {
      'products': ('products', options),
      'local_steps': ('local_steps', options),
    }
    turns = take_turns(settings, variants, repeats=settings.repeats)
    square, model = (
      [turn['flops_per_second'][name] / 1e9 for turn in turns['products']]
      for name in ('square', 'model')
    )
    steps = [
      step_flops(workload) / turn['seconds'] / 1e9
      for turn in turns['local_steps']
    ]
    preset = f'{workload.preset} {dtype}'
    unit = 'GFLOP/s'
    figures += [
      measured(part, f'products of 1024^3, {dtype}', square, unit),
      measured(part, f'products of {preset}', model, unit),
      measured(part, f'local steps of {preset}', steps, unit),
      ratio(
        part,
        f'local steps of {preset} / 1024^3',
        steps,
        square,
        bfloat16_goal if dtype == BFLOAT16 else None,
      ),
      ratio(part, f'local steps of {preset} / its products', steps, model),
    ]
  return figures

"""Tables of a plan: human units beside exact numbers."""

import dataclasses

from tff_fedfish import printing
from tff_fedfish.planning.plan import RoundPlan


def print_plan(plan: RoundPlan) -> None:
  """Prints a plan to standard output."""
  steps = plan.client_steps
  title = f'Round of {plan.cohort_size or 1:,} clients, at most'
  if plan.cohort_size is None:
    title = 'Round per client, at most; the corpus says how many there are'
  rows = [
    ['weights', f'{plan.num_weights:,}', f'{plan.num_tensors} tensors'],
    ['tokens trained on', f'{plan.tokens_per_round:,}', ''],
    ['local steps of a client', f'{steps.num_local_steps:,}', ''],
    ['passes over its sequences', f'{steps.num_passes:,g}', ''],
  ]
  _print_rows(title, rows)
  for line in plan.phases:
    print(line)
  if plan.client_states is not None:
    print(f'Client states on disk: {plan.client_states}.')
  size = printing.format_bytes(plan.checkpoint_bytes)
  print(f'Checkpoints on disk: {size} each.')
  for process in plan.memory:
    parts = ', '.join(
      f'{part} {printing.format_bytes(size)}'
      for part, size in process.largest_parts.items()
    )
    peak = printing.format_bytes(process.peak_bytes)
    print(
      f'Peak memory of {process.name}: {peak} ({process.peak_bytes:,} bytes), '
      f'most of it {parts}.'
    )
  rows = _rows(plan, plan.traffic)
  # The last three are of worker processes.
  _print_rows(
    'Communication', rows if plan.traffic.num_broadcasts else rows[:4]
  )
  total = plan.flops.total
  rows = [
    [label, printing.format_flops(count), f'{count:,}', f'{count / total:.1%}']
    for label, _, count in _labelled(plan, plan.flops)
  ]
  _print_rows('Operations of a round', rows)
  if (time := plan.time) is None:
    return
  depths = ' and '.join(map(str, time.measured_layers))
  _print_rows(
    f'Time here: timed with {depths} layers, {time.num_threads} threads',
    _rows(plan, time),
  )
  seconds = max(time.round_seconds, 1e-9)
  print(
    'Without compiling, sums over clients, the server, reading data, '
    'evaluations and checkpoints. A round: '
    f'{total / seconds / 1e9:,.1f} GFLOP/s, '
    f'{plan.tokens_per_round / seconds:,.0f} tokens/s.'
  )


def _print_rows(title, rows):
  printing.print_table(title, [''] * len(rows[0]), rows)


def _rows(plan, costs):
  """Returns label, value in units and exact value of bytes and seconds."""
  return [
    [label, printing.format_bytes(value), f'{value:,} bytes']
    if name.endswith('bytes')
    else [label, printing.format_seconds(value), f'{value:.4g} s']
    for label, name, value in _labelled(plan, costs)
  ]


def _labelled(plan, costs):
  """Yields label, name and value of the fields that have a label."""
  for field in dataclasses.fields(costs):
    if labels := getattr(field.type, '__metadata__', ()):
      label = labels[0].format(**vars(plan) | vars(costs))
      yield label, field.name, getattr(costs, field.name)

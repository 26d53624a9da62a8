"""Tables of a plan: human units beside exact numbers."""

from collections.abc import Callable
from typing import Any

from tff_fedfish import printing
from tff_fedfish.planning.plan import RoundPlan


def print_plan(plan: RoundPlan) -> None:
  """Prints a plan to standard output."""
  steps, observed = plan.client_steps, ''
  if steps.num_observed_steps:
    observed = f'and {steps.num_observed_steps:,} squared in the last epoch'
  title = f'Round of {plan.cohort_size or 1:,} clients, at most'
  if plan.cohort_size is None:
    title = 'Round per client, at most; the corpus says how many there are'
  num_steps_after = f'{steps.num_steps_after_training:,}'
  rows = [
    ('weights', f'{plan.num_weights:,}', f'{plan.num_tensors} tensors'),
    ('tokens trained on', f'{plan.tokens_per_round:,}', ''),
    ('local steps of a client', f'{steps.num_local_steps:,}', ''),
    ('gradients after training', num_steps_after, observed),
  ]
  printing.print_table(title, [''] * 3, rows)
  if plan.counting is not None:
    print(f'Counting rows at the start: {plan.counting}.')
  for process in plan.memory:
    _print_memory(process)
  _print_traffic(plan)
  _print_flops(plan.flops)
  if plan.time is not None:
    _print_time(plan)


def _print_memory(process):
  moments = process.moments.values()
  rows = []
  for part in dict.fromkeys(part for parts in moments for part in parts):
    sizes = (parts.get(part) for parts in moments)
    rows.append([part, *(printing.format_bytes(s) if s else '' for s in sizes)])
  sums = [sum(parts.values()) for parts in moments]
  printing.print_table(
    f'Memory of {process.name}, in the moments that take most',
    ['', *process.moments],
    rows,
    sums=[
      ['in all', *map(printing.format_bytes, sums)],
      ['bytes', *(f'{total:,}' for total in sums)],
    ],
  )
  peak = process.peak_bytes
  print(
    f'Peak: {printing.format_bytes(peak)} ({peak:,} bytes), in the '
    f'{process.peak_moment}.'
  )


def _print_traffic(plan):
  traffic, rounds = plan.traffic, f'{plan.num_rounds:,} rounds'
  sizes = {
    'up, a round': traffic.round_uplink_bytes,
    'down, a round': traffic.round_downlink_bytes,
    f'up, {rounds}': traffic.run_uplink_bytes,
    f'down, {rounds}': traffic.run_downlink_bytes,
  }
  if traffic.num_broadcasts:
    to_workers = f'({traffic.num_broadcasts} machines at most)'
    from_workers = f'({traffic.num_partial_sums} partial sums)'
    sizes |= {
      f'to workers, a round {to_workers}': traffic.round_broadcast_bytes,
      f'from workers, a round {from_workers}': traffic.round_partial_sum_bytes,
    }
  rows = _in_units(sizes, printing.format_bytes, '{:,} bytes')
  printing.print_table('Communication', [''] * 3, rows)


def _print_flops(flops):
  counts = {
    'local steps, forward': flops.local_forward,
    'local steps, backward': flops.local_backward,
    'pass after training': flops.pass_after_training,
    'client optimizer': flops.client_optimizer,
    'deltas and sums': flops.client_sums,
    'server': flops.server,
    'in all': flops.total,
    '6 N D, for comparison': flops.usual_estimate,
  }
  rows = _in_units(counts, printing.format_flops, '{:,}')
  for row, count in zip(rows, counts.values(), strict=True):
    row.append(f'{count / flops.total:.1%}')
  printing.print_table('Operations of a round', [''] * 4, rows)


def _print_time(plan):
  time = plan.time
  seconds = {
    'one local step': time.local_step_seconds,
    'local steps, a round': time.local_seconds,
    'pass after training, a round': time.after_training_seconds,
    'deltas and sums, a round': time.client_sums_seconds,
    'server, a round': time.server_seconds,
    'a round': time.round_seconds,
    f'{plan.num_rounds:,} rounds': time.run_seconds,
  }
  depths = ' and '.join(map(str, time.measured_layers))
  printing.print_table(
    f'Time here: timed with {depths} layers, {time.num_threads} threads',
    [''] * 3,
    _in_units(seconds, printing.format_seconds, '{:.4g} s'),
  )
  round_seconds = max(time.round_seconds, 1e-9)
  print(
    'Without compiling, reading data, evaluations and checkpoints. A round: '
    f'{plan.flops.total / round_seconds / 1e9:,.1f} GFLOP/s, '
    f'{plan.tokens_per_round / round_seconds:,.0f} tokens/s.'
  )


def _in_units(
  values: dict[str, float], in_units: Callable[[Any], str], exactly: str
) -> list[list[str]]:
  """Returns rows of a name, its value in units, and its exact value."""
  return [
    [name, in_units(value), exactly.format(value)]
    for name, value in values.items()
  ]

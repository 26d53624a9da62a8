"""A plan as tables: human units beside exact numbers."""

from collections.abc import Iterable

from tff_fedfish.planning.plan import RoundPlan
from tff_fedfish.planning.units import (
  format_bytes,
  format_flops,
  format_seconds,
)


def print_plan(plan: RoundPlan) -> None:
  """Prints a plan to standard output.

  Args:
    plan: What to print.
  """
  steps = plan.client_steps
  title = f'Round of {plan.cohort_size or 1:,} clients, at most'
  if plan.cohort_size is None:
    title = 'Round per client, at most; the corpus says how many there are'
  _print_rows(
    title,
    [
      ('weights', f'{plan.num_weights:,}', f'{plan.num_tensors} tensors'),
      ('tokens trained on', f'{plan.tokens_per_round:,}', ''),
      ('local steps of a client', f'{steps.num_local_steps:,}', ''),
      (
        'gradients after training',
        f'{steps.num_steps_after_training:,}',
        f'and {steps.num_observed_steps:,} squared in the last epoch'
        if steps.num_observed_steps
        else '',
      ),
    ],
  )
  if plan.counting is not None:
    _print_line(f'Counting rows at the start: {plan.counting}.')
  for process in plan.memory:
    _print_memory(process)
  _print_traffic(plan)
  _print_flops(plan.flops)
  if plan.time is not None:
    _print_time(plan)


def _print_memory(process):
  table = _table('', *process.moments)
  parts = dict.fromkeys(
    part for moment in process.moments.values() for part in moment
  )
  for part in parts:
    table.add_row(
      part,
      *(
        format_bytes(moment[part]) if moment.get(part) else ''
        for moment in process.moments.values()
      ),
    )
  table.add_section()
  sums = [sum(moment.values()) for moment in process.moments.values()]
  table.add_row('in all', *map(format_bytes, sums))
  table.add_row('bytes', *(f'{total:,}' for total in sums))
  _print(f'Memory of {process.name}, in the moments that take most', table)
  _print_line(
    f'Peak: {format_bytes(process.peak_bytes)} ({process.peak_bytes:,} bytes), '
    f'in the {process.peak_moment}.'
  )


def _print_traffic(plan):
  traffic = plan.traffic
  rows = [
    ('up, a round', traffic.round_uplink_bytes),
    ('down, a round', traffic.round_downlink_bytes),
    (f'up, {plan.num_rounds:,} rounds', traffic.run_uplink_bytes),
    (f'down, {plan.num_rounds:,} rounds', traffic.run_downlink_bytes),
  ]
  if traffic.num_broadcasts:
    rows += [
      (
        f'to workers, a round ({traffic.num_broadcasts} machines at most)',
        traffic.round_broadcast_bytes,
      ),
      (
        f'from workers, a round ({traffic.num_partial_sums} partial sums)',
        traffic.round_partial_sum_bytes,
      ),
    ]
  _print_rows(
    'Communication',
    [(name, format_bytes(size), f'{size:,} bytes') for name, size in rows],
  )


def _print_flops(flops):
  total = flops.total
  _print_rows(
    'Operations of a round',
    [
      (name, format_flops(value), f'{value:,}', f'{value / total:.1%}')
      for name, value in (
        ('local steps, forward', flops.local_forward),
        ('local steps, backward', flops.local_backward),
        ('pass after training', flops.pass_after_training),
        ('client optimizer', flops.client_optimizer),
        ('deltas and sums', flops.client_sums),
        ('server', flops.server),
        ('in all', total),
        ('6 N D, for comparison', flops.usual_estimate),
      )
    ],
  )


def _print_time(plan):
  time = plan.time
  depths = ' and '.join(map(str, time.measured_layers))
  _print_rows(
    f'Time here: timed with {depths} layers, {time.num_threads} threads',
    [
      (name, format_seconds(value), f'{value:.4g} s')
      for name, value in (
        ('one local step', time.local_step_seconds),
        ('local steps, a round', time.local_seconds),
        ('pass after training, a round', time.after_training_seconds),
        ('deltas and sums, a round', time.client_sums_seconds),
        ('server, a round', time.server_seconds),
        ('a round', time.round_seconds),
        (f'{plan.num_rounds:,} rounds', time.run_seconds),
      )
    ],
  )
  _print_line(
    'Without compiling, reading data, evaluations and checkpoints. A round: '
    f'{plan.flops.total / max(time.round_seconds, 1e-9) / 1e9:,.1f} GFLOP/s, '
    f'{plan.tokens_per_round / max(time.round_seconds, 1e-9):,.0f} tokens/s.'
  )


def _print_rows(title: str, rows: Iterable[tuple[str, ...]]) -> None:
  rows = list(rows)
  table = _table(*[''] * len(rows[0]))
  table.show_header = False
  for row in rows:
    table.add_row(*row)
  _print(title, table)


def _table(first: str, *columns: str):
  import rich.box
  import rich.table

  table = rich.table.Table(box=rich.box.SIMPLE_HEAD)
  table.add_column(first)
  for column in columns:
    table.add_column(column, justify='right')
  return table


def _print(title, table):
  console = _console()
  console.print(title, style='bold')
  console.print(table)


def _print_line(text):
  _console().print(text, soft_wrap=True)


def _console():
  import rich.console

  console = rich.console.Console(markup=False, highlight=False)
  if not console.is_terminal:
    # A file or a pipe has no width to which numbers would have to be cut.
    console.width = 200
  return console

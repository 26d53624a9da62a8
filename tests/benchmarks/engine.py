"""`make bench-engine`: what rounds cost, each figure beside its goal.

Prints one table. Every variant that is measured runs in a process of its own,
and the turns of variants that are compared alternate; a figure is the median of
its turns, between the smallest and the largest. One round is, unless said: the
model `small`, 4 clients x 8 local steps of 4 sequences of 128 tokens, client
SGD, server Adam, synthetic tokens, 2 threads. Parts:

  rounds           plain loop, our engine, TFF's own ("stock"): tokens/s
  rounds_bfloat16  the same in bfloat16
  profile          where the time of a round goes, by operation
  fisher           rounds of FedFish beside rounds of FedAvg
  build            seconds until the first round of small
  build_large      the same of 350m; 1.5b built and compiled
  input            sequences/s from a grouped corpus, beside training
  flops            local steps of small beside the products of this machine
  flops_large      the same of 350m
  batched          steps of several small clients as one step
  memory           resident memory from round to round
  memory_large     peak memory of a round of FedFish with 350m, beside its plan
  plan             time and memory of small beside what `fedfish plan` says
  workers          two worker processes of one thread beside one
  bf16_loss        does bfloat16 train as well? (long)

A figure short of its goal fails nothing. Only a part that cannot be measured,
or engines that do not compute the same, make it fail.
"""

import argparse
import dataclasses
import json
import pathlib
import signal
import sys
import tempfile

from benchmarks import (
  engine_batched,
  engine_corpus,
  engine_cost,
  engine_figures,
  engine_flops,
  engine_plan,
  engine_profile,
  engine_speed,
)
from benchmarks.engine_settings import Settings, Workload, describe_machine, say

PARTS = {
  'rounds': engine_speed.rounds,
  'rounds_bfloat16': engine_speed.rounds_bfloat16,
  'profile': engine_profile.profile,
  'fisher': engine_speed.fisher,
  'build': engine_cost.build,
  'build_large': engine_cost.build_large,
  'input': engine_corpus.input_pipeline,
  'flops': engine_flops.flops,
  'flops_large': engine_flops.flops_large,
  'batched': engine_batched.batched,
  'memory': engine_cost.memory,
  'memory_large': engine_plan.memory_large,
  'plan': engine_plan.plan,
  'workers': engine_speed.workers,
  'bf16_loss': engine_corpus.bf16_loss,
}
SELECTIONS = {
  'default': tuple(name for name in PARTS if name != 'bf16_loss'),
  'quick': ('rounds', 'build', 'input'),
  'all': tuple(PARTS),
}


def main(arguments: list[str] | None = None) -> int:
  """Runs the parts asked for, prints the table, and returns the exit code."""
  parsed = _parse_arguments(arguments)
  machine = describe_machine()
  has_bfloat16 = bool(machine['avx512_bf16'] or machine['amx_bf16'])
  print(
    ', '.join(f'{name} {value}' for name, value in machine.items()), flush=True
  )
  figures, problems = [], []
  with tempfile.TemporaryDirectory(dir=parsed.scratch_dir) as scratch:
    settings = Settings(
      workload=Workload(
        preset=parsed.preset,
        num_clients=parsed.num_clients,
        num_local_steps=parsed.num_local_steps,
        local_batch_size=parsed.local_batch_size,
        sequence_length=parsed.sequence_length,
      ),
      large_preset=parsed.large_preset,
      largest_preset=parsed.largest_preset,
      num_threads=parsed.threads,
      repeats=parsed.repeats,
      scale=parsed.scale,
      measures_bfloat16=has_bfloat16 or parsed.bfloat16,
      scratch=pathlib.Path(scratch),
    )
    for part in parsed.parts:
      say(f'{part}:')
      try:
        figures += PARTS[part](settings)
      # What else is asked for is measured all the same.
      except Exception as error:  # pylint: disable=broad-exception-caught
        problems.append(f'{part}: {error}')
      if parsed.output:
        # After every part: a run of hours may be stopped.
        _write(parsed, settings, machine, figures, problems)
  print('\n' + engine_figures.format_table(figures))
  print('\n' + engine_figures.format_summary(figures))
  for problem in problems:
    print(f'\nFAILED: {problem}')
  return 1 if problems else 0


def parse_parts(text: str) -> tuple[str, ...]:
  """Returns the parts of a list of names with commas, each once.

  Raises:
    argparse.ArgumentTypeError: If a name is neither a part nor a selection.
  """
  parts = []
  for name in text.split(','):
    if name not in PARTS and name not in SELECTIONS:
      raise argparse.ArgumentTypeError(
        f'{name!r} is no part; there are {", ".join([*SELECTIONS, *PARTS])}.'
      )
    parts += SELECTIONS.get(name, (name,))
  return tuple(dict.fromkeys(parts))


def _write(parsed, settings, machine, figures, problems) -> None:
  values = dataclasses.asdict(settings) | {'parts': parsed.parts}
  del values['scratch']
  contents = engine_figures.to_json_dict(figures, machine, values, problems)
  parsed.output.write_text(json.dumps(contents, indent=2) + '\n')


def _parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  workload = Workload()
  parser.add_argument(
    '--parts',
    type=parse_parts,
    default=SELECTIONS['default'],
    help='names with commas; default: all but bf16_loss; quick: rounds, build '
    'and input (minutes); all: all',
  )
  parser.add_argument(
    '--output', type=pathlib.Path, help='a JSON file with all figures'
  )
  parser.add_argument(
    '--repeats',
    type=int,
    default=3,
    help="turns that count (default: %(default)s); 4 at most where TFF's own "
    'context, which grows with every round, takes part',
  )
  parser.add_argument('--threads', type=int, default=2)
  parser.add_argument(
    '--scale',
    type=float,
    default=1.0,
    help='number of rounds of memory and bf16_loss, times this',
  )
  parser.add_argument(
    '--bfloat16',
    action='store_true',
    help='measure bfloat16 even on a processor without instructions for it',
  )
  parser.add_argument('--preset', default=workload.preset)
  parser.add_argument('--large_preset', default='350m')
  parser.add_argument('--largest_preset', default='1.5b')
  for name in (
    'num_clients',
    'num_local_steps',
    'local_batch_size',
    'sequence_length',
  ):
    default = getattr(workload, name)
    parser.add_argument(f'--{name}', type=int, default=default)
  parser.add_argument(
    '--scratch_dir', help='where to write (default: the temporary directory)'
  )
  return parser.parse_args(arguments)


if __name__ == '__main__':
  # Ends what is being measured, too.
  signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
  sys.exit(main())

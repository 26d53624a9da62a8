"""`make bench-engine`: what rounds cost, each figure beside its goal.

Prints one table. Every variant that is measured runs in a process of its own,
and the turns of variants that are compared alternate; a figure is the median of
its turns, between the smallest and the largest. One round is, unless said: the
model `small`, 4 clients x 8 local steps of 4 sequences of 128 tokens, client
SGD, server Adam, synthetic tokens, 2 threads. Parts:

  rounds           plain loop, our engine, TFF's own ("stock"): tokens/s
  rounds_bfloat16  the same in bfloat16
  fisher           rounds of FedFish beside rounds of FedAvg
  workers          two worker processes of one thread beside one
  build            seconds until the first round of small
  memory           resident memory from round to round
  plan             time and memory of small beside what `fedfish plan` says
  build_large      seconds until the first round of 350m
  memory_large     peak memory of a round of FedFish with 350m, beside its plan

A figure short of its goal fails nothing. Only a part that cannot be measured,
or engines that do not compute the same, make it fail.
"""

import argparse
import dataclasses
import json
import pathlib
import signal
import sys

from benchmarks import engine_figures, engine_parts
from benchmarks.engine_settings import Settings, Workload, describe_machine
from benchmarks.shared import say

PARTS = {
  'rounds': engine_parts.rounds,
  'rounds_bfloat16': engine_parts.rounds_bfloat16,
  'fisher': engine_parts.fisher,
  'workers': engine_parts.workers,
  'build': engine_parts.build,
  'memory': engine_parts.memory,
  'plan': engine_parts.plan,
  'build_large': engine_parts.build_large,
  'memory_large': engine_parts.memory_large,
}
SELECTIONS = {
  'default': tuple(name for name in PARTS if not name.endswith('_large')),
  'quick': ('rounds', 'build'),
  'all': tuple(PARTS),
}


def main(arguments: list[str] | None = None) -> int:
  """Runs the parts asked for, prints the table, and returns the exit code."""
  parsed = _parse_arguments(arguments)
  machine = describe_machine()
  print(
    ', '.join(f'{name} {value}' for name, value in machine.items()), flush=True
  )
  settings = Settings(
    workload=Workload(preset=parsed.preset),
    large_preset=parsed.large_preset,
    repeats=parsed.repeats,
    measures_bfloat16=parsed.bfloat16
    or bool(machine['avx512_bf16'] or machine['amx_bf16']),
  )
  contents = {
    'machine': machine,
    'settings': dataclasses.asdict(settings) | {'parts': parsed.parts},
    'problems': [],
  }
  figures, problems = [], contents['problems']
  for part in parsed.parts:
    say(f'{part}:')
    try:
      found = PARTS[part](settings)
      figures += [dataclasses.replace(figure, part=part) for figure in found]
    # What else is asked for is measured all the same.
    except Exception as error:  # pylint: disable=broad-exception-caught
      problems.append(f'{part}: {error}')
    if parsed.output:
      # After every part: a run of hours may be stopped.
      contents['figures'] = [figure.to_json_dict() for figure in figures]
      parsed.output.write_text(json.dumps(contents, indent=2) + '\n')
  engine_figures.print_figures(figures)
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


def _parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument(
    '--parts',
    type=parse_parts,
    default=SELECTIONS['default'],
    help='names with commas; default: all but the large ones; quick: rounds '
    'and build (minutes); all: all',
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
  parser.add_argument(
    '--bfloat16',
    action='store_true',
    help='measure bfloat16 even on a processor without instructions for it',
  )
  parser.add_argument('--preset', default=Workload().preset)
  parser.add_argument('--large_preset', default='350m')
  return parser.parse_args(arguments)


if __name__ == '__main__':
  # Ends what is being measured, too.
  signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
  sys.exit(main())

r"""Let a checkpoint's model write text.

Examples:
  fedfish generate --checkpoint runs/mine --prompt 'This library'
  fedfish generate --checkpoint runs/mine --temperature 0 --num_tokens 20
  fedfish generate --checkpoint runs/mine --num_samples 3 \
      --personalize_on corpora/sotu --client 'Abraham Lincoln'

With --personalize_on the model is then fine-tuned on the documents of a client,
and what it writes before and after is shown side by side. The same seed gives
the same text.
"""

import argparse
import dataclasses
import unicodedata

from tff_fedfish.cli.export import add_client_id

SUMMARY = 'let a model write text, before and after personalization'


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments of `fedfish generate`."""
  parser.add_argument(
    '--checkpoint',
    required=True,
    metavar='DIR',
    help='a checkpoint, or a run directory (its last)',
  )
  parser.add_argument(
    '--prompt',
    default='',
    metavar='TEXT',
    help='how every sample begins (default: a new document)',
  )
  parser.add_argument(
    '--num_tokens',
    type=int,
    default=64,
    metavar='N',
    help='tokens after the prompt, at most (default: %(default)s)',
  )
  parser.add_argument(
    '--temperature',
    type=float,
    default=1.0,
    metavar='T',
    help='below 1: likelier tokens; 0: always the likeliest (default: '
    '%(default)s)',
  )
  parser.add_argument(
    '--top_k',
    type=int,
    metavar='K',
    help='choose from the K likeliest tokens only (default: all)',
  )
  parser.add_argument(
    '--seed', type=int, default=0, metavar='S', help='default: %(default)s'
  )
  parser.add_argument(
    '--num_samples',
    type=int,
    default=1,
    metavar='M',
    help='default: %(default)s',
  )
  parser.add_argument(
    '--personalize_on',
    dest='corpus',
    metavar='DIR',
    help='a grouped corpus with the client to fine-tune on',
  )
  parser.add_argument(
    '--client', metavar='ID', help='its id, as `fedfish inspect` shows it'
  )
  parser.add_argument(
    '--personalization_epochs', type=int, metavar='N', help='default: 4'
  )
  parser.add_argument(
    '--learning_rate',
    type=float,
    metavar='X',
    help="of personalization (default: the run's client learning rate)",
  )
  add_client_id(parser)


def run(arguments: argparse.Namespace) -> int:
  """Prints the samples."""
  from tff_fedfish.exporting.generate import GenerationOptions, generate

  names = [field.name for field in dataclasses.fields(GenerationOptions)]
  samples = generate(
    arguments.checkpoint,
    GenerationOptions(**{name: getattr(arguments, name) for name in names}),
  )
  if samples.after is not None:
    _print_side_by_side(samples)
    return 0
  for i, text in enumerate(samples.before, start=1):
    if len(samples.before) > 1:
      print(f'Sample {i} of {len(samples.before)}:')
    print(_printable(text))
  return 0


def _print_side_by_side(samples) -> None:
  import rich.box
  from rich.console import Console
  from rich.table import Table

  from tff_fedfish.printing import count

  table = Table(box=rich.box.SIMPLE_HEAD, show_lines=True, expand=True)
  # Equal widths: the texts are to be compared.
  for heading in (
    f'Before (round {samples.round_num})',
    f'After ({count(samples.num_sequences, "sequence")} of {samples.client})',
  ):
    table.add_column(heading, ratio=1)
  for before, after in zip(samples.before, samples.after, strict=True):
    table.add_row(_printable(before), _printable(after))
  # What a model writes is no markup, and `:x:` no picture.
  Console(markup=False, emoji=False, highlight=False).print(table)


def _printable(text: str) -> str:
  """Returns text without what a terminal would act upon, but for line ends."""
  return ''.join(
    '\N{REPLACEMENT CHARACTER}'
    if unicodedata.category(character) == 'Cc' and character != '\n'
    else character
    for character in text
  )

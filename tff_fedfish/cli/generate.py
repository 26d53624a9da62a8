r"""Let a checkpoint's model write text.

Examples:
  fedfish generate --checkpoint runs/mine --prompt 'This library'
  fedfish generate --checkpoint runs/mine --temperature 0 --num_tokens 20
  fedfish generate --checkpoint runs/mine --num_samples 3 \
      --personalize_on runs/demo/corpora/sotu_by_president \
      --client 'Abraham Lincoln'

With --personalize_on the model is also fine-tuned on the documents of a client,
and its texts before and after are shown side by side. The same seed gives the
same text.
"""

import argparse
import unicodedata

from tff_fedfish.cli.options import add_options, read_options

SUMMARY = 'let a model write text, before and after personalization'


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments of `fedfish generate`."""
  from tff_fedfish.exporting.options import GenerationOptions

  parser.add_argument(
    '--checkpoint',
    required=True,
    metavar='DIR',
    help='a checkpoint, or a run directory (its last good one)',
  )
  add_options(parser, GenerationOptions)


def run(arguments: argparse.Namespace) -> int:
  """Prints the samples."""
  from tff_fedfish.exporting.generate import generate
  from tff_fedfish.exporting.options import GenerationOptions

  options = read_options(arguments, GenerationOptions)
  samples = generate(arguments.checkpoint, options)
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
  """Replaces control characters, except line ends."""
  return ''.join(
    '\N{REPLACEMENT CHARACTER}'
    if unicodedata.category(character) == 'Cc' and character != '\n'
    else character
    for character in text
  )

r"""Let a checkpoint's model write text.

Examples:
  fedfish generate --checkpoint runs/mine --prompt 'This library'
  fedfish generate --checkpoint runs/mine --temperature 0 --num_tokens 20
  fedfish generate --checkpoint runs/mine --num_samples 3 \
      --personalize_on runs/demo/corpora/sotu_by_president \
      --client 'Abraham Lincoln'

With --personalize_on the model is also fine-tuned on the documents of a client,
and each text is shown before and after. The same seed gives the same text.
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
    help='a checkpoint, a run directory (its last good one), or RUN@best, '
    'its round with the lowest loss',
  )
  add_options(parser, GenerationOptions)


def run(arguments: argparse.Namespace) -> int:
  """Prints the samples."""
  from tff_fedfish.exporting.generate import generate
  from tff_fedfish.exporting.options import GenerationOptions
  from tff_fedfish.printing import count

  options = read_options(arguments, GenerationOptions)
  samples = generate(arguments.checkpoint, options)
  num_samples = len(samples.before)
  for i, before in enumerate(samples.before):
    if num_samples > 1:
      print(f'Sample {i + 1} of {num_samples}:')
    if samples.after is None:
      print(_printable(before))
      continue
    sequences = count(samples.num_sequences, 'sequence')
    print(f'Before (round {samples.round_num}):\n{_printable(before)}')
    print(f'After ({sequences} of {samples.client}):')
    print(_printable(samples.after[i]))
  return 0


def _printable(text: str) -> str:
  """Replaces control characters, except line ends."""
  return ''.join(
    '\N{REPLACEMENT CHARACTER}'
    if unicodedata.category(character) == 'Cc' and character != '\n'
    else character
    for character in text
  )

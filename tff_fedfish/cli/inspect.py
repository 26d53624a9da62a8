"""Show what a grouped corpus holds, and what was dropped when it was made.

Example:
  fedfish inspect corpora/c4
"""

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
  from tff_fedfish.data.manifest import Manifest

SUMMARY = 'show what a grouped corpus holds'

_PERCENTILES = (0, 10, 25, 50, 75, 90, 99, 100)


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments of `fedfish inspect`."""
  parser.add_argument(
    'directory', metavar='DIR', help='a directory that `fedfish group` wrote'
  )
  parser.add_argument(
    '--num_largest',
    type=int,
    default=10,
    metavar='N',
    help='largest groups to list (default: %(default)s)',
  )


def run(arguments: argparse.Namespace) -> int:
  """Prints counts, sizes and drops of a grouped corpus."""
  from tff_fedfish.data.grouped_corpus import GroupedCorpus

  corpus = GroupedCorpus(arguments.directory)
  print_counts(arguments.directory, corpus.manifest)
  _print_percentiles(corpus)
  _print_largest(corpus, arguments.num_largest)
  return 0


def print_counts(directory: str, manifest: 'Manifest') -> None:
  """Prints how many records came in, came out, and were dropped why."""
  counts = manifest.counts
  num_bytes = sum(shard.num_bytes for shard in manifest.shards)
  title = f'{directory}: {manifest.corpus} by {manifest.key}'
  table = _table()
  table.add_column('')
  table.add_column('count', justify='right')
  table.add_column('first at')
  table.add_row('records read', f'{counts.records_in:,}')
  for reason, count in counts.drops.items():
    first = manifest.drop_examples[reason]
    table.add_row(
      f'dropped: {reason}', f'{count:,}', f'{first.file}, line {first.line}'
    )
  table.add_row('examples stored', f'{counts.records_out:,}')
  table.add_row('groups', f'{counts.num_groups:,}')
  if counts.num_records != counts.num_groups:
    table.add_row('group records', f'{counts.num_records:,}')
  table.add_row('shards', f'{len(manifest.shards):,}')
  table.add_row('bytes', f'{num_bytes:,}')
  table.add_row('features', '', ', '.join(manifest.feature_names))
  damaged = [file for file in manifest.inputs if file.damage]
  _print_table(title, table)
  for file in damaged:
    _print(f'{file.name}: {file.damage}, {file.records_in - 1:,} lines read.')


def _print_percentiles(corpus) -> None:
  import numpy as np

  table = _table()
  table.add_column('')
  for percentile in _PERCENTILES:
    table.add_column(f'p{percentile}', justify='right')
  table.add_column('mean', justify='right')
  for name in ('num_examples', 'num_words', 'num_bytes'):
    sizes = corpus.sizes(name)
    # Sizes that occur, not values between them.
    found = np.percentile(sizes, _PERCENTILES, method='inverted_cdf')
    table.add_row(
      name.removeprefix('num_'),
      *(f'{int(size):,}' for size in found),
      f'{sizes.mean():,.1f}',
    )
  _print_table('Size of a group, by percentile', table)


def _print_largest(corpus, num_largest: int) -> None:
  import numpy as np

  sizes = {
    name: corpus.sizes(name)
    for name in ('num_examples', 'num_words', 'num_bytes')
  }
  # Stable, so that equal groups stay in the order of their ids.
  order = np.argsort(-sizes['num_words'], kind='stable')[: max(num_largest, 0)]
  table = _table()
  table.add_column('group')
  for name in ('examples', 'words', 'share of words', 'bytes'):
    table.add_column(name, justify='right')
  total = sizes['num_words'].sum()
  for position in order:
    table.add_row(
      corpus.client_ids[position].decode('utf-8', 'backslashreplace'),
      f'{sizes["num_examples"][position]:,}',
      f'{sizes["num_words"][position]:,}',
      f'{sizes["num_words"][position] / max(total, 1):.1%}',
      f'{sizes["num_bytes"][position]:,}',
    )
  if len(order):
    _print_table('Largest groups, by words', table)


def _table():
  import rich.box
  import rich.table

  return rich.table.Table(box=rich.box.SIMPLE_HEAD)


def _print_table(title: str, table) -> None:
  # Not the table's own title: that would be folded to the table's width.
  _print(title, style='bold')
  _print(table)


def _print(what, style: str | None = None) -> None:
  import rich.console

  # Group ids and file names are data, not markup.
  console = rich.console.Console(markup=False, highlight=False)
  if not console.is_terminal:
    # A file or a pipe has no width to which numbers would have to be cut.
    console.width = 200
  console.print(what, style=style, soft_wrap=isinstance(what, str))

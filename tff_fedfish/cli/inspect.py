"""Show what a grouped corpus holds, and what was dropped when it was made.

Examples:
  fedfish inspect corpora/c4
  fedfish inspect corpora/c4 --plots plots/c4
  fedfish inspect corpora/c4 --vocabulary runs/mine/vocabulary
"""

import argparse
import pathlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tff_fedfish.errors import UserError

if TYPE_CHECKING:
  import numpy as np

  from tff_fedfish.data.grouped_corpus import GroupedCorpus
  from tff_fedfish.data.manifest import DropExample, InputFile, Manifest
  from tff_fedfish.data.tokenizers import Tokenizer

SUMMARY = 'show what a grouped corpus holds'

_MAX_EXCERPT_CHARACTERS = 60


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
  parser.add_argument(
    '--plots',
    metavar='DIR',
    help='directory to write plots of the group sizes to (PNG and SVG), with '
    'their captions (group_sizes.txt), their numbers (*_figure.csv) and '
    'percentiles (group_sizes.csv); earlier ones there are replaced',
  )
  parser.add_argument(
    '--vocabulary',
    metavar='PATH',
    help='also tokenize every text, and show how many tokens are unknown to '
    'this vocabulary',
  )


def run(arguments: argparse.Namespace) -> int:
  """Prints counts, sizes and drops of a grouped corpus."""
  from tff_fedfish.data.grouped_corpus import GroupedCorpus
  from tff_fedfish.reporting.group_sizes import MEASURES

  corpus = GroupedCorpus(arguments.directory)
  plots = None
  if arguments.plots is not None:
    plots = _make_directory(arguments.plots, corpus.directory)
  tokenizer = None
  if arguments.vocabulary is not None:
    from tff_fedfish.data.tokenizers import load_tokenizer
    from tff_fedfish.progress import Stages

    with Stages()('reading the vocabulary'):
      tokenizer = load_tokenizer(arguments.vocabulary)
  print_counts(arguments.directory, corpus.manifest)
  if tokenizer is not None:
    _print_unknown_tokens(corpus, tokenizer)
  sizes = {measure: corpus.sizes(measure) for measure in MEASURES}
  _print_percentiles(sizes)
  _print_shares(sizes)
  _print_largest(sizes, corpus.client_ids, arguments.num_largest)
  if plots is not None:
    _write_plots(sizes, corpus.manifest, plots)
    _print(f'Plots: {arguments.plots}')
  return 0


def print_counts(directory: str, manifest: 'Manifest') -> None:
  """Prints how many records came in, came out, and were dropped why."""
  counts = manifest.counts
  num_bytes = sum(shard.num_bytes for shard in manifest.shards)
  title = _one_line(f'{manifest.corpus} by {manifest.key}')
  title = f'{directory}: {title}'
  table = _table()
  table.add_column('')
  table.add_column('count', justify='right')
  table.add_column('first at')
  if counts.drops:
    table.add_column('its beginning', no_wrap=True)
  table.add_row('records read', f'{counts.records_in:,}')
  for reason, count in counts.drops.items():
    table.add_row(
      f'dropped: {_one_line(reason)}{_hint(reason, manifest)}',
      f'{count:,}',
      *_show_example(manifest.drop_examples.get(reason)),
    )
  table.add_row('examples stored', f'{counts.records_out:,}')
  table.add_row('groups', f'{counts.num_groups:,}')
  if counts.num_records != counts.num_groups:
    table.add_row('group records', f'{counts.num_records:,}')
  table.add_row('shards', f'{len(manifest.shards):,}')
  table.add_row('bytes', f'{num_bytes:,}')
  table.add_row('features', '', _one_line(', '.join(manifest.feature_names)))
  _print_table(title, table)
  if split := manifest.split:
    names = _one_line(f'{split.name} of {", ".join(split.names)}')
    _print(f'Split: {names} ({_one_line(split.rule)}).')
  for file in manifest.inputs:
    if file.damage:
      _print(_show_damage(file))


def _hint(reason: str, manifest: 'Manifest') -> str:
  # Posts have their authors elsewhere.
  is_field = manifest.source != 'stack_overflow'
  return ' (no field "author")' * (is_field and reason == 'missing_author')


def _show_example(example: 'DropExample | None') -> tuple[str, str]:
  """Returns where the first record of its kind was, and its beginning."""
  if example is None:
    return '', ''
  excerpt = _one_line(example.excerpt[: _MAX_EXCERPT_CHARACTERS + 1])
  if len(excerpt) > _MAX_EXCERPT_CHARACTERS:
    excerpt = f'{excerpt[: _MAX_EXCERPT_CHARACTERS - 1]}…'
  if example.group is not None:
    return _one_line(f'group {example.group}'), excerpt
  return _one_line(f'{example.file}, record {example.line}'), excerpt


def _show_damage(file: 'InputFile') -> str:
  # The damage itself counts as a record.
  line = (
    f'{_one_line(f"{file.name}: {file.damage}")}, {file.records_in - 1:,} '
    'records read.'
  )
  if file.damage_byte is not None:
    line += f' It could be used up to byte {file.damage_byte:,}.'
  return line


def _print_unknown_tokens(
  corpus: 'GroupedCorpus', tokenizer: 'Tokenizer'
) -> None:
  from tff_fedfish.data import unknown_tokens
  from tff_fedfish.progress import Progress

  with Progress('count tokens', len(corpus.client_ids), unit='client') as bar:
    fraction = unknown_tokens.fraction_of_corpus(corpus, tokenizer, bar.advance)
  _print(unknown_tokens.describe(fraction))


def _print_percentiles(sizes: 'Mapping[str, np.ndarray]') -> None:
  from tff_fedfish.reporting.group_sizes import PERCENTILES, percentiles

  table = _table()
  table.add_column('')
  for percentile in PERCENTILES:
    table.add_column(f'p{percentile}', justify='right')
  table.add_column('mean', justify='right')
  for measure, values in sizes.items():
    table.add_row(
      measure.removeprefix('num_'),
      *(f'{size:,}' for size in percentiles(values, PERCENTILES)),
      f'{values.mean():,.1f}',
    )
  _print_table('Size of a group, by percentile', table)


def _print_shares(sizes: 'Mapping[str, np.ndarray]') -> None:
  from tff_fedfish.reporting.group_sizes import top_shares

  columns = [top_shares(values) for values in sizes.values()]
  if not columns[0]:
    return
  table = _table()
  for heading in ('largest', 'groups', *sizes):
    table.add_column(heading.removeprefix('num_'), justify='right')
  for tops in zip(*columns, strict=True):
    table.add_row(
      tops[0].label,
      f'{tops[0].num_groups:,}',
      *(f'{top.share:.1%}' for top in tops),
    )
  _print_table('What the largest groups hold of the whole', table)


def _print_largest(
  sizes: 'Mapping[str, np.ndarray]',
  client_ids: Sequence[bytes],
  num_largest: int,
) -> None:
  import numpy as np

  from tff_fedfish.data.client_id_text import client_id_to_text

  # Stable, so that equal groups stay in the order of their ids.
  order = np.argsort(-sizes['num_words'], kind='stable')[: max(num_largest, 0)]
  table = _table()
  table.add_column('group')
  for name in ('examples', 'words', 'share of words', 'bytes'):
    table.add_column(name, justify='right')
  total = sizes['num_words'].sum()
  for position in order:
    table.add_row(
      client_id_to_text(client_ids[position]),
      f'{sizes["num_examples"][position]:,}',
      f'{sizes["num_words"][position]:,}',
      f'{sizes["num_words"][position] / max(total, 1):.1%}',
      f'{sizes["num_bytes"][position]:,}',
    )
  if len(order):
    _print_table('Largest groups, by words', table)


def _make_directory(name: str, corpus: pathlib.Path) -> pathlib.Path:
  directory = pathlib.Path(name)
  if directory.resolve().is_relative_to(corpus.resolve()):
    raise UserError(
      f'`--plots` must be outside of the corpus, but {name!r} is '
      f'{str(corpus)!r} or inside it. Name another directory.'
    )
  if directory.exists() and not directory.is_dir():
    raise UserError(
      f'`--plots` must be a directory, but {name!r} is a file. Name another '
      'path.'
    )
  try:
    directory.mkdir(parents=True, exist_ok=True)
  except OSError as error:
    raise UserError(
      f'`--plots` must be writable, but {name!r} is not ({error.strerror}). '
      'Name another directory, or change its permissions.'
    ) from error
  return directory


def _write_plots(
  sizes: 'Mapping[str, np.ndarray]',
  manifest: 'Manifest',
  directory: pathlib.Path,
) -> None:
  # matplotlib takes half a second.
  from tff_fedfish.files import write_atomically
  from tff_fedfish.reporting.group_size_plots import group_size_figures
  from tff_fedfish.reporting.group_sizes import percentile_table

  num_groups = manifest.counts.num_groups
  figures = group_size_figures(
    f'{manifest.corpus} by {manifest.key}'
    + (f', {manifest.split.name}' if manifest.split else '')
    + f': {num_groups:,} group{"s" * (num_groups != 1)}',
    {name: sizes[name] for name in ('num_examples', 'num_words')},
  )
  texts = {'group_sizes.csv': percentile_table(sizes)}
  texts['group_sizes.txt'] = '\n'.join(
    f'{figure.name}: {figure.title}\n{figure.caption}\n' for figure in figures
  )
  for figure in figures:
    texts[f'{figure.name}.svg'] = f'{figure.svg}\n'
    # Not group_sizes.csv: that name is taken by the percentiles.
    texts[f'{figure.name}_figure.csv'] = figure.csv
    with write_atomically(directory / f'{figure.name}.png', 'wb') as file:
      file.write(figure.png)
  for name, text in texts.items():
    with write_atomically(directory / name) as file:
      file.write(text)


def _one_line(text: str) -> str:
  """Returns text of others without what a terminal would act upon."""
  from tff_fedfish.data.client_id_text import client_id_to_text

  return client_id_to_text(text.encode('utf-8', 'replace'))


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

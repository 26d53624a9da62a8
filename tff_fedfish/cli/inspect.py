"""Show what a grouped corpus holds, and what was dropped when it was made.

Examples:
  fedfish inspect corpora/debian
  fedfish inspect corpora/debian --plots plots/debian
  fedfish inspect corpora/debian --vocabulary corpora/debian_vocabulary
"""

import argparse
import pathlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tff_fedfish import printing
from tff_fedfish.errors import UserError

if TYPE_CHECKING:
  import numpy as np

  from tff_fedfish.data.manifest import DropExample, Manifest

SUMMARY = 'show what a grouped corpus holds'

_MAX_EXCERPT_CHARACTERS = 60
_MAX_USELESS = 20


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
  from tff_fedfish.cli.group_sizes import MEASURES
  from tff_fedfish.data.grouped_corpus import GroupedCorpus

  corpus = GroupedCorpus(arguments.directory)
  plots = tokenizer = None
  if arguments.plots is not None:
    plots = _make_directory(arguments.plots)
  if arguments.vocabulary is not None:
    from tff_fedfish import corpora
    from tff_fedfish.data.tokenizers import load_tokenizer
    from tff_fedfish.progress import stage

    with stage('importing TensorFlow'):
      tokenizer = load_tokenizer(corpora.vocabulary_path(arguments.vocabulary))
  print_counts(arguments.directory, corpus.manifest)
  if tokenizer is not None:
    from tff_fedfish.data import unknown_tokens
    from tff_fedfish.progress import Progress

    num_clients = len(corpus.client_ids)
    with Progress('count tokens', num_clients, unit='client') as bar:
      fraction = unknown_tokens.fraction_of_corpus(
        corpus, tokenizer, bar.advance
      )
    print(unknown_tokens.describe(fraction))
  sizes = {measure: corpus.sizes(measure) for measure in MEASURES}
  _print_sizes(sizes)
  _print_largest(sizes, corpus.client_ids, arguments.num_largest)
  if plots is not None:
    _write_plots(sizes, corpus.manifest, plots)
    print(f'Plots: {arguments.plots}')
  return 0


def print_counts(directory: str, manifest: 'Manifest') -> None:
  """Prints how many records came in, came out, and were dropped why."""
  counts = manifest.counts
  rows = [('records read', f'{counts.records_in:,}')]
  for reason, num_dropped in counts.drops.items():
    label = f'dropped: {_one_line(reason)}'
    # Posts have their authors elsewhere.
    if reason == 'missing_author' and manifest.source != 'stack_overflow':
      label += ' (no field "author")'
    example = _show_example(manifest.drop_examples.get(reason))
    rows.append((label, f'{num_dropped:,}', *example))
  rows.append(('examples stored', f'{counts.records_out:,}'))
  rows.append(('groups', f'{counts.num_groups:,}'))
  if counts.num_mixed_time_groups:
    label = 'groups with times of several kinds'
    rows.append((label, f'{counts.num_mixed_time_groups:,}'))
  if counts.num_records != counts.num_groups:
    rows.append(('group records', f'{counts.num_records:,}'))
  num_bytes = sum(shard.num_bytes for shard in manifest.shards)
  rows.append(('shards', f'{len(manifest.shards):,}'))
  rows.append(('bytes', f'{num_bytes:,}'))
  rows.append(('features', '', _one_line(', '.join(manifest.feature_names))))
  printing.print_table(
    f'{directory}: {_one_line(f"{manifest.corpus} by {manifest.key}")}',
    ['', 'count', *(['first at', 'its beginning'] if counts.drops else [''])],
    rows,
    text_columns=(0, 2, 3),
    whole_columns=(3,),
  )
  if split := manifest.split:
    names = _one_line(f'{split.name} of {", ".join(split.names)}')
    print(f'Split: {names} ({_one_line(split.rule)}).')
  for file in manifest.inputs:
    if file.damage:
      # The damage itself counts as a record.
      line = (
        f'{_one_line(f"{file.name}: {file.damage}")}, {file.records_in - 1:,} '
        'records read.'
      )
      if file.damage_byte is not None:
        line += f' It could be used up to byte {file.damage_byte:,}.'
      print(line)
  useless = [file for file in manifest.inputs if file.is_useless]
  for file in useless[:_MAX_USELESS]:
    records = printing.count(file.records_in, 'record')
    print(f'{_one_line(file.name)}: warning: none of {records} could be used.')
  if (more := len(useless) - _MAX_USELESS) > 0:
    print(f'So with {more:,} more files: see `inputs` in manifest.json.')


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


def _print_sizes(sizes: 'Mapping[str, np.ndarray]') -> None:
  """Prints percentiles, and what the largest groups hold of the whole."""
  from tff_fedfish.cli.group_sizes import (
    PERCENTILES,
    percentiles,
    top_shares,
  )

  names = [measure.removeprefix('num_') for measure in sizes]
  printing.print_table(
    'Size of a group, by percentile (words: separated by white space)',
    ['', *(f'p{percentile}' for percentile in PERCENTILES), 'mean'],
    [
      [
        name,
        *(f'{size:,}' for size in percentiles(values, PERCENTILES)),
        f'{values.mean():,.1f}',
      ]
      for name, values in zip(names, sizes.values(), strict=True)
    ],
  )
  shares = [*zip(*map(top_shares, sizes.values()), strict=True)]
  if shares:
    printing.print_table(
      'What the largest groups hold of the whole',
      ['largest', 'groups', *names],
      [
        [
          tops[0].label,
          f'{tops[0].num_groups:,}',
          *(f'{top.share:.1%}' for top in tops),
        ]
        for tops in shares
      ],
      text_columns=(),
    )


def _print_largest(
  sizes: 'Mapping[str, np.ndarray]',
  client_ids: Sequence[bytes],
  num_largest: int,
) -> None:
  import numpy as np

  from tff_fedfish.data.client_ids import client_id_to_text

  words = sizes['num_words']
  # Stable, so that equal groups stay in the order of their ids.
  order = np.argsort(-words, kind='stable')[: max(num_largest, 0)]
  if len(order):
    printing.print_table(
      'Largest groups, by words',
      ['group', 'examples', 'words', 'share of words', 'bytes'],
      [
        [
          client_id_to_text(client_ids[position]),
          f'{sizes["num_examples"][position]:,}',
          f'{words[position]:,}',
          f'{words[position] / max(words.sum(), 1):.1%}',
          f'{sizes["num_bytes"][position]:,}',
        ]
        for position in order
      ],
    )


def _make_directory(name: str) -> pathlib.Path:
  directory = pathlib.Path(name)
  try:
    directory.mkdir(parents=True, exist_ok=True)
  except OSError as error:
    raise UserError(
      f'`--plots` must be a directory to write to, but {name!r} is none '
      f'({error.strerror}). Name another one, or change its permissions.'
    ) from error
  return directory


def _write_plots(
  sizes: 'Mapping[str, np.ndarray]',
  manifest: 'Manifest',
  directory: pathlib.Path,
) -> None:
  from tff_fedfish.cli.group_sizes import group_size_plots, percentile_table
  from tff_fedfish.files import write_atomically

  plots = group_size_plots(
    f'{manifest.corpus} by {manifest.key}'
    + (f', {manifest.split.name}' if manifest.split else '')
    + f': {printing.count(manifest.counts.num_groups, "group")}',
    {name: sizes[name] for name in ('num_examples', 'num_words')},
  )
  captions = [f'{plot.name}: {plot.title}\n{plot.caption}\n' for plot in plots]
  contents = {
    'group_sizes.csv': percentile_table(sizes),
    'group_sizes.txt': '\n'.join(captions),
  }
  for plot in plots:
    contents[f'{plot.name}.svg'] = f'{plot.svg}\n'
    # Not group_sizes.csv: that name is taken by the percentiles.
    contents[f'{plot.name}_figure.csv'] = plot.csv
    contents[f'{plot.name}.png'] = plot.file('png')
  for name, content in contents.items():
    is_text = isinstance(content, str)
    with write_atomically(directory / name, 'w' if is_text else 'wb') as file:
      file.write(content)


def _one_line(text: str) -> str:
  """Returns text of others without what a terminal would act upon."""
  from tff_fedfish.data.client_ids import client_id_to_text

  return client_id_to_text(text.encode('utf-8', 'replace'))

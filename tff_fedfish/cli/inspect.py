"""Show what a grouped corpus holds, and what was dropped when it was made.

Examples:
  fedfish inspect corpora/debian
  fedfish inspect corpora/debian --plot debian.png
  fedfish inspect corpora/debian --vocabulary corpora/debian_vocabulary
"""

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tff_fedfish import printing
from tff_fedfish.errors import UserError
from tff_fedfish.files import write_atomically

if TYPE_CHECKING:
  import numpy as np

  from tff_fedfish.data.grouped_corpus import GroupedCorpus
  from tff_fedfish.data.manifest import DropExample, Manifest

SUMMARY = 'show what a grouped corpus holds'

_MAX_EXCERPT_CHARACTERS = 60
_MAX_USELESS = 20
_NUM_LARGEST = 10
# Of the example of a document.
_MAX_TEXT_CHARACTERS = 400
# Counts of a group; the columns of the index.
_MEASURES = ('num_examples', 'num_words', 'num_bytes')
_PERCENTILES = (0, 10, 25, 50, 75, 90, 99, 100)


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments of `fedfish inspect`."""
  parser.add_argument(
    'directory', metavar='DIR', help='a directory that `fedfish group` wrote'
  )
  parser.add_argument(
    '--plot',
    metavar='FILE',
    help='PNG file to draw how many groups are how large',
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

  corpus = GroupedCorpus(arguments.directory)
  sizes = {measure: corpus.sizes(measure) for measure in _MEASURES}
  if arguments.plot is not None:
    _write_plot(sizes, corpus.manifest, arguments.plot)
  tokenizer = None
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
  _print_sizes(sizes)
  _print_largest(sizes, corpus.client_ids)
  _print_example(corpus, sizes['num_words'])
  if arguments.plot is not None:
    print(f'Plot: {arguments.plot}')
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
    if reason == 'small_group' and counts.num_small_groups:
      label += f' ({printing.count(counts.num_small_groups, "group")})'
    example = _show_example(manifest.drop_examples.get(reason))
    rows.append((label, f'{num_dropped:,}', *example))
  rows.append(('examples stored', f'{counts.records_out:,}'))
  rows.append(('groups', f'{counts.num_groups:,}'))
  if counts.num_mixed_time_groups:
    label = 'groups with times of several kinds'
    rows.append((label, f'{counts.num_mixed_time_groups:,}'))
  if counts.times_not_read:
    rows.append(('times that are not read', f'{counts.times_not_read:,}'))
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
  )
  if split := manifest.split:
    names = _one_line(f'{split.name} of {", ".join(split.names)}')
    print(f'Split: {names} ({_one_line(split.rule)}).')
  for file in manifest.inputs:
    if file.damage:
      # The damage itself counts as a record.
      read = f'{file.records_in - 1:,} records read.'
      if file.damage_byte is not None:
        read += f' It could be used up to byte {file.damage_byte:,}.'
      print(f'{_one_line(f"{file.name}: {file.damage}")}, {read}')
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
  """Prints percentiles of the sizes of groups."""
  import numpy as np

  num_groups = len(sizes['num_words'])
  # Percentiles that occur as sizes, not values between two of them.
  ranks = [max(-(-p * num_groups // 100), 1) - 1 for p in _PERCENTILES]
  rows = []
  for measure, values in sizes.items():
    numbers = [f'{size:,}' for size in np.sort(values)[ranks]]
    mean = f'{values.mean():,.1f}'
    rows.append([measure.removeprefix('num_'), *numbers, mean])
  printing.print_table(
    'Size of a group, by percentile (words: separated by white space)',
    ['', *(f'p{percentile}' for percentile in _PERCENTILES), 'mean'],
    rows,
  )


def _print_largest(
  sizes: 'Mapping[str, np.ndarray]', client_ids: Sequence[bytes]
) -> None:
  import numpy as np

  from tff_fedfish.data.client_ids import client_id_to_text

  words = sizes['num_words']
  # Stable, so that equal groups stay in the order of their ids.
  order = np.argsort(-words, kind='stable')[:_NUM_LARGEST]
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


def _print_example(corpus: 'GroupedCorpus', words: 'np.ndarray') -> None:
  """Prints the first document of the group of the median size."""
  import numpy as np

  from tff_fedfish.data.client_ids import client_id_to_text

  median = np.argsort(words, kind='stable')[(len(words) - 1) // 2]
  client_id = corpus.client_ids[median]
  examples = corpus.examples(client_id)
  times = [example.get('timestamp', b'').decode() for example in examples]
  span = ' to '.join(dict.fromkeys(filter(None, (times[0], times[-1]))))
  print(
    f'Example, from a group of median size: {client_id_to_text(client_id)}, '
    f'{printing.count(len(examples), "example")}'
    + (f', {_one_line(span)}' if span else '')
  )
  text = examples[0].get('text', b'').decode('utf-8', 'replace')
  print(f'  {_one_line(" ".join(text.split())[:_MAX_TEXT_CHARACTERS])}')


def _write_plot(
  sizes: 'Mapping[str, np.ndarray]', manifest: 'Manifest', path: str
) -> None:
  """Draws how many groups are how large; a panel for examples and words."""
  # matplotlib and pandas take half a second.
  import numpy as np
  import pandas as pd

  from tff_fedfish.reporting.plots import plot

  points = []
  for measure in ('num_examples', 'num_words'):
    noun = measure.removeprefix('num_')
    panel = f'{noun} per group: 1, 2 to 3, 4 to 7, ...'
    exponents = np.frexp(sizes[measure][sizes[measure] > 0])[1] - 1
    for k, number in enumerate(np.bincount(exponents)):
      points += [(panel, 2**k, number)] * bool(number)
  picture = plot(
    pd.DataFrame(points, columns=['panel', 'x', 'y']),
    name='group_sizes',
    title='',
    caption='',
    kind='line',
    x='',
    y=f'Groups of {manifest.corpus} by {manifest.key}',
    panels='x',
    log_x=True,
    log_y=True,
    places=0,
  )
  try:
    with write_atomically(path, 'wb') as file:
      file.write(picture.file('png'))
  except OSError as error:
    raise UserError(
      f'`--plot` must be a file to write, but {path!r} is none '
      f'({error.strerror}). Name another one, or change its permissions.'
    ) from error


def _one_line(text: str) -> str:
  """Returns text of others without what a terminal would act upon."""
  from tff_fedfish.data.client_ids import client_id_to_text

  return client_id_to_text(text.encode('utf-8', 'replace'))

"""Makes large grouped corpora without contents, to be opened.

Sizes of groups have a heavy tail, as those of C4 by host have.
"""

import pathlib
from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from group_records import encode_group_record, write_record

from tff_fedfish.data import records
from tff_fedfish.data.corpus_index import INDEX_NAME, INDEX_SCHEMA
from tff_fedfish.data.grouped_corpus import GroupedCorpus
from tff_fedfish.data.manifest import MANIFEST_NAME, Counts, Manifest, Shard

FEATURE_NAMES = ('text', 'timestamp', 'url')
_ROWS_AT_ONCE = 1 << 20
_NUM_DIGITS = 8


def write_index_only(directory: pathlib.Path, num_groups: int) -> None:
  """Writes a corpus that can be opened; its one shard is a file of holes.

  Args:
    directory: Where to write; is made.
    num_groups: How many groups, each with an id of 20 bytes.
  """
  directory.mkdir(parents=True)
  generator = np.random.default_rng(0)
  offset = num_examples = 0
  with pq.ParquetWriter(directory / INDEX_NAME, INDEX_SCHEMA) as writer:
    for start in range(0, num_groups, _ROWS_AT_ONCE):
      numbers = np.arange(start, min(start + _ROWS_AT_ONCE, num_groups))
      rows = _rows(numbers, _documents(generator, len(numbers)), offset)
      offset = int(rows['offset'][-1] + _frames(rows['num_bytes'][-1:])[0])
      num_examples += int(rows['num_examples'].sum())
      writer.write_table(pa.table(rows, schema=INDEX_SCHEMA))
  shard = Shard(
    name='groups-00000-of-00001.tfrecord',
    sha256='0' * 64,
    num_bytes=offset,
    num_records=num_groups,
  )
  with (directory / shard.name).open('wb') as file:
    file.truncate(offset)
  _write_manifest(directory, shard, num_examples)


def fill_records(corpus: GroupedCorpus, client_ids: Iterable[bytes]) -> None:
  """Writes texts of some clients where `write_index_only` left holes.

  Args:
    corpus: What it wrote.
    client_ids: The clients that are to be read.
  """
  encode = records.example_encoder(FEATURE_NAMES)
  offsets, num_examples = corpus.locations.offsets, corpus.sizes('num_examples')
  path = corpus.directory / corpus.manifest.shards[0].name
  with path.open('r+b') as file:
    for client_id in client_ids:
      # Short enough for the 1400 bytes of an example.
      example = encode(
        [b'words ' * 200, b'2019-04-25T12:57:54Z', b'https://' + client_id]
      )
      # A group is a row.
      position = corpus.client_ids.position(client_id)
      examples = [example] * num_examples[position]
      file.seek(offsets[position])
      write_record(file, encode_group_record(client_id, examples))


def _documents(generator: np.random.Generator, num_groups: int) -> np.ndarray:
  """Returns how many documents each group has: 1 or more, 5 in the mean."""
  return 1 + np.minimum(generator.pareto(1.25, num_groups), 2000).astype(int)


def _rows(
  numbers: np.ndarray, num_examples: np.ndarray, offset: int
) -> dict[str, pa.Array | np.ndarray]:
  num_rows = len(numbers)
  num_bytes = num_examples * 1400
  ends = offset + np.cumsum(_frames(num_bytes))
  return {
    'group_id': _ids(numbers),
    'part': np.zeros(num_rows, np.int32),
    'shard': np.zeros(num_rows, np.int32),
    'offset': ends - _frames(num_bytes),
    'num_examples': num_examples,
    'num_bytes': num_bytes,
    'num_words': num_examples * 210,
  }


def _ids(numbers: np.ndarray) -> pa.BinaryArray:
  """Returns ids such as `site-00000042.test.x`, without a loop over them."""
  digits = numbers[:, None] // 10 ** np.arange(_NUM_DIGITS)[::-1] % 10
  template = np.frombuffer(b'site-%s.test.x' % (b'0' * _NUM_DIGITS), np.uint8)
  ids = np.tile(template, (len(numbers), 1))
  ids[:, 5 : 5 + _NUM_DIGITS] += digits.astype(np.uint8)
  limits = np.arange(len(numbers) + 1, dtype=np.int32) * len(template)
  return pa.BinaryArray.from_buffers(
    pa.binary(), len(numbers), [None, pa.py_buffer(limits), pa.py_buffer(ids)]
  )


def _frames(num_bytes: np.ndarray) -> np.ndarray:
  return num_bytes + records.frame_size(0)


def _write_manifest(
  directory: pathlib.Path, shard: Shard, num_examples: int
) -> None:
  num_groups = shard.num_records
  manifest = Manifest(
    corpus='c4',
    key='host',
    feature_names=FEATURE_NAMES,
    counts=Counts(
      records_in=num_examples,
      records_out=num_examples,
      num_groups=num_groups,
      num_records=num_groups,
      drops={},
    ),
    shards=(shard,),
    options={},
    num_input_files=0,
    inputs=(),
    drop_examples={},
  )
  (directory / MANIFEST_NAME).write_bytes(manifest.to_bytes())

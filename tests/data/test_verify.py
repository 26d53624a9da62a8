"""`verify_corpus` finds every change of a corpus, in one line."""

import hashlib
import json
import shutil
import subprocess
import sys

import hypothesis
import hypothesis.strategies as st
import pytest
from damaged_corpora import (
  edit_manifest,
  error_of,
  index_rows,
  rewrite_first_shard,
  rows_of_shard,
  shard_path,
  write_index,
)
from group_records import encode_example, write_record
from grouping_jobs import group_lines

from tff_fedfish.data import records
from tff_fedfish.data.manifest import read_manifest
from tff_fedfish.data.verify import Checked, verify_corpus
from tff_fedfish.errors import UserError


def test_counts(whole):
  sizes = []
  checked = verify_corpus(whole, sizes.append)
  num_bytes = sum(path.stat().st_size for path in whole.glob('*.tfrecord'))
  # Words: 3 + 1, 1 + 81 + 2, 2, 1, 1 + 1; records: c.org has two more.
  assert checked == Checked(
    num_shards=2,
    num_groups=5,
    num_records=7,
    num_examples=9,
    num_words=93,
    num_bytes=num_bytes,
  )
  assert (len(sizes), sum(sizes)) == (7, num_bytes)


def test_empty_shards(tmp_path):
  lines = [{'text': 'a', 'url': 'http://a/'}]
  checked = verify_corpus(group_lines(tmp_path, lines, num_shards=4))
  assert (checked.num_shards, checked.num_records) == (4, 1)


@hypothesis.settings(max_examples=40)
@hypothesis.given(st.data())
def test_any_changed_byte(whole, tmp_path_factory, data):
  corpus = tmp_path_factory.mktemp('changed') / 'corpus'
  shutil.copytree(whole, corpus)
  path = data.draw(st.sampled_from(sorted(corpus.iterdir())))
  content = bytearray(path.read_bytes())
  byte = data.draw(st.integers(0, len(content) - 1))
  content[byte] ^= data.draw(st.integers(1, 255))
  path.write_bytes(content)
  try:
    assert verify_corpus(corpus) == verify_corpus(whole)
    # Only the layout of the manifest may change.
    assert path.name == 'manifest.json'
    assert json.loads(content) == json.loads((whole / path.name).read_bytes())
  except UserError as error:
    assert '\n' not in str(error)
    assert path.name in str(error)
    if path.suffix == '.tfrecord':
      number = int(path.name.split('-')[1])
      offsets = [row['offset'] for row in rows_of_shard(whole, number)]
      offset = max(offset for offset in offsets if offset <= byte)
      assert f'the one at byte {offset} is damaged: its ' in str(error)
  shutil.rmtree(corpus)


def test_it_needs_no_tensorflow(whole):
  code = (
    'import sys, tff_fedfish.data.images.load\n'
    'assert not {"apache_beam", "h5py"} & {*sys.modules}\n'
    'from tff_fedfish.cli.main import main\n'
    'assert main(["verify", sys.argv[1]]) == 0\n'
    'assert "tensorflow" not in sys.modules'
  )
  subprocess.run([sys.executable, '-c', code, str(whole)], check=True)


class TestShards:
  """Whole frames that are not those that were written."""

  def test_swapped_records(self, corpus):
    payloads = self._payloads(corpus)
    payloads[0], payloads[-1] = payloads[-1], payloads[0]
    self._write(corpus, payloads)
    first, last = (rows_of_shard(corpus, 0)[i] for i in (0, -1))
    message = error_of(corpus)
    assert "index.parquet' must have the row (group_id, part, shard," in message
    assert f' num_words) ({last["group_id"]!r}, 0, 0, 0,' in message
    assert f'but has ({first["group_id"]!r}, 0, 0, 0,' in message

  def test_row_without_a_record(self, corpus):
    last = rows_of_shard(corpus, 1)[-1]
    more = last | {'group_id': b'\xff', 'offset': last['offset'] + 1}
    write_index(corpus, [*index_rows(corpus), more])
    num_records = len(rows_of_shard(corpus, 1))
    edit_manifest(
      corpus, lambda m: m['shards'][1].update(num_records=num_records)
    )
    assert " num_words) None, but has (b'\\xff', 0, 1," in error_of(corpus)

  def test_other_bytes_of_equal_meaning(self, corpus):
    # The same group, its fields in another order: only the hash tells.
    payloads = self._payloads(corpus)
    message = records.messages().SequenceExample.FromString(payloads[0])
    context, lists = (
      type(message)(**{name: getattr(message, name)}).SerializeToString(
        deterministic=True
      )
      for name in ('context', 'feature_lists')
    )
    assert context + lists == payloads[0]
    self._write(corpus, [lists + context, *payloads[1:]])
    sha256 = read_manifest(corpus).shards[0].sha256
    found = hashlib.sha256(shard_path(corpus, 0).read_bytes()).hexdigest()
    assert error_of(corpus) == (
      f"'{shard_path(corpus, 0)}' must have the SHA-256 {sha256}, but has "
      f'{found}. Copy the directory again, or run `fedfish group` again.'
    )

  @pytest.mark.parametrize(
    ('example', 'problem'),
    [
      (b'\xff', 'not a tf.train.Example'),
      (encode_example({'text': b'a', 'url': b'b'}), 'it has text, url'),
      (
        encode_example({'text': b'\xff', 'url': b'', 'timestamp': b''}),
        "'utf-8' codec",
      ),
    ],
  )
  def test_example(self, corpus, example, problem):
    def change(old):
      for row, record in old:
        yield row, record._replace(examples=[example])

    rewrite_first_shard(corpus, change)
    assert problem in error_of(corpus)

  def _payloads(self, corpus):
    path = shard_path(corpus, 0)
    with path.open('rb') as file:
      return [payload for _, payload in records.iterate_records(file, path)]

  def _write(self, corpus, payloads):
    with shard_path(corpus, 0).open('wb') as file:
      for payload in payloads:
        write_record(file, payload)


class TestIndex:
  """An index whose hash fits, as the manifest has none or it was replaced."""

  @pytest.mark.parametrize(
    'column', ['offset', 'shard', 'num_examples', 'num_bytes', 'num_words']
  )
  @pytest.mark.parametrize('row', [0, 3])
  def test_number(self, corpus, column, row):
    rows = index_rows(corpus)
    old = rows[row][column]
    rows[row][column] = 1 - old if column == 'shard' else old + 1
    write_index(corpus, rows)
    assert 'index.parquet' in error_of(corpus)

  def test_group_id(self, corpus):
    rows = index_rows(corpus)
    rows[0]['group_id'] = b'A'
    write_index(corpus, rows)
    assert "but has (b'A', 0, 0, 0, " in error_of(corpus)

  def test_order(self, corpus):
    rows = index_rows(corpus)
    rows[0], rows[-1] = rows[-1], rows[0]
    write_index(corpus, rows)
    assert 'must be sorted by group id, but is not. Copy' in error_of(corpus)


class TestManifest:
  """Manifests without a hash, as earlier versions wrote them."""

  @pytest.mark.parametrize(
    ('change', 'words'),
    [
      # Ten lines were read, one of which was no JSON.
      (('counts', 'records_in', 11), 'must have the records_in 10, but has 11'),
      (('counts', 'num_groups', 6), 'must have the num_groups 5, but has 6'),
      (('counts', 'num_records', 8), 'must have the num_records 7, but has 8'),
      (('shards', 1, 'sha256', 'f' * 64), 'must have the SHA-256 ffff'),
      (('shards', 1, 'num_records', 9), 'must hold the index.parquet of its'),
      (('fingerprint', '0' * 64), "manifest.json' must have the fingerprint"),
      (('feature_names', 1, 'title'), 'have examples of text, title, url'),
    ],
  )
  def test_wrong_value(self, corpus, change, words):
    *parents, name, value = change

    def edit(manifest):
      for parent in parents:
        manifest = manifest[parent]
      manifest[name] = value

    edit_manifest(corpus, edit)
    assert words in error_of(corpus)

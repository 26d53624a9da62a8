"""Every kind of damage is found, and named where it is."""

import hashlib
import shutil
import subprocess
import sys

import hypothesis
import hypothesis.strategies as st
import pyarrow.parquet as pq
import pytest
from damaged_corpora import (
  edit_manifest,
  error_of,
  rows_of_shard,
  shard_path,
)

from pipelines.job import run_group_job
from pipelines.options import GroupJob
from tff_fedfish.data import records
from tff_fedfish.data.corpus_index import fingerprint_of_index
from tff_fedfish.data.manifest import read_manifest
from tff_fedfish.data.verify import Checked, verify_corpus
from tff_fedfish.errors import UserError


class TestWhole:
  def test_counts(self, whole):
    sizes = []
    checked = verify_corpus(whole, on_bytes=sizes.append)
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

  def test_empty_shards(self, whole, tmp_path):
    corpus = tmp_path / 'one'
    raw = tmp_path / 'raw.json'
    raw.write_text('{"text": "a", "url": "http://a/"}')
    job = GroupJob(
      source_name='c4',
      paths=(str(raw),),
      key='host',
      num_shards=4,
      max_record_bytes=100,
    )
    run_group_job(job, corpus)
    assert verify_corpus(corpus).num_shards == 4
    assert verify_corpus(corpus).num_records == 1

  def test_real_corpus(self, shared_data, tmp_path):
    sample = shared_data('c4_en_sample_a')
    job = GroupJob(
      source_name='c4',
      paths=(str(sample / 'c4-train.00000-of-00001.json.gz'),),
      key='host',
      num_shards=3,
      max_record_bytes=4000,
    )
    run_group_job(job, tmp_path / 'out')
    checked = verify_corpus(tmp_path / 'out')
    assert (checked.num_examples, checked.num_groups) == (1000, 998)

  def test_works_without_tensorflow(self, whole):
    program = (
      'import sys; from tff_fedfish.data.verify import verify_corpus; '
      f'verify_corpus({str(whole)!r}); '
      'print([m for m in ("tensorflow", "apache_beam") if m in sys.modules])'
    )
    done = subprocess.run(
      [sys.executable, '-c', program], capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ('[]\n', '')


class TestFingerprint:
  def test_of_the_index(self, corpus):
    found = fingerprint_of_index(pq.read_table(corpus / 'index.parquet'))
    edit_manifest(corpus, lambda m: m.update(fingerprint=found))
    assert verify_corpus(corpus).num_groups == 5

  def test_of_another_corpus(self, corpus):
    found = fingerprint_of_index(pq.read_table(corpus / 'index.parquet'))
    edit_manifest(corpus, lambda m: m.update(fingerprint='0' * 64))
    assert error_of(corpus) == (
      f"'{corpus / 'manifest.json'}' must say fingerprint {found}, which is "
      f"that of index.parquet, but says '{'0' * 64}'. Copy the directory "
      'again, or run `fedfish group` again.'
    )


class TestDamagedIndex:
  """Some bytes, such as Parquet's statistics, show in no row."""

  @pytest.fixture(scope='class')
  def own(self, whole, tmp_path_factory):
    return shutil.copytree(whole, tmp_path_factory.mktemp('own') / 'corpus')

  @pytest.fixture(scope='class')
  def without_hash(self, whole, tmp_path_factory):
    """As corpora were before the manifest held the hash of the index."""
    corpus = tmp_path_factory.mktemp('without') / 'corpus'
    shutil.copytree(whole, corpus)
    edit_manifest(corpus, lambda manifest: manifest.pop('index_sha256'))
    return corpus

  @hypothesis.given(st.data())
  def test_flipped_bit(self, whole, own, data):
    self._flip_bit(whole, own, data)
    path = own / 'index.parquet'
    sha256 = read_manifest(own).index_sha256
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    assert error_of(own) == (
      f"'{path}' must have the sha256 {sha256} that manifest.json says, but "
      f'has {found}. Copy the directory again, or run `fedfish group` again.'
    )

  @hypothesis.given(st.data())
  def test_flipped_bit_without_hash(self, whole, without_hash, data):
    self._flip_bit(whole, without_hash, data)
    try:
      assert verify_corpus(without_hash) == verify_corpus(whole)
    except UserError as error:
      assert 'index.parquet' in str(error)
      assert '\n' not in str(error)

  def test_no_file(self, corpus):
    (corpus / 'index.parquet').unlink()
    (corpus / 'index.parquet').mkdir()
    assert 'must hold index.parquet, but it is unreadable' in error_of(corpus)

  def _flip_bit(self, whole, corpus, data):
    content = bytearray((whole / 'index.parquet').read_bytes())
    byte = data.draw(st.integers(0, len(content) - 1))
    content[byte] ^= 1 << data.draw(st.integers(0, 7))
    (corpus / 'index.parquet').write_bytes(content)


class TestDamagedShards:
  @hypothesis.given(st.data())
  def test_changed_byte(self, whole, tmp_path_factory, data):
    path = data.draw(st.sampled_from(sorted(whole.glob('*.tfrecord'))))
    content = bytearray(path.read_bytes())
    byte = data.draw(st.integers(0, len(content) - 1))
    content[byte] ^= data.draw(st.integers(1, 255))
    shard_num = int(path.name.split('-')[1])
    row = [r for r in rows_of_shard(whole, shard_num) if r['offset'] <= byte]
    corpus = tmp_path_factory.mktemp('changed') / 'corpus'
    shutil.copytree(whole, corpus)
    (corpus / path.name).write_bytes(content)
    message = error_of(corpus)
    shutil.rmtree(corpus)
    assert message.startswith(f'Group {row[-1]["group_id"].decode()!r}: ')
    assert f"{path.name}' must hold whole TFRecords" in message
    assert f'at byte {row[-1]["offset"]} is damaged' in message

  @hypothesis.given(st.data())
  def test_cut_shard(self, whole, tmp_path_factory, data):
    path = data.draw(st.sampled_from(sorted(whole.glob('*.tfrecord'))))
    content = path.read_bytes()
    size = data.draw(st.integers(0, len(content) - 1))
    shard_num = int(path.name.split('-')[1])
    row = [r for r in rows_of_shard(whole, shard_num) if r['offset'] <= size]
    corpus = tmp_path_factory.mktemp('cut') / 'corpus'
    shutil.copytree(whole, corpus)
    (corpus / path.name).write_bytes(content[:size])
    message = error_of(corpus)
    shutil.rmtree(corpus)
    assert message.startswith(f'Group {row[-1]["group_id"].decode()!r}: ')
    assert f'at byte {row[-1]["offset"]} ' in message

  def test_missing_shard(self, corpus):
    size = shard_path(corpus, 1).stat().st_size
    shard_path(corpus, 1).unlink()
    assert (
      f'must hold the shard {shard_path(corpus, 1).name} of {size} bytes, but '
      'it is missing. Copy the directory again'
    ) in error_of(corpus)

  def test_bytes_at_the_end(self, corpus):
    path = shard_path(corpus, 0)
    size = path.stat().st_size
    path.write_bytes(path.read_bytes() + b'\0')
    assert error_of(corpus).startswith(
      f"No group of index.parquet: '{path}' must hold whole TFRecords, but "
      f'the one at byte {size} is damaged: the record is cut off.'
    )

  def test_record_at_the_end(self, corpus):
    path = shard_path(corpus, 0)
    size = path.stat().st_size
    with open(path, 'ab') as file:
      records.write_record(file, records.encode_group_record(b'z', []))
    assert error_of(corpus).startswith(
      f"Group 'z': the record at byte {size} of '{path}' must be in "
      'index.parquet, but that ends before. Copy'
    )

  def test_swapped_records(self, corpus):
    path = shard_path(corpus, 0)
    rows = rows_of_shard(corpus, 0)
    payloads = [payload for _, payload in records.iterate_records(path)]
    payloads[0], payloads[-1] = payloads[-1], payloads[0]
    with open(path, 'wb') as file:
      for payload in payloads:
        records.write_record(file, payload)
    first, last = (rows[i]['group_id'].decode() for i in (0, -1))
    assert (
      f"Group '{last}': the record at byte 0 of '{path}' must be of group "
      f"'{first}', as index.parquet says, but is of group '{last}'."
    ) in error_of(corpus)

  def test_shards_of_other_names(self, corpus):
    first, second = (shard_path(corpus, num) for num in (0, 1))
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)
    assert "the record at byte 0 of '" in error_of(corpus)

  def test_not_a_group(self, corpus):
    path = shard_path(corpus, 0)
    with open(path, 'wb') as file:
      records.write_record(file, b'\xff')
    row = rows_of_shard(corpus, 0)[0]
    assert error_of(corpus).startswith(
      f"Group '{row['group_id'].decode()}': the record at byte 0 of '{path}' "
      'must be a tf.train.SequenceExample of a group, but is not ('
    )

  def test_other_bytes_of_equal_meaning(self, corpus):
    # The same group, its fields in another order: only the hash tells.
    path = shard_path(corpus, 0)
    payloads = [payload for _, payload in records.iterate_records(path)]
    message = records.messages().SequenceExample.FromString(payloads[0])
    context, lists = (
      type(message)(**{name: getattr(message, name)}).SerializeToString(
        deterministic=True
      )
      for name in ('context', 'feature_lists')
    )
    assert context + lists == payloads[0]
    payloads[0] = lists + context
    with open(path, 'wb') as file:
      for payload in payloads:
        records.write_record(file, payload)
    sha256 = read_manifest(corpus).shards[0].sha256
    assert (
      f"'{path}' must have the sha256 {sha256} that manifest.json says, but has"
    ) in error_of(corpus)

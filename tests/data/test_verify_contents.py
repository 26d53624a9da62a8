"""Whole files with wrong contents: records, index and manifest disagree."""

import dataclasses
import hashlib

import pytest
from damaged_corpora import (
  edit_manifest,
  error_of,
  index_rows,
  rewrite_first_shard,
  shard_path,
  write_index,
)

from tff_fedfish.data import records
from tff_fedfish.data.manifest import read_manifest
from tff_fedfish.data.verify import verify_corpus
from tff_fedfish.errors import UserError


class TestWrongContents:
  """Shards whose checksums and index fit, but that nothing of ours writes."""

  def test_rewriting_changes_nothing(self, corpus, whole):
    rewrite_first_shard(corpus, lambda old: old)
    assert verify_corpus(corpus) == verify_corpus(whole)

  def test_group_in_another_shard(self, corpus):
    # The SHA-256 of "0" ends with 0xe9: odd, so that of 2 shards it is 1.
    rewrite_first_shard(
      corpus,
      lambda old: [
        (
          old[0][0] | {'group_id': b'0', 'part': 0},
          old[0][1]._replace(group_id=b'0', part=None),
        ),
        *old[1:],
      ],
    )
    assert (
      'must be in shard 1, which is the SHA-256 of its group id modulo 2, but '
      'is in shard 0'
    ) in error_of(corpus)

  def test_group_ids_out_of_order(self, corpus):
    rewrite_first_shard(
      corpus, lambda old: sorted(old, key=lambda x: x[1].group_id, reverse=True)
    )
    assert 'in the order of group ids, but comes after it' in error_of(corpus)

  def test_examples_out_of_order(self, corpus):
    self._change_examples(corpus, lambda examples: examples[::-1])
    assert (
      'must hold examples in the order of time, url and SHA-256, but '
      'example 1 belongs before the one that precedes it'
    ) in error_of(corpus)

  def test_order_goes_on_from_part_to_part(self, corpus):
    def change(old):
      parts = [record for _, record in old if record.part is not None]
      swapped = {0: 1, 1: 0}
      for row, record in old:
        if record.part in swapped:
          other = parts[swapped[record.part]]
          record = record._replace(examples=other.examples)
          row = row | {'num_words': 82 - row['num_words']}
        yield row, record

    rewrite_first_shard(corpus, change)
    assert 'example 0 belongs before the one that' in error_of(corpus)

  def test_equal_examples_are_in_order(self, corpus):
    self._change_examples(corpus, lambda examples: [examples[0]] * 2)
    # Not the order, but the hash of the file.
    assert 'must have the sha256' in error_of(corpus)

  def test_order_of_hashes(self, corpus):
    first, second = (
      records.encode_example({'text': text, 'timestamp': b'', 'url': b''})
      for text in (b'a b', b'c')
    )
    order = sorted((first, second), key=lambda e: hashlib.sha256(e).digest())
    self._change_examples(corpus, lambda examples: order)
    assert 'examples in the order' not in error_of(corpus)
    self._change_examples(corpus, lambda examples: order[::-1])
    assert 'examples in the order' in error_of(corpus)

  def test_features(self, corpus):
    other = records.encode_example({'text': b'a', 'url': b'b'})
    self._change_examples(corpus, lambda examples: [examples[0], other])
    assert (
      'must hold tf.train.Examples of text, timestamp, url, the text in UTF-8, '
      'but example 1 is none (it has text, url)'
    ) in error_of(corpus)

  def test_not_an_example(self, corpus):
    self._change_examples(corpus, lambda examples: [b'\xff', examples[1]])
    assert 'but example 0 is none (' in error_of(corpus)

  def test_text_is_not_utf_8(self, corpus):
    other = records.encode_example(
      {'text': b'\xff', 'url': b'', 'timestamp': b''}
    )
    self._change_examples(corpus, lambda examples: [other, examples[1]])
    assert "but example 0 is none ('utf-8' codec" in error_of(corpus)

  def _change_examples(self, corpus, change):
    """Changes a group of two examples; words stay as the index says."""

    def change_all(old):
      changed = False
      for row, record in old:
        if len(record.examples) == 2 and not changed:
          record = record._replace(examples=change(record.examples))
          changed = True
          row = row | {'num_words': _num_words(record.examples)}
        yield row, record
      assert changed

    rewrite_first_shard(corpus, change_all)


def _num_words(examples):
  try:
    return sum(len(records.decode_example(e)['text'].split()) for e in examples)
  except ValueError:
    return 0


class TestWrongIndex:
  @pytest.mark.parametrize(
    ('column', 'message'),
    [
      ('num_examples', 'must have the num_examples {new} that index.parquet'),
      ('num_bytes', 'must have the num_bytes {new} that index.parquet'),
      ('num_words', 'must have the num_words {new} that index.parquet'),
      ('offset', 'must be in index.parquet, but that goes on at byte {new}.'),
      ('shard', 'must be in index.parquet, but that goes on at byte'),
      (
        'part',
        'must be sorted by (group_id, part), parts from 0, but row {row}',
      ),
    ],
  )
  @pytest.mark.parametrize('row', range(7))
  def test_number(self, corpus, column, message, row):
    rows = index_rows(corpus)
    old = rows[row][column]
    rows[row][column] = new = 1 - old if column == 'shard' else old + 1
    write_index(corpus, rows)
    found = error_of(corpus)
    if column == 'shard':
      assert 'index.parquet' in found
    else:
      # A part that is too large is found where it is; else where the next is.
      assert message.format(new=new, row=row) in found

  def test_missing_part_number(self, corpus):
    # What was one record of c.org is said to be a group of its own.
    rows = index_rows(corpus)
    row = next(row for row in rows if row['part'] == 1)
    row['group_id'], row['part'] = row['group_id'] + b'x', 0
    for other in rows:
      if other['part'] == 2:
        other['group_id'], other['part'] = row['group_id'], 1
    write_index(corpus, rows)
    message = error_of(corpus)
    assert (
      'must have the part None that index.parquet says, but has 0' in message
    )

  def test_group_id(self, corpus):
    rows = index_rows(corpus)
    rows[0]['group_id'] = b'A'
    write_index(corpus, rows)
    assert "must be of group 'A', as index.parquet says" in error_of(corpus)

  def test_order(self, corpus):
    rows = index_rows(corpus)
    rows[0], rows[-1] = rows[-1], rows[0]
    write_index(corpus, rows)
    message = error_of(corpus)
    assert 'must be sorted by (group_id, part), parts from 0' in message
    assert "but row 1 says group 'c.org', part 0, shard" in message

  @pytest.mark.parametrize('row', range(7))
  def test_row_is_missing(self, corpus, row):
    rows = index_rows(corpus)
    gone = rows.pop(row)
    # Without gaps in the parts.
    for other in rows:
      if other['group_id'] == gone['group_id']:
        other['part'] -= other['part'] > gone['part']
    write_index(corpus, rows)
    assert (
      f'Group {gone["group_id"].decode()!r}: the record at byte '
      f'{gone["offset"]} of '
    ) in error_of(corpus)

  def test_row_without_record(self, corpus):
    rows = index_rows(corpus)
    size = shard_path(corpus, 1).stat().st_size
    rows.append(rows[-1] | {'group_id': b'\xff', 'shard': 1, 'offset': size})
    rows[-1]['part'] = 0
    write_index(corpus, rows)
    assert error_of(corpus).startswith(
      f"Group '\\\\xff': the record at byte {size} of "
      f"'{shard_path(corpus, 1)}' must be there, as index.parquet says, "
      'but is not. Copy'
    )

  def test_unknown_shard(self, corpus):
    rows = index_rows(corpus)
    rows[2]['shard'] = 2
    write_index(corpus, rows)
    assert 'must name shards from 0 to 1, but row 2 says' in error_of(corpus)

  def test_empty_place(self, corpus):
    rows = index_rows(corpus)
    rows[2]['num_words'] = None
    write_index(corpus, rows)
    assert 'must hold index.parquet, but it is unreadable' in error_of(corpus)


class TestWrongManifest:
  @pytest.mark.parametrize(
    ('count', 'right'),
    # Ten lines were read, one of which was no JSON.
    [
      ('records_in', 10),
      ('records_out', 9),
      ('num_groups', 5),
      ('num_records', 7),
    ],
  )
  def test_count(self, corpus, count, right):
    def edit(manifest):
      manifest['counts'][count] += 1

    edit_manifest(corpus, edit)
    message = error_of(corpus)
    assert f"manifest.json' must say {count} {right}, which is" in message
    assert f'but says {right + 1}. Copy' in message

  @pytest.mark.parametrize(
    ('field', 'value'),
    [('sha256', 'f' * 64), ('num_bytes', 17), ('num_records', 99)],
  )
  def test_shard(self, corpus, field, value):
    shard = dataclasses.asdict(read_manifest(corpus).shards[1])

    def edit(manifest):
      manifest['shards'][1][field] = value

    edit_manifest(corpus, edit)
    assert error_of(corpus).startswith(
      f"'{shard_path(corpus, 1)}' must have the {field} {value} that "
      f'manifest.json says, but has {shard[field]}.'
    )

  def test_inputs(self, corpus):
    def edit(manifest):
      manifest['inputs'][0]['records_in'] = 13

    edit_manifest(corpus, edit)
    assert error_of(corpus).startswith(
      f"'{corpus / 'manifest.json'}' must say of its inputs that their "
      'records_in are 10 together, as it says of the corpus, but they are 13.'
    )

  def test_some_inputs_are_not_listed(self, corpus, whole):
    def edit(manifest):
      # Of more than ten thousand files, only the damaged ones.
      manifest['inputs'][0] |= {
        'records_in': 3,
        'records_out': 2,
        'damage': 'malformed_json',
      }
      manifest['num_input_files'] = 10_001

    edit_manifest(corpus, edit)
    assert verify_corpus(corpus) == verify_corpus(whole)

  def test_features(self, corpus):
    def edit(manifest):
      manifest['feature_names'].append('title')

    edit_manifest(corpus, edit)
    assert 'of text, timestamp, title, url, the text' in error_of(corpus)


@pytest.mark.parametrize('name', ['manifest.json', 'index.parquet'])
def test_missing_file(corpus, name):
  (corpus / name).unlink()
  with pytest.raises(UserError, match=name):
    verify_corpus(corpus)

"""A corpus is checked by its files, without its records."""

import pytest
from damaged_corpora import edit_manifest, index_rows, shard_path, write_index

from tff_fedfish.data.corpus_files import verify_files
from tff_fedfish.errors import UserError

_ADVICE = '. Copy the directory again, or run `fedfish group` again.'


def test_whole(whole):
  assert verify_files(whole) is None


def test_corpus_of_an_earlier_version(corpus):
  def as_it_was(manifest):
    for name in ('index_sha256', 'fingerprint', 'input_bytes'):
      del manifest[name]

  edit_manifest(corpus, as_it_was)
  assert verify_files(corpus) is None
  rows = index_rows(corpus)
  rows[0]['num_examples'] += 1
  write_index(corpus, rows)
  with pytest.raises(UserError) as raised:
    verify_files(corpus)
  # The corpus has 9 examples.
  assert str(raised.value) == (
    f"'{corpus}/manifest.json' must say records_out 10, which is what the "
    f'corpus holds, but says 9{_ADVICE}'
  )


def test_two_damaged_shards(corpus):
  for number in range(2):
    path = shard_path(corpus, number)
    path.write_bytes(path.read_bytes()[::-1])
  with pytest.raises(UserError) as raised:
    verify_files(corpus)
  # The first one is named.
  assert str(raised.value).startswith(
    f"'{shard_path(corpus, 0)}' must have the sha256 "
  )
  assert str(raised.value).endswith(_ADVICE)

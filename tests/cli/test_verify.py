"""`fedfish verify` as a user meets it."""

import pathlib

import pytest
from grouping_jobs import group_lines

from tff_fedfish.cli import verify

COMMANDS = {'verify': 'tff_fedfish.cli.verify'}


@pytest.fixture
def corpus(tmp_path) -> pathlib.Path:
  """Three texts of two hosts in one shard."""
  lines = [
    {'text': text, 'url': f'http://{host}/'}
    for host, text in (('a', 'one two'), ('b', 'three'), ('a', 'four'))
  ]
  return group_lines(tmp_path, lines, num_shards=1)


def test_says_what_was_checked(fedfish, corpus):
  (shard,) = corpus.glob('*.tfrecord')
  code, shown, progress = fedfish('verify', corpus)
  assert code == 0
  assert shown == (
    f'{corpus}: OK (1 shard, 2 groups, 2 records, '
    f'3 examples, 4 words, {shard.stat().st_size:,} bytes)\n'
  )
  # Less than one MiB: over before there is progress to be shown.
  assert progress == ''


def test_progress(fedfish, corpus, monkeypatch):
  (shard,) = corpus.glob('*.tfrecord')
  # A third of the shard, which has two records of about half.
  monkeypatch.setattr(verify, '_PROGRESS_BYTES', shard.stat().st_size // 3)
  code, _, progress = fedfish('verify', corpus)
  assert code == 0
  lines = progress.splitlines()
  assert lines[0].startswith('verify: MiB ')
  assert lines[-1].startswith('verify: MiB 3/3')


def test_damage_is_one_line(fedfish, corpus):
  (shard,) = corpus.glob('*.tfrecord')
  shard.write_bytes(shard.read_bytes().replace(b'three', b'THREE'))
  code, shown, errors = fedfish('verify', corpus)
  assert (code, shown) == (2, '')
  assert errors.startswith(f"fedfish: error: '{shard}' must hold whole ")
  assert 'is damaged: its content fails the checksum. Run' in errors
  assert errors.count('\n') == 1

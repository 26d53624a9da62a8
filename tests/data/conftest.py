"""A corpus that tests of this directory read or damage."""

import shutil

import pytest
from damaged_corpora import TEXTS
from grouping_jobs import group_lines


@pytest.fixture(scope='session')
def whole(tmp_path_factory):
  """A corpus of five groups in two shards; c.org has three records."""
  directory = tmp_path_factory.mktemp('corpus')
  lines = [
    {'text': text, 'url': f'http://{host}/', 'timestamp': str(i)}
    for host, texts in TEXTS.items()
    for i, text in enumerate(texts)
  ]
  return group_lines(
    directory, [*lines, b'{'], num_shards=2, max_record_bytes=200
  )


@pytest.fixture
def corpus(whole, tmp_path):
  """A copy, to be damaged."""
  return shutil.copytree(whole, tmp_path / 'corpus')

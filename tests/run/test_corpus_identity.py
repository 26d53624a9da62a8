"""The identity of a corpus: of parts, of other groupings, of its file."""

import dataclasses
import json

import grouping_jobs
import planned_configs
import pytest

from pipelines.job import run_group_job
from pipelines.splits import SplitRule
from tff_fedfish.data.grouped_corpus import GroupedCorpus
from tff_fedfish.errors import UserError
from tff_fedfish.run import corpus_identity

_TEXT = planned_configs.by_hand()


def _group(directory, num_records=40, **options):
  """Groups records by host; returns the directory of the corpus or parts."""
  raw = grouping_jobs.write_lines(
    directory / 'raw.json', grouping_jobs.raw_records(num_records)
  )
  options = {'split': SplitRule(kind='client', held_out_fraction=0.5)} | options
  run_group_job(grouping_jobs.make_job([raw], **options), directory / 'out')
  return directory / 'out'


def _identity(directory):
  return corpus_identity.identify(_TEXT, GroupedCorpus(directory))


@pytest.fixture
def identity(tmp_path):
  return _identity(_group(tmp_path / 'corpus') / 'train')


def test_parts_of_one_grouping(tmp_path, identity):
  held_out = _identity(tmp_path / 'corpus' / 'out' / 'held_out')
  assert (identity.name, identity.key) == ('c4', 'host')
  assert (identity.part, held_out.part) == ('train', 'held_out')
  assert identity.grouping == held_out.grouping
  assert identity.fingerprint != held_out.fingerprint
  assert identity.grouping not in (identity.fingerprint, held_out.fingerprint)


def test_whole_corpus(tmp_path):
  found = _identity(_group(tmp_path, split=None))
  assert found.part is None
  assert found.grouping == found.fingerprint


@pytest.mark.parametrize(
  'other',
  [
    dict(split=SplitRule(kind='client', held_out_fraction=0.4)),
    dict(split=SplitRule(kind='client', split_seed=4, held_out_fraction=0.5)),
    dict(key='domain'),
    dict(num_records=41),
  ],
  ids=str,
)
def test_other_groupings_differ(tmp_path, identity, other):
  # The same last directory name, at that.
  found = _identity(_group(tmp_path / 'other', **other) / 'train')
  assert found.part == identity.part
  assert found.grouping != identity.grouping


def test_other_number_of_shards_is_the_same_corpus(tmp_path, identity):
  assert _identity(_group(tmp_path, num_shards=2) / 'train') == identity


def test_images(small_images):
  from tff_fedfish.data.images.load import load_image_corpus

  clients = load_image_corpus('mnist_by_writer', small_images)
  config = planned_configs.shipped(
    'mnist_by_writer', data__directory=small_images
  )
  found = corpus_identity.identify(config, clients)
  assert found == corpus_identity.CorpusIdentity(
    name='mnist_by_writer',
    key=None,
    part=None,
    grouping=clients.fingerprint,
    fingerprint=clients.fingerprint,
  )


def test_label(identity):
  assert identity.label('corpora/mine/train') == 'c4, train'
  whole = dataclasses.replace(identity, part=None)
  assert whole.label('corpora/mine') == 'mine'


class TestFile:
  def test_comes_back(self, tmp_path, identity):
    corpus_identity.write_identity(tmp_path, identity)
    assert corpus_identity.read_identity(tmp_path) == identity
    assert json.loads((tmp_path / 'corpus.json').read_text()) == {
      'schema_version': 1,
      'name': 'c4',
      'key': 'host',
      'part': 'train',
      'grouping': identity.grouping,
      'fingerprint': identity.fingerprint,
    }

  def test_older_run_has_none(self, tmp_path):
    assert corpus_identity.read_identity(tmp_path) is None

  @pytest.mark.parametrize(
    ('text', 'words'),
    [
      ('{', 'cannot be read'),
      ('{"schema_version": 1, "name": 3}', '`key` is missing'),
      ('{"schema_version": 2}', 'version 1 or older, found 2. Update'),
    ],
  )
  def test_damaged(self, tmp_path, text, words):
    (tmp_path / 'corpus.json').write_text(text)
    with pytest.raises(UserError, match=words) as error:
      corpus_identity.read_identity(tmp_path)
    assert 'corpus.json' in str(error.value)

"""Dataset Grouper reads what we write."""

import pytest
import tensorflow_datasets as tfds
from dataset_grouper import data_loaders
from grouping_jobs import group_lines

_FEATURES = tfds.features.FeaturesDict(
  {name: tfds.features.Text() for name in ('text', 'timestamp', 'url')}
)

_RECORDS = [
  {'text': 'eins', 'timestamp': '1', 'url': 'http://a/'},
  {'text': 'zwei', 'timestamp': '2', 'url': 'http://b/'},
  {'text': 'dréi', 'timestamp': '3', 'url': 'http://a/'},
  {'text': 'vier', 'timestamp': '', 'url': 'http://c/'},
]

_GROUPS = [
  [('eins', '1', 'http://a/'), ('dréi', '3', 'http://a/')],
  [('vier', '', 'http://c/')],
  [('zwei', '2', 'http://b/')],
]


def _values(example):
  return tuple(example[name].decode() for name in ('text', 'timestamp', 'url'))


@pytest.mark.parametrize(
  ('max_record_bytes', 'groups'),
  [
    (1 << 20, _GROUPS),
    # It knows no parts: each is a group of its own.
    (1, [[_GROUPS[0][1]], [_GROUPS[0][0]], *_GROUPS[1:]]),
  ],
)
def test_it_reads_ours(tmp_path, max_record_bytes, groups):
  group_lines(
    tmp_path, _RECORDS, num_shards=2, max_record_bytes=max_record_bytes
  )
  dataset = data_loaders.PartitionedDataset(
    str(tmp_path / 'out' / 'groups-*.tfrecord'), _FEATURES
  )
  found = [
    [_values(example) for example in group.as_numpy_iterator()]
    for group in dataset.build_group_stream()
  ]
  assert sorted(found) == sorted(groups)

"""Dataset Grouper reads what we write, and we read what it writes."""

import apache_beam as beam
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from dataset_grouper import beam_transforms, data_loaders
from group_records import read_group_records
from grouping_jobs import group_lines

from pipelines.job import DEFAULT_RUNNER
from tff_fedfish.data import records

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


def _to_tensors(record):
  return {name: tf.constant(value) for name, value in record.items()}


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


def test_we_read_its(tmp_path):
  with beam.Pipeline(runner=DEFAULT_RUNNER) as pipeline:
    groups = beam_transforms.to_keyed_sequence_examples(
      pipeline | beam.Create(_RECORDS) | beam.Map(_to_tensors),
      lambda example: example['url'].numpy(),
      _FEATURES,
    )
    serialized = groups | beam.Map(lambda group: group[1].SerializeToString())
    _ = serialized | beam.io.WriteToTFRecord(
      str(tmp_path / 'theirs'), num_shards=1
    )
  (path,) = tmp_path.iterdir()
  found = []
  for record in read_group_records(path):
    assert (record.group_id, record.part) == (None, None)
    found.append(
      sorted(_values(records.decode_example(e)) for e in record.examples)
    )
  assert sorted(found) == sorted(map(sorted, _GROUPS))

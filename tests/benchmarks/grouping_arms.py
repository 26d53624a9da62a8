"""One grouping job in a process of its own: ours, or Dataset Grouper's.

Both read the same files on the same Beam runner, named explicitly, and write
the same number of shards. Dataset Grouper 0.3.0 reads only what TensorFlow
Datasets reads; its own transforms are fed here by Beam's text source and
`json.loads`, with the tensors that its serializer asks for, and its output is
written as its own pipeline does. Its key is the one that its users write for
web pages, `urlparse(url).netloc`; ours is `host`, which also lowers the case
and takes ports and user names away.

Ours does more: it checks every record, sorts the examples, hashes the shards,
counts words and writes an index and a manifest. Nothing is taken off for that.
"""

import argparse
import glob
import json
import os
import time
from collections.abc import Sequence

FEATURE_NAMES = ('text', 'timestamp', 'url')
# By name: what Beam calls DirectRunner first tries to download a Go program.
RUNNER = 'apache_beam.runners.portability.fn_api_runner.FnApiRunner'
# The default of `fedfish group`.
MAX_RECORD_BYTES = 256 << 20


def run_ours(
  pattern: str,
  output: str | os.PathLike,
  num_shards: int,
  beam_flags: Sequence[str] = (),
) -> float:
  """Groups C4 files by host; returns the seconds it took, without imports."""
  import apache_beam.runners.portability.fn_api_runner  # noqa: F401
  import pyarrow.parquet  # noqa: F401

  from pipelines.job import run_group_job
  from pipelines.options import GroupJob

  job = GroupJob(
    source_name='c4',
    paths=tuple(sorted(glob.glob(pattern))),
    key='host',
    num_shards=num_shards,
    max_record_bytes=MAX_RECORD_BYTES,
  )
  job.load_source()
  start = time.perf_counter()
  run_group_job(job, output, [f'--runner={RUNNER}', *beam_flags])
  return time.perf_counter() - start


def run_dataset_grouper(
  pattern: str,
  output: str | os.PathLike,
  num_shards: int,
  beam_flags: Sequence[str] = (),
) -> float:
  """Groups C4 files by network location; returns seconds, as `run_ours`."""
  from urllib.parse import urlparse

  import apache_beam as beam
  import apache_beam.runners.portability.fn_api_runner  # noqa: F401
  import tensorflow as tf
  import tensorflow_datasets as tfds
  from apache_beam.options.pipeline_options import PipelineOptions
  from dataset_grouper import beam_transforms

  features = tfds.features.FeaturesDict(
    {name: tfds.features.Text() for name in FEATURE_NAMES}
  )

  def parse(line: str) -> dict[str, tf.Tensor]:
    value = json.loads(line)
    return {name: tf.constant(value[name]) for name in FEATURE_NAMES}

  def get_key(example: dict[str, tf.Tensor]) -> bytes:
    return urlparse(example['url'].numpy().decode()).netloc.encode()

  start = time.perf_counter()
  options = PipelineOptions([f'--runner={RUNNER}', *beam_flags])
  with beam.Pipeline(options=options) as pipeline:
    lines = pipeline | 'ReadLines' >> beam.io.ReadFromText(pattern)
    groups = beam_transforms.to_keyed_sequence_examples(
      lines | 'ParseLines' >> beam.Map(parse), get_key, features
    )
    _ = (
      groups
      | 'RemoveKey' >> beam.Map(lambda group: group[1])
      | 'WriteTFRecords'
      >> beam.io.WriteToTFRecord(
        os.path.join(output, 'groups'),
        coder=beam.coders.ProtoCoder(tf.train.SequenceExample),
        file_name_suffix='.tfrecord',
        num_shards=num_shards,
      )
    )
  return time.perf_counter() - start


ARMS = {
  'ours': run_ours,
  'dataset_grouper': run_dataset_grouper,
}


def main() -> None:
  """Runs one arm and leaves its seconds in a file. Beam's flags come last."""
  parser = argparse.ArgumentParser(description=main.__doc__)
  parser.add_argument('arm', choices=tuple(ARMS))
  parser.add_argument('--input', required=True)
  parser.add_argument('--output', required=True)
  parser.add_argument('--num_shards', type=int, required=True)
  parser.add_argument('--report', required=True)
  arguments, beam_flags = parser.parse_known_args()
  seconds = ARMS[arguments.arm](
    arguments.input, arguments.output, arguments.num_shards, beam_flags
  )
  with open(arguments.report, 'w', encoding='utf-8') as file:
    json.dump({'pipeline_seconds': seconds}, file)


if __name__ == '__main__':
  main()

"""Reports of many shards are found at once."""

import time

from pipelines import reports


def test_many_shards_are_found_quickly(tmp_path):
  (tmp_path / 'shards').mkdir()
  for number in range(4000):
    for suffix in ('json', 'parquet', 'tfrecord'):
      (tmp_path / f'shards/{number:08d}.x.{suffix}').touch()
  start = time.process_time()
  assert len(reports.find_shards(str(tmp_path))) == 4000
  # Progress looks twice a second.
  assert time.process_time() - start < 0.5

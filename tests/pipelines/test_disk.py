"""Estimates of the disk that a job takes."""

import gzip

from grouping_jobs import raw_records, write_lines

from pipelines import disk


def test_plain_and_packed(tmp_path):
  plain = write_lines(tmp_path / 'plain', raw_records(9))
  packed = tmp_path / 'packed'
  packed.write_bytes(gzip.compress(b'{}'))
  paths = [str(plain), str(packed)]
  found = disk.estimate(paths, 3000, str(tmp_path / 'new' / 'out'))
  # 3,000 bytes, half of the files with 1 byte of text to a byte, half with 2.6.
  text = 3000 * (1 + 2.6) / 2
  assert found[:3] == (3000, int(1.05 * text), int(0.45 * text))
  assert found.num_free_bytes > 0 and not found.is_too_much
  assert found._replace(num_free_bytes=8000).is_too_much
  # Nothing is known of a store, nor of a file that is gone.
  found = disk.estimate([f'{plain}.gone'], 1, 'bucket://out')
  assert found.num_free_bytes is None and not found.is_too_much

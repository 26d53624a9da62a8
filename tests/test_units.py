"""Numbers in units."""

import pytest

from tff_fedfish import units


@pytest.mark.parametrize(
  ('num_bytes', 'text'),
  [
    (0, '0 B'),
    (1023, '1,023 B'),
    (1536, '1.50 KiB'),
    (20 * 2**20, '20.0 MiB'),
    (335_210_496 * 4, '1.25 GiB'),
    (2**60, '1,024 PiB'),
  ],
)
def test_bytes(num_bytes, text):
  assert units.format_bytes(num_bytes) == text


@pytest.mark.parametrize(
  ('number', 'text'),
  [(12, '12 FLOP'), (3_100_000, '3.10 MFLOP'), (606 * 10**12, '606 TFLOP')],
)
def test_flops(number, text):
  assert units.format_flops(number) == text


@pytest.mark.parametrize(
  ('seconds', 'text'),
  [
    (0.0123, '12.3 ms'),
    (3.42, '3.42 s'),
    (59.94, '59.9 s'),
    (125, '2 min 05 s'),
    (7_500, '2 h 05 min'),
    (268_000, '3.1 d'),
  ],
)
def test_seconds(seconds, text):
  assert units.format_seconds(seconds) == text

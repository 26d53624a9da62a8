"""Estimates the disk that a grouping job takes."""

import pathlib
import shutil
from collections.abc import Sequence
from typing import NamedTuple

from pipelines.open_raw import is_plain, open_raw, start_of
from tff_fedfish.data import places
from tff_fedfish.errors import UserError

# Text of a byte as it is stored: JSON lines are mostly text; gzip and Parquet
# divide C4 by 2.3, other packings and corpora by more.
_PLAIN, _PACKED = 1.0, 2.6
# Bytes of a byte of text: measured on C4 and Debian's descriptions.
_SHARDS, _RUNS = 1.05, 0.45
# Files that are looked into.
_NUM_SAMPLED = 20


class DiskEstimate(NamedTuple):
  """Bytes that a job takes, roughly."""

  num_input_bytes: int
  num_shard_bytes: int
  num_run_bytes: int
  """Until the job ends."""
  num_free_bytes: int | None
  """On the disk of the output; None for a store."""

  @property
  def is_too_much(self) -> bool:
    """Whether the job will hardly fit."""
    needed = self.num_shard_bytes + self.num_run_bytes
    return self.num_free_bytes is not None and needed > self.num_free_bytes


def estimate(paths: Sequence[str], num_bytes: int, output: str) -> DiskEstimate:
  """Returns what a job takes; looks at the beginning of some files.

  Args:
    paths: The raw files.
    num_bytes: Their size, together.
    output: The directory that the job writes.
  """
  step = -(-len(paths) // _NUM_SAMPLED)
  ratios = list(map(_text_ratio, paths[::step]))
  num_text_bytes = num_bytes * sum(ratios) / len(ratios)
  free = None
  if not places.is_remote(output):
    place = pathlib.Path(output)
    while not place.exists():
      place = place.parent
    free = shutil.disk_usage(place).free
  return DiskEstimate(
    num_bytes, int(num_text_bytes * _SHARDS), int(num_text_bytes * _RUNS), free
  )


def _text_ratio(path: str) -> float:
  try:
    with open_raw(path) as file:
      is_table = start_of(file).startswith(b'PAR1')
      return _PLAIN if is_plain(file) and not is_table else _PACKED
  except (OSError, UserError):
    # The job says what is wrong with it.
    return _PACKED

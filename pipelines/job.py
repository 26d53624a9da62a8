"""What a grouping job is asked to do."""

import dataclasses

from pipelines.read_groups import BLOCK_BYTES


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupJob:
  """What to group, and how.

  Attributes:
    source_name: One of `SOURCE_NAMES`.
    paths: The raw files. Their order does not matter.
    key: One of `KEYS`.
    num_shards: How many TFRecord files to write, at least 1.
    max_record_bytes: A group whose examples take more is stored in several
      records.
    block_bytes: How much of a file to hand on at once; does not change what is
      written.
  """

  source_name: str
  paths: tuple[str, ...]
  key: str
  num_shards: int
  max_record_bytes: int
  block_bytes: int = BLOCK_BYTES

"""Adds raw files to a grouped corpus: its shards are read as sorted input.

The new corpus has the shards and the index that grouping the raw files of both
together gives. Where that cannot be, because what the corpus has dropped might
have been kept, the job is refused.
"""

import contextlib
import glob
import hashlib
import itertools
import operator
import os
import posixpath
from collections.abc import Collection, Iterator, Sequence

from pipelines import splits
from pipelines.input_files import PATH_ERRORS, file_sizes
from pipelines.job import GroupJob
from pipelines.pieces import Row
from pipelines.read_raw_files import count_words
from pipelines.write_groups import shard_name
from tff_fedfish.data import records
from tff_fedfish.data.corpus_files import verify_files
from tff_fedfish.data.manifest import (
  GROUP_DROPS,
  MANIFEST_NAME,
  Manifest,
  read_manifest,
)
from tff_fedfish.errors import UserError

_REMEDY = 'Group the raw files of both together.'


def read_manifests(job: GroupJob) -> list[Manifest]:
  """Returns the manifest of every part of `job.add_to`; none if that is None.

  Raises:
    UserError: If it is no corpus, was grouped with other options, or has
      dropped what grouping all raw files together might keep.
  """
  if job.add_to is None:
    return []
  parts = job.part_names()
  if job.split is None:
    _require_whole(job)
  for part in parts:
    path = os.path.join(_join(job.add_to, part), MANIFEST_NAME)
    if part and os.path.isdir(job.add_to) and not os.path.exists(path):
      raise UserError(
        '`--add_to` must hold all parts of the split, but in '
        f'{job.add_to!r} there is no corpus {part!r}. {_REMEDY}'
      )
  with _named():
    manifests = [read_manifest(_join(job.add_to, part)) for part in parts]
  for part, manifest in zip(parts, manifests, strict=True):
    _require_options(job, part, manifest)
    _require_repeatable(job, manifest)
  return manifests


def verify(job: GroupJob, manifests: Sequence[Manifest]) -> None:
  """Checks the files of `job.add_to`, and that no raw file was read for it.

  A raw file was if one had the same size and, but for directories, name. An
  empty one adds nothing, and is not looked for.

  Raises:
    UserError: If one was; or if a file or a count of the corpus is wrong.
  """
  known = {
    (posixpath.basename(name), size)
    for found in manifests
    for name, size in found.input_bytes.items()
  }
  for path, size in zip(job.paths, file_sizes(job.paths), strict=True):
    if size and (posixpath.basename(path), size) in known:
      raise UserError(
        f'`--input` must name files that are not in {job.add_to!r} yet, but a '
        f'file of the name and the {size} bytes of {path!r} was read for it. '
        'Leave it out or, if it is another one, rename it.'
      )
  with _named():
    for part in job.part_names():
      verify_files(_join(job.add_to, part))


def optional_features(job: GroupJob, manifest: Manifest) -> tuple[str, ...]:
  """Returns the optional features that a corpus stores, sorted."""
  required = job.load_source().feature_names
  return tuple(name for name in manifest.feature_names if name not in required)


def require_same_choices(
  job: GroupJob, manifests: Sequence[Manifest], features: Collection[str]
) -> None:
  """Checks that examples which were dropped would be so again.

  Args:
    job: What is grouped.
    manifests: What `read_manifests` returns.
    features: Optional features that the new corpus stores. One more changes the
      SHA-256 of every example, by which some are chosen.

  Raises:
    UserError: If they might not be.
  """
  drops = set().union(*(manifest.counts.drops for manifest in manifests))
  choices = sorted(drops & GROUP_DROPS.keys())
  added = sorted({*features} - {*optional_features(job, manifests[0])})
  if added and choices:
    raise UserError(
      f'`--input` must have no features that {job.add_to!r} lacks, but has '
      f'{", ".join(added)}, with which other examples might have been dropped '
      f'as {", ".join(choices)}. {_REMEDY}'
    )


def shard_path(job: GroupJob, number: int) -> str:
  """Returns a shard's path; numbers are counted through all parts."""
  part, shard_num = divmod(number, job.num_shards)
  directory = _join(job.add_to, job.part_names()[part])
  return os.path.join(directory, shard_name(shard_num, job.num_shards))


def read_rows(
  path: str, feature_names: tuple[str, ...] | None = None
) -> Iterator[Row]:
  """Yields the examples of a shard in the stored order.

  Takes memory for one record of the shard; with other features also for the
  examples of a group that have the same timestamp and URL.

  Args:
    path: The shard.
    feature_names: The features that examples are to have, empty where they lack
      one; None: those that they have.

  Raises:
    UserError: If the shard is damaged or cannot be read.
  """
  with _named():
    for _, same in itertools.groupby(
      _read_rows(path, feature_names), operator.itemgetter(0, 1, 2)
    ):
      if feature_names is not None:
        # Other features give other hashes, by which these are sorted.
        same = sorted(same)
      yield from same


def _read_rows(path: str, names: tuple[str, ...] | None) -> Iterator[Row]:
  for record in records.read_group_records(path):
    for example in record.examples:
      values = records.decode_example(example)
      if names is not None:
        encode = records.example_encoder(names)
        example = encode([values.get(name, b'') for name in names])
      yield (
        *(record.group_id, values.get('timestamp', b'')),
        *(values.get('url', b''), hashlib.sha256(example).digest()),
        *(example, count_words(values['text'].decode(), values['text'])),
      )


@contextlib.contextmanager
def _named() -> Iterator[None]:
  """Names the option in what is said of the corpus inside."""
  try:
    yield
  except UserError as error:
    raise UserError(f'`--add_to`: {error}') from error
  except OSError as error:
    if error.errno not in PATH_ERRORS:
      raise  # The machine failed, not the corpus.
    raise UserError(
      f'`--add_to` must be readable, here and by all workers, but is not '
      f'({error}). Change permissions, or copy it to where all can read it.'
    ) from error


def _join(directory: str, part: str | None) -> str:
  return os.path.join(directory, part) if part else directory


def _require_whole(job: GroupJob) -> None:
  """Raises if the corpus is split, which it says in its parts."""
  if os.path.exists(os.path.join(job.add_to, MANIFEST_NAME)):
    return
  pattern = os.path.join(glob.escape(job.add_to), '*', MANIFEST_NAME)
  for path in sorted(glob.glob(pattern)):
    with _named():
      manifest = read_manifest(os.path.dirname(path))
    if manifest.split is not None:
      _require_options(job, manifest.split.name, manifest)


def _require_options(
  job: GroupJob, part: str | None, manifest: Manifest
) -> None:
  """Raises if the corpus was grouped with other options than the job's."""
  split = manifest.split
  kinds = [
    f'the part {name!r} of a split' if name else 'a whole corpus'
    for name in (part, split and split.name)
  ]
  rule = job.split and splits.describe(job.split, job.load_source())
  pairs = {
    'the corpus': (job.source_name, manifest.source),
    '`--key`': (job.key, manifest.key),
    'the output': kinds,
    '`--split_by`': (rule, split and split.rule),
  }
  theirs, ours = dict(manifest.options), job.options()
  for name in sorted(ours.keys() | theirs.keys()):
    pairs[f'`--{name}`'] = ours.get(name), theirs.get(name)
  for name, (found, wanted) in pairs.items():
    # Earlier versions did not write what was off.
    found, wanted = (value or 'not given' for value in (found, wanted))
    if found != wanted:
      raise UserError(
        f'`--add_to` needs the options of {job.add_to!r}, but {name} is '
        f'{found}, and there {wanted}. Use the same.'
      )


def _require_repeatable(job: GroupJob, manifest: Manifest) -> None:
  """Raises if what was dropped might be kept where all is grouped together."""
  drops = manifest.counts.drops
  if num := drops.get('small_group'):
    raise UserError(
      f'`--add_to` must not lack examples, but {job.add_to!r} has dropped '
      f'{num} by `--min_examples_per_group`, whose groups `--input` may '
      f'enlarge. {_REMEDY}'
    )
  is_distinct = job.drop_duplicates or job.drop_duplicates_across_groups
  if (num := drops.get('group_cap')) and is_distinct:
    raise UserError(
      f'`--add_to` must not lack examples, but {job.add_to!r} has dropped '
      f'{num} by `--max_examples_per_group`, of which `--input` may hold '
      f'duplicates. {_REMEDY}'
    )

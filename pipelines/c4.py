"""C4 and its look-alikes: objects with `text`, `url` and `timestamp`.

Raffel et al. (2020), "Exploring the Limits of Transfer Learning". As JSON (one
object per line, as it is published), as Parquet, or as the TFRecords that
TensorFlow Datasets prepares. `author` and `title` are kept where present.
"""

import functools
import os
import re
from collections.abc import Iterator

from pipelines import web_documents
from pipelines.read_objects import read_objects
from pipelines.source import Drop, RawRecord, Source
from tff_fedfish.errors import UserError

_SPLIT_NAMES = ('train', 'validation')
_OPTIONAL_NAMES = ('author', 'title')
_COLUMN_NAMES = (*web_documents.FEATURE_NAMES, *_OPTIONAL_NAMES)
# As a word of its own: c4-train.00000-of-01024.json.gz, but not training.json.
_SPLIT_WORD = re.compile(r'(?<![a-z])(?:train|validation)(?![a-z])')


def read_records(
  path: str, max_document_bytes: int
) -> Iterator[tuple[int, RawRecord | Drop]]:
  """Yields (1-based number, record or why it is dropped) of a file.

  The reasons are those of `read_objects` and `web_documents.to_record`.
  """
  for num, value in read_objects(path, max_document_bytes, _COLUMN_NAMES):
    if not isinstance(value, Drop):
      try:
        value = web_documents.to_record(
          value, max_document_bytes, _OPTIONAL_NAMES
        )
      except Drop as drop:
        value = drop
    yield num, value


def split(path: str, record: RawRecord) -> str:
  """Returns the part of C4 that the file's name says, train or validation.

  Raises:
    UserError: If the name says none, or both.
  """
  del record  # A file belongs to one part as a whole.
  return _split_of_name(os.path.basename(path))


@functools.lru_cache
def _split_of_name(name: str) -> str:
  found = set(_SPLIT_WORD.findall(name.lower()))
  if len(found) != 1:
    raise UserError(
      "C4's own split is told from file names, which must hold the word "
      f"'train' or 'validation', but {name!r} holds "
      f'{"both" if found else "neither"}. Rename the file, as in '
      "'c4-train.00000-of-01024.json.gz', or choose another split."
    )
  return found.pop()


SOURCE = Source(
  name='c4',
  default_key='host',
  feature_names=web_documents.FEATURE_NAMES,
  optional_feature_names=_OPTIONAL_NAMES,
  read_records=read_records,
  split_names=_SPLIT_NAMES,
  split=split,
)

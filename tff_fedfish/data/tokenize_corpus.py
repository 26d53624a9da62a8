"""Writes a token store: reads a corpus once, tokenizes in threads.

The main thread reads records and writes ids in the order of the corpus's
shards, so the files are equal for any number of threads. A few batches of
records per thread are in memory, or one record where it is larger. The
libraries of all vocabularies compute without Python's lock.
"""

import collections
import concurrent.futures
import contextlib
import dataclasses
import glob
import hashlib
import os
import pathlib
import shutil
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO, TypeVar

import numpy as np

from tff_fedfish import environment, files
from tff_fedfish.data import places, records, token_description
from tff_fedfish.data.corpus_index import INDEX_NAME
from tff_fedfish.data.grouped_corpus import (
  GroupedCorpus,
  decode_record,
  example_texts,
)
from tff_fedfish.data.manifest import (
  ADVICE,
  MANIFEST_NAME,
  TOKEN_STORE_NAME,
)
from tff_fedfish.data.token_description import StoredFile
from tff_fedfish.data.token_store import (
  CLIENTS_NAME,
  CORPUS_NAME,
  DOCUMENTS_NAME,
  NUMBERS,
  TOKENS_NAME,
)
from tff_fedfish.data.tokenizers import Tokenizer, load_tokenizer
from tff_fedfish.errors import FailedError, UserError

# Of records that a thread takes, and of texts that it tokenizes, at once.
_BATCH_BYTES = 1 << 22
# Of records per thread that were read and are not written yet.
_BYTES_AHEAD = 2 * _BATCH_BYTES

_Item = TypeVar('_Item')
_Record = tuple[str, int, bytes]
"""Shard, offset and payload."""


def write_token_store(
  corpus: GroupedCorpus,
  vocabulary: str | os.PathLike,
  output: str | os.PathLike,
  *,
  num_workers: int | None = None,
  on_clients: Callable[[int], None] = lambda num_clients: None,
) -> None:
  """Tokenizes a corpus into a new directory, which appears whole or not at all.

  Args:
    corpus: Source of examples with a bytes feature `text`.
    vocabulary: See `load_tokenizer`.
    output: The store's directory; must not exist, or be empty.
    num_workers: Threads that tokenize, at least 1. None: one per CPU. The
      files are equal for any number.
    on_clients: Called with the number of clients that were written since the
      last call.

  Raises:
    UserError: If the corpus or the vocabulary is damaged, or the vocabulary
      cannot express a text.
    FailedError: If a file cannot be read or written, or somebody else wrote the
      store in the meantime.
  """
  tokenizer = load_tokenizer(vocabulary)
  num_workers = num_workers or environment.num_cores()
  encoded = _encoded(tokenizer, _batches(corpus), num_workers)
  try:
    with files.write_directory_atomically(
      output, marker=TOKEN_STORE_NAME
    ) as temporary:
      with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.closing(encoded))
        writer = _Writer(temporary, corpus, stack)
        for batch in encoded:
          on_clients(writer.write(batch))
        description = token_description.describe(
          corpus, tokenizer, writer.finish()
        )
      files.write_json(temporary / TOKEN_STORE_NAME, description.to_json_dict())
  except OSError as error:
    raise FailedError(
      f'The tokens were not written to {str(output)!r}: {error}'
    ) from error


def leftovers(output: pathlib.Path) -> list[str]:
  """Returns unfinished stores of an output: of killed jobs, or in work."""
  pattern = f'.{glob.escape(output.name)}.*/'
  found = (*output.parent.glob(pattern), *output.glob(pattern))
  return sorted(map(str, found))


def _batches(corpus: GroupedCorpus) -> Iterator[list[_Record]]:
  """Yields all records of a corpus, shard by shard."""

  def stored_records() -> Iterator[_Record]:
    for shard in corpus.manifest.shards:
      path = places.join(corpus.directory, shard.name)
      with places.open_file(path) as file:
        for offset, payload in records.iterate_records(file, path):
          yield path, offset, payload

  return _cut(stored_records(), lambda record: len(record[2]))


def _cut(
  items: Iterable[_Item], num_bytes_of: Callable[[_Item], int]
) -> Iterator[list[_Item]]:
  """Yields lists of items, each until it has `_BATCH_BYTES`."""
  some, num_bytes = [], 0
  for item in items:
    some.append(item)
    num_bytes += num_bytes_of(item)
    if num_bytes >= _BATCH_BYTES:
      yield some
      some, num_bytes = [], 0
  if some:
    yield some


@dataclasses.dataclass(frozen=True)
class _Encoded:
  """Documents of a batch of records, as the files of a store hold them."""

  groups: list[tuple[bytes, int, int]]
  """Client id, part and number of documents of each record."""
  lengths: np.ndarray
  tokens: np.ndarray


def _encode(tokenizer: Tokenizer, batch: list[_Record]) -> _Encoded:
  texts, groups = [], []
  for path, offset, payload in batch:
    client_id, part, examples = decode_record(payload, path, offset)
    groups.append((client_id, part, len(examples)))
    texts += example_texts(client_id, examples)
  dtype = token_description.token_dtype(tokenizer.size)
  end = np.array([tokenizer.end_of_text_id], dtype)
  parts, lengths = [np.empty(0, dtype)], []
  for some in _cut(texts, len):
    for ids in tokenizer.encode_batch(some):
      parts += ids.astype(dtype), end
      lengths.append(len(ids) + 1)
  return _Encoded(groups, np.array(lengths, NUMBERS), np.concatenate(parts))


def _encoded(
  tokenizer: Tokenizer, batches: Iterable[list[_Record]], num_workers: int
) -> Iterator[_Encoded]:
  """Yields the documents of batches, in their order."""
  pool = concurrent.futures.ThreadPoolExecutor(num_workers)
  pending, num_bytes = collections.deque(), 0
  try:
    for batch in batches:
      size = sum(len(payload) for _, _, payload in batch)
      pending.append((size, pool.submit(_encode, tokenizer, batch)))
      num_bytes += size
      # It has the records.
      del batch
      while num_bytes > _BYTES_AHEAD * num_workers:
        size, future = pending.popleft()
        num_bytes -= size
        yield future.result()
        del future
    for _, future in pending:
      yield future.result()
  finally:
    pool.shutdown(cancel_futures=True)


class _HashedFile:
  """A file that is written once, and its hash."""

  def __init__(self, file: BinaryIO):
    self._file, self._hash = file, hashlib.sha256()

  def write(self, data: bytes | np.ndarray) -> None:
    self._file.write(data)
    self._hash.update(data)

  def finish(self) -> StoredFile:
    """Flushes the file to the disk."""
    self._file.flush()
    os.fsync(self._file.fileno())
    return StoredFile(
      num_bytes=self._file.tell(), sha256=self._hash.hexdigest()
    )


class _Writer:
  """Files of a store that is being written."""

  def __init__(self, directory, corpus, stack):
    self._directory, self._corpus, self._stack = directory, corpus, stack
    self._files = {}
    self._tokens = self._create(TOKENS_NAME)
    self._documents = self._create(DOCUMENTS_NAME)
    self._documents.write(np.zeros(1, NUMBERS))
    self._clients = np.zeros((len(corpus.client_ids), 2), NUMBERS)
    self._rows = corpus.stored_rows('num_examples')
    self._num_documents = self._num_tokens = 0

  def write(self, encoded: _Encoded) -> int:
    """Writes the documents of some records; returns how many clients begin."""
    num_clients = 0
    for client_id, part, num_documents in encoded.groups:
      place, row = next(self._rows, (0, None))
      if row is None or (*row[:2], row[-1]) != (client_id, part, num_documents):
        raise self._other_index()
      if not part:
        self._clients[place, 0] = self._num_documents
        num_clients += 1
      self._num_documents += num_documents
      self._clients[place, 1] = self._num_documents
    limits = self._num_tokens + np.cumsum(encoded.lengths, dtype=NUMBERS)
    self._tokens.write(encoded.tokens)
    self._documents.write(limits)
    self._num_tokens += len(encoded.tokens)
    return num_clients

  def finish(self) -> dict[str, StoredFile]:
    """Writes what is left but the description; returns all files by name."""
    if next(self._rows, None) is not None:
      raise self._other_index()
    self._create(CLIENTS_NAME).write(self._clients.ravel())
    (self._directory / CORPUS_NAME).mkdir()
    for name in (MANIFEST_NAME, INDEX_NAME):
      copy = self._create(f'{CORPUS_NAME}/{name}')
      with places.open_file(places.join(self._corpus.directory, name)) as file:
        shutil.copyfileobj(file, copy)
    stored = {name: file.finish() for name, file in self._files.items()}
    files.sync(self._directory / CORPUS_NAME)
    return stored

  def _create(self, name: str) -> _HashedFile:
    file = self._stack.enter_context(open(self._directory / name, 'wb'))
    self._files[name] = _HashedFile(file)
    return self._files[name]

  def _other_index(self) -> UserError:
    return UserError(
      f'{str(self._corpus.directory)!r} must have the index of its shards, but '
      f'that names other records. {ADVICE}'
    )

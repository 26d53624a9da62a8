"""Writes a token store: reads a corpus once, tokenizes in threads.

The main thread reads records and writes ids in the order of the corpus's
shards, so the files are equal for any number of threads. A few batches of
records per thread are in memory. The libraries of all vocabularies compute
without Python's lock.
"""

import collections
import concurrent.futures
import contextlib
import dataclasses
import glob
import itertools
import os
import pathlib
import shutil
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from tff_fedfish import files
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

# Records that a thread tokenizes at once.
_BATCH_BYTES = 1 << 22
# Batches per thread that were read and are not written yet.
_BATCHES_AHEAD = 2

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
  num_workers = num_workers or len(os.sched_getaffinity(0))
  encoded = _encoded(tokenizer, _batches(corpus), num_workers)
  try:
    with files.write_directory_atomically(output) as temporary:
      with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.closing(encoded))
        writer = _Writer(temporary, corpus, tokenizer, stack)
        for batch in encoded:
          on_clients(writer.write(batch))
        writer.finish()
    files.sync(pathlib.Path(output).resolve().parent)
  except OSError as error:
    raise FailedError(
      f'The tokens were not written to {str(output)!r}: {error}'
    ) from error


def leftovers(output: pathlib.Path) -> list[str]:
  """Returns unfinished stores beside an output: of killed jobs, or in work."""
  return sorted(map(str, output.parent.glob(f'.{glob.escape(output.name)}.*/')))


def _batches(corpus: GroupedCorpus) -> Iterator[list[_Record]]:
  """Yields all records of a corpus, shard by shard."""
  batch, num_bytes = [], 0
  for shard in corpus.manifest.shards:
    path = places.join(corpus.directory, shard.name)
    with places.open_file(path) as file:
      for offset, payload in records.iterate_records(file, path):
        batch.append((path, offset, payload))
        num_bytes += len(payload)
        if num_bytes >= _BATCH_BYTES:
          yield batch
          batch, num_bytes = [], 0
  yield batch


@dataclasses.dataclass(frozen=True)
class _Encoded:
  """Documents of a batch of records, as the files of a store hold them."""

  groups: list[tuple[bytes, int, int]]
  """Client, part and number of documents of each record."""
  lengths: np.ndarray
  tokens: np.ndarray


def _encode(tokenizer: Tokenizer, batch: list[_Record]) -> _Encoded:
  texts, groups = [], []
  for path, offset, payload in batch:
    client_id, part, examples = decode_record(payload, path, offset)
    groups.append((client_id, part, len(examples)))
    texts += example_texts(client_id, examples)
  documents = tokenizer.encode_batch(texts)
  dtype = token_description.token_dtype(tokenizer.size)
  end = np.array([tokenizer.end_of_text_id], dtype)
  parts = itertools.chain.from_iterable((ids, end) for ids in documents)
  return _Encoded(
    groups,
    np.array([len(ids) + 1 for ids in documents], NUMBERS),
    np.concatenate([np.empty(0, dtype), *parts]).astype(dtype),
  )


def _encoded(
  tokenizer: Tokenizer, batches: Iterable[list[_Record]], num_workers: int
) -> Iterator[_Encoded]:
  """Yields the documents of batches, in their order."""
  pool = concurrent.futures.ThreadPoolExecutor(num_workers)
  pending = collections.deque()
  try:
    for batch in batches:
      pending.append(pool.submit(_encode, tokenizer, batch))
      if len(pending) > _BATCHES_AHEAD * num_workers:
        yield pending.popleft().result()
    for future in pending:
      yield future.result()
  finally:
    pool.shutdown(cancel_futures=True)


class _Writer:
  """Files of a store that is being written."""

  def __init__(self, directory, corpus, tokenizer, stack):
    self._directory, self._corpus = directory, corpus
    self._tokenizer = tokenizer
    self._tokens, self._documents = (
      stack.enter_context(open(directory / name, 'wb'))
      for name in (TOKENS_NAME, DOCUMENTS_NAME)
    )
    self._documents.write(np.zeros(1, NUMBERS))
    self._clients = np.zeros((len(corpus.client_ids), 2), NUMBERS)
    self._num_clients = self._num_documents = self._num_tokens = 0

  def write(self, encoded: _Encoded) -> int:
    """Writes the documents of some records; returns how many clients begin."""
    num_before = self._num_clients
    for client_id, part, num_documents in encoded.groups:
      self._add(client_id, part, num_documents)
    limits = self._num_tokens + np.cumsum(encoded.lengths, dtype=NUMBERS)
    self._tokens.write(encoded.tokens)
    self._documents.write(limits)
    self._num_tokens += len(encoded.tokens)
    return self._num_clients - num_before

  def finish(self) -> None:
    """Writes what is left, the description last."""
    if self._num_clients != len(self._clients):
      raise self._other_index(f'has {len(self._clients)} clients')
    self._tokens.close()
    self._documents.close()
    self._clients.tofile(self._directory / CLIENTS_NAME)
    (self._directory / CORPUS_NAME).mkdir()
    for name in (MANIFEST_NAME, INDEX_NAME):
      path = places.join(self._corpus.directory, name)
      with (
        places.open_file(path) as file,
        (self._directory / CORPUS_NAME / name).open('wb') as copy,
      ):
        shutil.copyfileobj(file, copy)
    stored = {}
    for path in sorted(self._directory.rglob('*')):
      files.sync(path)
      if path.is_file():
        stored[str(path.relative_to(self._directory))] = StoredFile(
          num_bytes=path.stat().st_size, sha256=files.sha256_of(path)
        )
    description = token_description.describe(
      self._corpus, self._tokenizer, stored
    )
    files.write_json(
      self._directory / TOKEN_STORE_NAME, description.to_json_dict()
    )
    files.sync(self._directory)

  def _add(self, client_id: bytes, part: int, num_documents: int) -> None:
    """Notes the documents of one more record."""
    position = self._corpus.client_ids.position(client_id)
    if position is None:
      raise self._other_index(f'lacks client {client_id!r}')
    if not part:
      self._clients[position] = self._num_documents
      self._num_clients += 1
    elif self._clients[position, 1] != self._num_documents:
      raise self._other_index(f'has other parts of client {client_id!r}')
    self._num_documents += num_documents
    self._clients[position, 1] = self._num_documents

  def _other_index(self, problem: str) -> UserError:
    return UserError(
      f'{str(self._corpus.directory)!r} must have the index of its shards, but '
      f'the index {problem}. {ADVICE}'
    )

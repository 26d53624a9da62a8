"""Tokens of long clients on the disk, so that they are computed once.

Files lie in the user's cache directory, for all runs and all worker processes
of a host. They are only ever a shortcut: one that is missing, damaged or cannot
be written means that the client is tokenized.
"""

import contextlib
import fcntl
import hashlib
import importlib.metadata
import json
import os
import pathlib
from collections.abc import Iterator, Sequence

import numpy as np

from tff_fedfish import files
from tff_fedfish.data.grouped_corpus import GroupedCorpus
from tff_fedfish.data.tokenizers import Tokenizer

# Part of every key: raised where the tokens or the format would change.
_VERSION = 1
_LOCK_NAME = 'lock'
_LENGTHS, _TOKENS = np.dtype('<i8'), np.dtype('<i4')

MIN_BYTES = 1 << 18
"""Tokens of a client that is long enough to be kept: 65,536 of 4 bytes."""


def open_cache(
  max_bytes: int, corpus: GroupedCorpus, tokenizer: Tokenizer
) -> 'TokenCache | None':
  """Returns the cache for a corpus; None: there is none.

  Args:
    max_bytes: `data.token_cache_bytes`.
    corpus: Its texts, to the last byte, are part of every key.
    tokenizer: So are its vocabulary and the library that reads it.
  """
  directory = files.user_cache_directory()
  if not max_bytes or directory is None:
    return None
  key = [
    _VERSION,
    corpus.content_digest,
    tokenizer.cache_key,
    importlib.metadata.version('tensorflow-text'),
  ]
  return TokenCache(
    directory / 'tokens', json.dumps(key), max_bytes, min_bytes=MIN_BYTES
  )


class TokenCache:
  """Documents of clients as token ids. Safe with threads and processes."""

  def __init__(
    self,
    directory: str | os.PathLike,
    key: str,
    max_bytes: int,
    *,
    min_bytes: int,
  ):
    """Reads nothing yet.

    Args:
      directory: Where to keep files, those of other keys too; is made.
      key: Equal only where a client's tokens are.
      max_bytes: Size of all files together, at most; those that were not used
        for the longest time go first.
      min_bytes: Tokens of a client that is kept, at least.
    """
    self._directory = pathlib.Path(directory)
    self._key = key.encode()
    self._max_bytes = max_bytes
    self._min_bytes = min_bytes

  def load(self, client_id: bytes) -> list[np.ndarray] | None:
    """Returns what was stored of a client, or None if that is not there."""
    path = self._path(client_id)
    content = files.read_verified(path)
    if content is None:
      return None
    # The time of the last use.
    with contextlib.suppress(OSError):
      os.utime(path)
    num_documents = int(np.frombuffer(content, _LENGTHS, 1)[0])
    lengths = np.frombuffer(content, _LENGTHS, num_documents, _LENGTHS.itemsize)
    start = _LENGTHS.itemsize * (1 + num_documents)
    tokens = np.frombuffer(content, _TOKENS, offset=start).astype(np.int32)
    return np.split(tokens, np.cumsum(lengths)[:-1]) if num_documents else []

  def store(self, client_id: bytes, documents: Sequence[np.ndarray]) -> None:
    """Keeps a client's documents, int32 [num_tokens] each, if it is long.

    Nothing is kept while another process stores a client: it can be next time.
    """
    if _TOKENS.itemsize * sum(map(len, documents)) < self._min_bytes:
      return
    lengths = [len(documents), *map(len, documents)]
    content = np.array(lengths, _LENGTHS).tobytes() + b''.join(
      document.astype(_TOKENS).tobytes() for document in documents
    )
    num_bytes = files.DIGEST_BYTES + len(content)
    if num_bytes > self._max_bytes:
      return
    # A home that cannot be written to, a full disk, or a lock that is taken.
    with contextlib.suppress(OSError), self._lock():
      self._make_room(num_bytes)
      files.write_verified(self._path(client_id), content)

  def _path(self, client_id: bytes) -> pathlib.Path:
    # The key is JSON and ends where it ends: no two pairs are the same bytes.
    name = hashlib.sha256(self._key + client_id).hexdigest()
    return self._directory / name

  @contextlib.contextmanager
  def _lock(self) -> Iterator[None]:
    self._directory.mkdir(parents=True, exist_ok=True)
    with open(self._directory / _LOCK_NAME, 'wb') as file:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
      yield

  def _make_room(self, num_bytes: int) -> None:
    """Removes files until there is room for so many bytes."""
    found = []
    with os.scandir(self._directory) as entries:
      for entry in entries:
        if entry.name.startswith('.'):
          # Of a process that was killed while it wrote, under the lock.
          os.unlink(entry)
        elif entry.name != _LOCK_NAME:
          status = entry.stat()
          found.append((status.st_mtime_ns, entry.name, status.st_size))
    excess = sum(size for *_, size in found) + num_bytes - self._max_bytes
    for _, name, size in sorted(found):
      if excess <= 0:
        return
      os.unlink(self._directory / name)
      excess -= size

"""A corpus as token ids on the disk, which `fedfish tokenize` writes once.

    tokens.bin        ids of all documents, each followed by the end token
    documents.bin     int64 [num_documents + 1]: first id of each document
    clients.bin       int64 [num_clients, 2]: first document of each client and
                      the one after its last
    corpus/           manifest and index of the corpus
    token_store.json  a `token_description.Description`, written last
    .verified.json    sizes and times of the other files when their SHA-256 was
                      compared last

Numbers are little-endian. Files are mapped into memory, not read: a client of
any size costs only the tokens that are taken from it.
"""

import contextlib
import functools
import hashlib
import json
import os
import pathlib
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar

import numpy as np

from tff_fedfish import files
from tff_fedfish.data import corpus_index, token_description
from tff_fedfish.data.client_ids import ClientIds
from tff_fedfish.data.grouped_corpus import GroupedCorpus
from tff_fedfish.data.manifest import (
  TOKEN_STORE_NAME,
  Manifest,
  read_manifest,
)
from tff_fedfish.data.token_description import (
  ADVICE,
  Description,
  read_description,
)
from tff_fedfish.errors import UserError
from tff_fedfish.progress import Progress

CORPUS_NAME = 'corpus'
TOKENS_NAME = 'tokens.bin'
DOCUMENTS_NAME = 'documents.bin'
CLIENTS_NAME = 'clients.bin'
NUMBERS = np.dtype('<i8')
"""Type of the numbers in all files but tokens.bin."""
_VERIFIED_NAME = '.verified.json'
_READ_BYTES = 16 << 20


def is_token_store(directory: str | os.PathLike) -> bool:
  """Returns whether a directory holds a token store, damaged or not."""
  return (pathlib.Path(directory) / TOKEN_STORE_NAME).is_file()


def open_text(directory: str | os.PathLike) -> 'GroupedCorpus | TokenStore':
  """Opens a corpus of text, or a token store of one.

  Raises:
    UserError: If the directory is neither, or is damaged.
  """
  kind = TokenStore if is_token_store(directory) else GroupedCorpus
  return kind(directory)


def manifest_of(directory: str | os.PathLike) -> Manifest:
  """Returns the manifest of a corpus, which may be in a token store.

  Raises:
    UserError: If there is none, or it cannot be read.
  """
  if is_token_store(directory):
    directory = pathlib.Path(directory) / CORPUS_NAME
  return read_manifest(directory)


def corpus_name_of(directory: str | os.PathLike) -> str:
  """Returns the name of a corpus: of a store's corpus, or of the directory."""
  if is_token_store(directory):
    return read_description(directory).corpus_name
  return pathlib.Path(directory).resolve().name


def verify(
  directory: str | os.PathLike,
  on_bytes: Callable[[int], None] = lambda num_bytes: None,
) -> 'TokenStore':
  """Compares the SHA-256 of every file of a store; returns the opened store.

  Args:
    directory: The store.
    on_bytes: Called with the numbers of bytes that were read.

  Raises:
    UserError: If a file is damaged; names it.
  """
  directory = pathlib.Path(directory)
  described = _read_description(directory)
  stamp = _stamp(directory)
  for name, file in described.files.items():
    path, hasher = directory / name, hashlib.sha256()
    with path.open('rb') as opened:
      while piece := opened.read(_READ_BYTES):
        hasher.update(piece)
        on_bytes(len(piece))
    if hasher.hexdigest() != file.sha256:
      raise UserError(
        f'{str(path)!r} must have SHA-256 {file.sha256}, but has '
        f'{hasher.hexdigest()}. {ADVICE}'
      )
  # Without the right to write there, the files are read again next time.
  with contextlib.suppress(OSError):
    # Until then bytes of a copy may have been those in memory.
    for name in described.files:
      files.sync(directory / name)
    with files.write_atomically(directory / _VERIFIED_NAME) as file:
      file.write(stamp)
  return TokenStore(directory)


def verify_once(directory: str | os.PathLike) -> None:
  """Verifies a store, with progress, unless its files are those verified last.

  Raises:
    UserError: See `verify`.
  """
  _verify_once(pathlib.Path(directory), _stamp(directory))


@functools.cache
def _verify_once(directory: pathlib.Path, stamp: str) -> None:
  with contextlib.suppress(OSError):
    if (directory / _VERIFIED_NAME).read_bytes() == stamp.encode():
      return
  described = read_description(directory).files.values()
  # Each file in whole MiB, as its pieces are counted.
  total = sum(file.num_bytes >> 20 for file in described)
  with Progress('verify tokens', total, unit='MiB') as progress:
    verify(directory, lambda num_bytes: progress.advance(num_bytes >> 20))


def _stamp(directory: str | os.PathLike) -> str:
  """Returns size and time of every file of a store, which change with it."""
  statuses = {
    name: os.stat(os.path.join(directory, name))
    for name in (TOKEN_STORE_NAME, *read_description(directory).files)
  }
  # The time of the last change, which `cp -p` and `rsync -t` cannot set.
  return json.dumps(
    {name: [of.st_size, of.st_ctime_ns] for name, of in statuses.items()}
  )


class TokenStore:
  """The `Corpus` that was tokenized, with token ids in place of its texts.

  Opening reads the description, the manifest, the client ids and the documents
  of each client, and compares the sizes of all files; `verify_once` compares
  everything. Thread safe.

  Methods that take a client id raise a KeyError if there is no such client.

  Attributes:
    directory: Where the store lies.
    description: Contents of token_store.json.
    manifest: That of the corpus.
    client_ids: All client ids, sorted.
    fingerprint: That of the corpus.
    tokens: uint16 or int32 [num_tokens], on the disk.
    num_documents: Number of documents of all clients.
  """

  held_out: ClassVar[tuple[bytes, ...]] = ()
  twins: ClassVar[None] = None
  row_name: ClassVar[str] = 'sequences'

  def __init__(self, directory: str | os.PathLike):
    """Opens a token store.

    Args:
      directory: The output of `fedfish tokenize`.

    Raises:
      UserError: If it is damaged, or of a newer version.
    """
    self.directory = pathlib.Path(directory)
    self.description = _read_description(self.directory)
    self.manifest = read_manifest(self.directory / CORPUS_NAME)
    self.client_ids: ClientIds = corpus_index.read_client_ids(
      self.directory / CORPUS_NAME
    )
    self.fingerprint = self.description.corpus_fingerprint
    size = self.description.vocabulary['size']
    self.tokens = self._map(TOKENS_NAME, token_description.token_dtype(size))
    self._documents = self._map(DOCUMENTS_NAME)
    self.num_documents = len(self._documents) - 1
    self._clients = self._map(CLIENTS_NAME).reshape(-1, 2)
    self._check_numbers()

  def position(self, client_id: bytes) -> int:
    """Returns the place of a client in `client_ids`."""
    return self.client_ids.require_position(client_id, self.directory)

  def streams(self, positions: Sequence[int]) -> np.ndarray:
    """Returns the joined documents of clients, as places in `tokens`.

    Args:
      positions: Places in `client_ids`.

    Returns:
      int64 [num_positions, 2]: the first token of each and the one after the
      last, which is an end token.
    """
    return self._documents[self._clients[positions]]

  def documents(self, client_id: bytes) -> 'StoredDocuments':
    """Returns the documents of a client, which are not read yet."""
    start, stop = self._clients[self.position(client_id)]
    return StoredDocuments(self.tokens, self._documents[start : stop + 1])

  def _check_numbers(self) -> None:
    """Compares what costs little, so that zeros are not taken for numbers."""
    tokens, documents, clients = self.tokens, self._documents, self._clients
    end = self.description.vocabulary['end_of_text_id']
    for name, what, is_right in (
      (
        DOCUMENTS_NAME,
        f'numbers from 0 to {len(tokens):,}',
        documents[0] == 0 and documents[-1] == len(tokens),
      ),
      (
        TOKENS_NAME,
        f'ids that end with {end}, the end of a text',
        not len(tokens) or tokens[-1] == end,
      ),
      (
        CLIENTS_NAME,
        f'ranges of {self.num_documents:,} documents',
        clients.min(initial=0) == 0
        and clients.max(initial=0) == self.num_documents
        and (clients[:, 0] < clients[:, 1]).all(),
      ),
    ):
      if not is_right:
        path = str(self.directory / name)
        raise UserError(f'{path!r} must hold {what}, but is damaged. {ADVICE}')

  def _map(self, name: str, dtype: np.dtype = NUMBERS) -> np.ndarray:
    path = self.directory / name
    # An empty file cannot be mapped.
    if not path.stat().st_size:
      return np.empty(0, dtype)
    return np.asarray(np.memmap(path, dtype, mode='r'))


class StoredDocuments:
  """Documents of a client, on the disk until they are read."""

  def __init__(self, tokens: np.ndarray, limits: np.ndarray):
    self._tokens, self._limits = tokens, limits

  def __len__(self) -> int:
    return len(self._limits) - 1

  def read(self, numbers: Iterable[int]) -> list[np.ndarray]:
    """Returns ids of documents, int32 [num_tokens], without the end token."""
    tokens, limits = self._tokens, self._limits
    return [
      tokens[limits[i] : limits[i + 1] - 1].astype(np.int32) for i in numbers
    ]


def _read_description(directory: pathlib.Path) -> Description:
  """Reads the description of a store whose files have its sizes."""
  description = read_description(directory)
  for name, file in description.files.items():
    path = directory / name
    try:
      problem = files.difference(path, file.num_bytes)
    except FileNotFoundError:
      problem = 'is missing'
    if problem:
      raise UserError(f'{str(path)!r} {problem}. {ADVICE}')
  return description

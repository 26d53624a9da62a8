"""A corpus as token ids on the disk, which `fedfish tokenize` writes once.

    tokens.bin        ids of all documents, each followed by the end token
    documents.bin     int64 [num_documents + 1]: first id of each document
    clients.bin       int64 [num_clients, 2]: first document of each client and
                      the one after its last
    corpus/           manifest and index of the corpus
    token_store.json  a `token_description.Description`, written last

Numbers are little-endian. Files are mapped into memory, not read: a client of
any size costs only the tokens that are taken from it.
"""

import hashlib
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
from tff_fedfish.data.token_description import ADVICE, read_description
from tff_fedfish.errors import UserError

CORPUS_NAME = 'corpus'
TOKENS_NAME = 'tokens.bin'
DOCUMENTS_NAME = 'documents.bin'
CLIENTS_NAME = 'clients.bin'
NUMBERS = np.dtype('<i8')
"""Type of the numbers in all files but tokens.bin."""
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
  for name, file in read_description(directory).files.items():
    path, hasher = pathlib.Path(directory) / name, hashlib.sha256()
    _check_size(path, file.num_bytes)
    with path.open('rb') as opened:
      while piece := opened.read(_READ_BYTES):
        hasher.update(piece)
        on_bytes(len(piece))
    if hasher.hexdigest() != file.sha256:
      raise UserError(
        f'{str(path)!r} must have SHA-256 {file.sha256}, but has '
        f'{hasher.hexdigest()}. {ADVICE}'
      )
  return TokenStore(directory)


class TokenStore:
  """The `Corpus` that was tokenized, with token ids in place of its texts.

  Opening reads the description, the manifest and the client ids, and compares
  the sizes of all files. Thread safe.

  Methods that take a client id raise a KeyError if there is no such client.
  Those that read a file raise a UserError if it holds what cannot be right.

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
    self.description = read_description(directory)
    for name, file in self.description.files.items():
      _check_size(self.directory / name, file.num_bytes)
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
    return self._limits(self._documents_of(positions))

  def documents(self, client_id: bytes) -> 'StoredDocuments':
    """Returns the documents of a client, which are not read yet."""
    start, stop = self._documents_of(self.position(client_id))
    return StoredDocuments(self, self._limits(slice(start, stop + 1)))

  def require_ids(self, ids: np.ndarray) -> None:
    """Raises a UserError if an id that was read is none of the vocabulary."""
    size = self.description.vocabulary['size']
    if ids.size and not 0 <= ids.min() <= ids.max() < size:
      raise self._damaged(TOKENS_NAME, f'ids below {size:,}')

  def _documents_of(self, positions: int | Sequence[int]) -> np.ndarray:
    """Returns first documents of clients, and those after the last."""
    documents = self._clients[positions]
    return self._checked(CLIENTS_NAME, documents, self.num_documents)

  def _limits(self, documents: slice | np.ndarray) -> np.ndarray:
    """Returns the first token of each document."""
    limits = self._documents[documents]
    return self._checked(DOCUMENTS_NAME, limits, len(self.tokens))

  def _checked(self, name: str, numbers: np.ndarray, most: int) -> np.ndarray:
    is_right = not numbers.size or (
      0 <= numbers.min()
      and numbers.max() <= most
      and (np.diff(numbers) >= 0).all()
    )
    if not is_right:
      raise self._damaged(name, f'ascending numbers up to {most:,}')
    return numbers

  def _damaged(self, name: str, what: str) -> UserError:
    path = str(self.directory / name)
    return UserError(f'{path!r} must hold {what}, but is damaged. {ADVICE}')

  def _map(self, name: str, dtype: np.dtype = NUMBERS) -> np.ndarray:
    path = self.directory / name
    # An empty file cannot be mapped.
    if not path.stat().st_size:
      return np.empty(0, dtype)
    return np.asarray(np.memmap(path, dtype, mode='r'))


class StoredDocuments:
  """Documents of a client, on the disk until they are read."""

  def __init__(self, store: TokenStore, limits: np.ndarray):
    self._store, self._limits = store, limits

  def __len__(self) -> int:
    return len(self._limits) - 1

  def read(self, numbers: Iterable[int]) -> list[np.ndarray]:
    """Returns ids of documents, int32 [num_tokens], without the end token."""
    tokens, limits = self._store.tokens, self._limits
    documents = [
      tokens[limits[i] : limits[i + 1] - 1].astype(np.int32) for i in numbers
    ]
    for document in documents:
      self._store.require_ids(document)
    return documents


def _check_size(path: pathlib.Path, num_bytes: int) -> None:
  try:
    problem = files.difference(path, num_bytes)
  except FileNotFoundError:
    problem = 'is missing'
  if problem:
    raise UserError(f'{str(path)!r} {problem}. {ADVICE}')

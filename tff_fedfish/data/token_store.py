"""A corpus as token ids on the disk, which `fedfish tokenize` writes once.

    tokens.bin        ids of all documents, each followed by the end token
    documents.bin     int64 [num_documents + 1]: first id of each document
    text_bytes.bin    int64 [num_documents]: bytes of each document's text
    clients.bin       int64 [num_clients, 2]: first document of each client and
                      the one after its last
    corpus/           manifest and index of the corpus
    token_store.json  a `Description`, written last

Numbers are little-endian. Files are mapped into memory, not read: a client of
any size costs only the tokens that are taken from it.
"""

import dataclasses
import functools
import importlib.metadata
import os
import pathlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow.parquet as pq

from tff_fedfish import files
from tff_fedfish.data import corpus_index, tokenizers
from tff_fedfish.data.client_ids import ClientIds
from tff_fedfish.data.corpus_index import INDEX_NAME
from tff_fedfish.data.grouped_corpus import GroupedCorpus
from tff_fedfish.data.manifest import (
  TOKEN_STORE_NAME,
  Manifest,
  read_manifest,
)
from tff_fedfish.data.tokenizers import Tokenizer
from tff_fedfish.errors import UserError

CORPUS_NAME = 'corpus'
TOKENS_NAME = 'tokens.bin'
DOCUMENTS_NAME = 'documents.bin'
TEXT_BYTES_NAME = 'text_bytes.bin'
CLIENTS_NAME = 'clients.bin'
NUMBERS = np.dtype('<i8')
"""Type of the numbers in all files but tokens.bin."""

_VOCABULARY = ('kind', 'size', 'sha256', 'lower_case', 'end_of_text_id')
_TOKEN_TYPES = {'uint16': np.dtype('<u2'), 'int32': np.dtype('<i4')}
_ADVICE = 'Copy the directory again, or run `fedfish tokenize` again.'


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoredFile:
  """A file of a store."""

  num_bytes: int
  sha256: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Description:
  """Contents of token_store.json, which also has their SHA-256."""

  schema_version: int = 1
  corpus_name: str
  """Name of the corpus's directory."""
  corpus_fingerprint: str
  """`GroupedCorpus.fingerprint`."""
  vocabulary: Mapping[str, Any]
  """Facts on which the ids of a text depend: `size`, `sha256` and others."""
  library: str
  """Library that computed the ids, and its version."""
  token_type: str
  """'uint16', or 'int32' with a vocabulary of more than 65,536 pieces."""
  files: Mapping[str, StoredFile]
  """Every other file, by its path below the store."""

  def to_json_dict(self) -> dict[str, Any]:
    """Returns what token_store.json holds."""
    return files.with_hash(dataclasses.asdict(self))


def describe(
  corpus: GroupedCorpus,
  tokenizer: Tokenizer,
  stored_files: Mapping[str, StoredFile],
) -> Description:
  """Returns the description of a store of a corpus."""
  return Description(
    corpus_name=pathlib.Path(corpus.directory).resolve().name,
    corpus_fingerprint=corpus.fingerprint,
    vocabulary={name: getattr(tokenizer, name) for name in _VOCABULARY},
    library=_library(tokenizer.kind),
    token_type=token_dtype(tokenizer).name,
    files=stored_files,
  )


def token_dtype(tokenizer: Tokenizer) -> np.dtype:
  """Returns the smaller type of tokens.bin that holds every id."""
  return _TOKEN_TYPES['uint16' if tokenizer.size <= 1 << 16 else 'int32']


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


def read_description(directory: str | os.PathLike) -> Description:
  """Reads token_store.json.

  Raises:
    UserError: If it was changed or is damaged, or of a newer version.
  """
  path = pathlib.Path(directory) / TOKEN_STORE_NAME
  with files.explained(path, 'the description of a token store', _ADVICE):
    return files.from_json_object(
      files.parse_json(path.read_bytes()),
      schema=Description,
      upgrade=files.require_hash,
    )


def verify(
  directory: str | os.PathLike, on_file: Callable[[], None] = lambda: None
) -> 'TokenStore':
  """Reads every file of a store once; returns the opened store.

  Compares the SHA-256 of each, and the fingerprint of the corpus with that of
  the manifest or, where that has none, of the index.

  Args:
    directory: The store.
    on_file: Called after each file of its description.

  Raises:
    UserError: If a file is damaged, or of another corpus; names it.
  """
  for name, file in read_description(directory).files.items():
    path = pathlib.Path(directory) / name
    _check(path, file.num_bytes, file.sha256)
    on_file()
  store = TokenStore(directory)
  fingerprint = store.manifest.fingerprint
  if not fingerprint:
    index = pq.read_table(store.directory / CORPUS_NAME / INDEX_NAME)
    fingerprint = corpus_index.fingerprint_of_index(index)
  if store.fingerprint != fingerprint:
    raise UserError(
      f'{str(store.directory / CORPUS_NAME)!r} must be of the corpus with '
      f'fingerprint {store.fingerprint}, but is of {fingerprint}. {_ADVICE}'
    )
  return store


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
    text_bytes: int64 [num_documents], on the disk: bytes of each text.
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
      _check(self.directory / name, file.num_bytes)
    self.manifest = read_manifest(self.directory / CORPUS_NAME)
    self.client_ids: ClientIds = corpus_index.read_client_ids(
      self.directory / CORPUS_NAME
    )
    self.fingerprint = self.description.corpus_fingerprint
    self.tokens = self._map(
      TOKENS_NAME, _TOKEN_TYPES[self.description.token_type]
    )
    self.text_bytes = self._map(TEXT_BYTES_NAME)
    self._documents = self._map(DOCUMENTS_NAME)
    self._clients = self._map(CLIENTS_NAME).reshape(-1, 2)

  def require_vocabulary(self, tokenizer: Tokenizer) -> None:
    """Raises a UserError unless a vocabulary made the ids of this store.

    Warns if its library has another version than at that time.
    """
    stored = self.description.vocabulary
    for name in _VOCABULARY:
      if stored.get(name) != getattr(tokenizer, name):
        raise UserError(
          f'The token store {str(self.directory)!r} must be of the vocabulary '
          f'of the run, with `{name}` {getattr(tokenizer, name)!r}, found '
          f'{stored.get(name)!r}. Run `fedfish tokenize` with that vocabulary, '
          'or name the corpus.'
        )
    library = _library(tokenizer.kind)
    if library != self.description.library:
      _warn(
        f'{str(self.directory)!r} was tokenized by {self.description.library}; '
        f'{library} may make other tokens of a text'
      )

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
    documents = self._clients[positions]
    self._require_places(CLIENTS_NAME, documents, len(self._documents) - 1)
    streams = self._documents[documents]
    self._require_places(DOCUMENTS_NAME, streams, len(self.tokens))
    return streams

  def documents(self, client_id: bytes) -> 'StoredDocuments':
    """Returns the documents of a client, which are not read yet."""
    documents = self._clients[self.position(client_id)]
    self._require_places(CLIENTS_NAME, documents, len(self._documents) - 1)
    start, stop = documents
    limits = self._documents[start : stop + 1]
    self._require_places(DOCUMENTS_NAME, limits, len(self.tokens))
    return StoredDocuments(self, limits)

  def require_ids(self, ids: np.ndarray) -> None:
    """Raises a UserError if an id that was read is none of the vocabulary."""
    size = self.description.vocabulary['size']
    if ids.size and not 0 <= ids.min() <= ids.max() < size:
      raise self._damaged(TOKENS_NAME, f'ids below {size:,}')

  def _require_places(self, name: str, places: np.ndarray, most: int) -> None:
    is_right = not places.size or (
      0 <= places.min()
      and places.max() <= most
      and (np.diff(places) >= 0).all()
    )
    if not is_right:
      raise self._damaged(name, f'ascending numbers up to {most:,}')

  def _damaged(self, name: str, what: str) -> UserError:
    path = str(self.directory / name)
    return UserError(f'{path!r} must hold {what}, but is damaged. {_ADVICE}')

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


def _library(kind: str) -> str:
  """Returns the library that computes ids, and its version."""
  is_json = kind == tokenizers.TOKENIZER_JSON
  name = 'tokenizers' if is_json else 'tensorflow-text'
  return f'{name} {importlib.metadata.version(name)}'


@functools.cache
def _warn(text: str) -> None:
  print(f'fedfish: warning: {text}.', file=sys.stderr)


def _check(path: pathlib.Path, num_bytes: int, sha256: str | None = None):
  try:
    problem = files.difference(path, num_bytes, sha256)
  except FileNotFoundError:
    problem = 'is missing'
  if problem:
    raise UserError(f'{str(path)!r} {problem}. {_ADVICE}')

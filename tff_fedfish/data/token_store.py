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
import importlib.metadata
import os
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from tff_fedfish import files
from tff_fedfish.data import corpus_index, tokenizers
from tff_fedfish.data.client_ids import ClientIds
from tff_fedfish.data.grouped_corpus import GroupedCorpus
from tff_fedfish.data.manifest import Manifest, read_manifest
from tff_fedfish.data.tokenizers import Tokenizer
from tff_fedfish.errors import UserError

DESCRIPTION_NAME = 'token_store.json'
CORPUS_NAME = 'corpus'
TOKENS_NAME = 'tokens.bin'
DOCUMENTS_NAME = 'documents.bin'
TEXT_BYTES_NAME = 'text_bytes.bin'
CLIENTS_NAME = 'clients.bin'
NUMBERS = np.dtype('<i8')
"""Type of the numbers in all files but tokens.bin."""

_VOCABULARY = ('kind', 'sha256', 'lower_case', 'end_of_text_id')
_NAMES = {TOKENS_NAME, DOCUMENTS_NAME, TEXT_BYTES_NAME, CLIENTS_NAME}
_TOKEN_TYPES = {'uint16': np.dtype('<u2'), 'int32': np.dtype('<i4')}
_ADVICE = 'Copy the directory again, or run `fedfish tokenize` again.'


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoredFile:
  """A file of a store."""

  num_bytes: int
  sha256: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Description:
  """Contents of token_store.json."""

  schema_version: int = 1
  corpus_name: str
  """Name of the corpus's directory."""
  corpus_fingerprint: str
  """`GroupedCorpus.fingerprint`."""
  vocabulary: Mapping[str, Any]
  """Facts on which the ids of a text depend, the SHA-256 among them."""
  library: str
  """Library that computed the ids, and its version."""
  token_type: str
  """'uint16', or 'int32' with a vocabulary of more than 65,536 pieces."""
  files: Mapping[str, StoredFile]
  """Every other file, by its path below the store."""


def describe(
  corpus: GroupedCorpus,
  tokenizer: Tokenizer,
  stored_files: Mapping[str, StoredFile],
) -> Description:
  """Returns the description of a store of a corpus."""
  library = 'tensorflow-text'
  if tokenizer.kind == tokenizers.TOKENIZER_JSON:
    library = 'tokenizers'
  return Description(
    corpus_name=pathlib.Path(corpus.directory).resolve().name,
    corpus_fingerprint=corpus.fingerprint,
    vocabulary={name: getattr(tokenizer, name) for name in _VOCABULARY},
    library=f'{library} {importlib.metadata.version(library)}',
    token_type=token_dtype(tokenizer).name,
    files=stored_files,
  )


def token_dtype(tokenizer: Tokenizer) -> np.dtype:
  """Returns the smaller type of tokens.bin that holds every id."""
  return _TOKEN_TYPES['uint16' if tokenizer.size <= 1 << 16 else 'int32']


def is_token_store(directory: str | os.PathLike) -> bool:
  """Returns whether a directory holds a token store, damaged or not."""
  return (pathlib.Path(directory) / DESCRIPTION_NAME).is_file()


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
    UserError: If it is damaged, or of a newer version.
  """
  path = pathlib.Path(directory) / DESCRIPTION_NAME
  try:
    description = files.read_json(path, schema=Description)
    if description.token_type not in _TOKEN_TYPES:
      raise ValueError(f'`token_type` is {description.token_type!r}')
    if missing := _NAMES - description.files.keys():
      raise ValueError(f'`files` lacks {min(missing)}')
  except files.NewerSchemaError as error:
    raise UserError(
      f'{str(path)!r} has schema version {error.version}, but this version of '
      f'fedfish reads up to {Description.schema_version}. Update fedfish.'
    ) from error
  except (OSError, ValueError) as error:
    raise UserError(
      f'{str(path)!r} must describe a token store, but cannot be read '
      f'({error}). {_ADVICE}'
    ) from error
  return description


def verify(
  directory: str | os.PathLike, on_file: Callable[[], None] = lambda: None
) -> 'TokenStore':
  """Compares the SHA-256 of every file of a store; returns the opened store.

  Args:
    directory: The store.
    on_file: Called after each file of its description.

  Raises:
    UserError: If a file is damaged; names it.
  """
  for name, file in read_description(directory).files.items():
    path = pathlib.Path(directory) / name
    _check(path, file.num_bytes, file.sha256)
    on_file()
  return TokenStore(directory)


class TokenStore:
  """The `Corpus` that was tokenized, with token ids in place of its texts.

  Opening reads the description, the manifest and the client ids, and compares
  the sizes of all files. Thread safe.

  Methods that take a client id raise a KeyError if there is no such client.

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
    locations = corpus_index.read_locations(self.directory / CORPUS_NAME)
    self.client_ids: ClientIds = locations.client_ids
    self.fingerprint = self.description.corpus_fingerprint
    self.tokens = self._map(
      TOKENS_NAME, _TOKEN_TYPES[self.description.token_type]
    )
    self.text_bytes = self._map(TEXT_BYTES_NAME)
    self._documents = self._map(DOCUMENTS_NAME)
    self._clients = self._map(CLIENTS_NAME).reshape(-1, 2)

  def require_vocabulary(self, tokenizer: Tokenizer) -> None:
    """Raises a UserError unless a vocabulary made the ids of this store."""
    stored = self.description.vocabulary
    for name in _VOCABULARY:
      if stored.get(name) != getattr(tokenizer, name):
        raise UserError(
          f'The token store {str(self.directory)!r} must be of the vocabulary '
          f'of the run, with `{name}` {getattr(tokenizer, name)!r}, found '
          f'{stored.get(name)!r}. Run `fedfish tokenize` with that vocabulary, '
          'or name the corpus.'
        )

  def position(self, client_id: bytes) -> int:
    """Returns the place of a client in `client_ids`."""
    position = self.client_ids.position(client_id)
    if position is None:
      raise KeyError(
        f'{client_id!r} is not a client of {str(self.directory)!r}; client '
        'ids are bytes, listed in `client_ids`'
      )
    return position

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
    limits = self._documents[start : stop + 1]
    return StoredDocuments(self.tokens, limits)

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
    return [
      self._tokens[self._limits[i] : self._limits[i + 1] - 1].astype(np.int32)
      for i in numbers
    ]


def _check(path: pathlib.Path, num_bytes: int, sha256: str | None = None):
  try:
    problem = files.difference(path, num_bytes, sha256)
  except FileNotFoundError:
    problem = 'is missing'
  if problem:
    raise UserError(f'{str(path)!r} {problem}. {_ADVICE}')

"""token_store.json: what a token store holds, made by which vocabulary."""

import dataclasses
import functools
import importlib.metadata
import os
import pathlib
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from tff_fedfish import files
from tff_fedfish.data import tokenizers
from tff_fedfish.data.grouped_corpus import GroupedCorpus
from tff_fedfish.data.manifest import TOKEN_STORE_NAME
from tff_fedfish.data.tokenizers import Tokenizer
from tff_fedfish.errors import UserError

ADVICE = 'Copy the directory again, or run `fedfish tokenize` again.'
_VOCABULARY = ('kind', 'size', 'sha256', 'lower_case', 'end_of_text_id')


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
    files=stored_files,
  )


def token_dtype(vocabulary_size: int) -> np.dtype:
  """Returns the type of the ids in tokens.bin: uint16 if it holds all."""
  return np.dtype('<u2' if vocabulary_size <= 1 << 16 else '<i4')


def read_description(directory: str | os.PathLike) -> Description:
  """Reads token_store.json.

  Raises:
    UserError: If it was changed or is damaged, or of a newer version.
  """
  path = pathlib.Path(directory) / TOKEN_STORE_NAME
  with files.explained(path, 'the description of a token store', ADVICE):
    return files.from_json_object(
      files.parse_json(path.read_bytes()),
      schema=Description,
      upgrade=files.require_hash,
    )


def require_vocabulary(
  description: Description, tokenizer: Tokenizer, directory: pathlib.Path
) -> None:
  """Raises a UserError unless a vocabulary made the ids of a store.

  Warns if its library has another version than at that time.
  """
  stored = description.vocabulary
  for name in _VOCABULARY:
    if stored.get(name) != getattr(tokenizer, name):
      raise UserError(
        f'The token store {str(directory)!r} must be of the vocabulary '
        f'of the run, with `{name}` {getattr(tokenizer, name)!r}, found '
        f'{stored.get(name)!r}. Run `fedfish tokenize` with that vocabulary, '
        'or name the corpus.'
      )
  library = _library(tokenizer.kind)
  if library != description.library:
    _warn(
      f'{str(directory)!r} was tokenized by {description.library}; '
      f'{library} may make other tokens of a text'
    )


def _library(kind: str) -> str:
  """Returns the library that computes ids, and its version."""
  is_json = kind == tokenizers.TOKENIZER_JSON
  name = 'tokenizers' if is_json else 'tensorflow-text'
  return f'{name} {importlib.metadata.version(name)}'


@functools.cache
def _warn(text: str) -> None:
  print(f'fedfish: warning: {text}.', file=sys.stderr)

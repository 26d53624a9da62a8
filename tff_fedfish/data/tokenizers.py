"""Tokenizers: text to token ids and back, loaded from and saved to disk."""

import dataclasses
import hashlib
import os
import pathlib
import typing
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from tff_fedfish import files, json_values
from tff_fedfish.data import sentencepiece, tokenizer_json, wordpiece
from tff_fedfish.errors import UserError

SCHEMA_VERSION = 1
WORDPIECE = 'wordpiece'
SENTENCEPIECE = 'sentencepiece'
TOKENIZER_JSON = 'tokenizer_json'
METADATA_FILE = 'tokenizer.json'
_VOCABULARY_FILES = {
  WORDPIECE: 'vocab.txt',
  SENTENCEPIECE: 'sentencepiece.model',
  # Not its own name, which the metadata have.
  TOKENIZER_JSON: 'huggingface.json',
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Metadata:
  """Everything `tokenizer.json` says; the fields are those of `Tokenizer`."""

  schema_version: int = SCHEMA_VERSION
  kind: str
  size: int
  lower_case: bool
  end_of_text_id: int
  padding_id: int
  unknown_id: int | None
  sha256: str


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Tokenizer:
  """Turns text into token ids and back. Thread safe, never changes.

  Made by `load_tokenizer` and `wordpiece_tokenizer`.
  """

  kind: str
  """'wordpiece', 'sentencepiece' or 'tokenizer_json'."""
  size: int
  """Number of token ids; they are 0 to size - 1."""
  lower_case: bool
  """Whether texts are lower-cased and stripped of accents first."""
  end_of_text_id: int
  """Follows every document; `encode_batch` does not add it."""
  padding_id: int
  """Fills up sequences; may equal `end_of_text_id`, as padding is masked."""
  unknown_id: int | None
  """Stands for what the vocabulary cannot express; None: it has all bytes."""
  vocabulary: bytes = dataclasses.field(repr=False)
  """The bytes of the vocabulary file."""
  codec: (
    wordpiece.WordPieceCodec
    | sentencepiece.SentencePieceCodec
    | tokenizer_json.TokenizerJsonCodec
  ) = dataclasses.field(repr=False)
  """Does the encoding."""

  @property
  def sha256(self) -> str:
    """Hexadecimal SHA-256 of the vocabulary file."""
    return hashlib.sha256(self.vocabulary).hexdigest()

  def encode_batch(self, texts: Sequence[bytes | str]) -> list[np.ndarray]:
    """Encodes texts, without adding special tokens.

    Args:
      texts: UTF-8 bytes or strings. Bytes that are not UTF-8 are read as the
        replacement character.

    Returns:
      For each text its token ids, int32 [num_tokens].

    Raises:
      UserError: If the vocabulary cannot express a text.
    """
    if not texts:
      return []
    return self.codec.encode_batch([_utf8(text) for text in texts])

  def decode(self, token_ids: Iterable[int]) -> str:
    """Returns the text of token ids, without end-of-text and padding.

    Args:
      token_ids: Ids from 0 to `size - 1`.

    Returns:
      Text that reads like the original; what tokenization normalized away
      (WordPiece: white space, and case if `lower_case`) does not come back.

    Raises:
      ValueError: If an id is out of range.
    """
    kept = self._kept(token_ids)
    return self.codec.decode(kept) if kept else ''

  def num_bytes(self, token_ids: Iterable[int]) -> int:
    """Returns the UTF-8 bytes of the text of token ids; see `decode`."""
    # The byte of a part of a character would be decoded as three.
    kept = [self.codec.letter_of.get(i, i) for i in self._kept(token_ids)]
    return self.codec.num_bytes(kept) if kept else 0

  def pieces(self, token_ids: Iterable[int]) -> list[str]:
    """Returns the vocabulary entries of token ids, special ones too."""
    return [self.codec.piece(int(token_id)) for token_id in token_ids]

  def save(self, directory: str | os.PathLike) -> None:
    """Writes the vocabulary and `tokenizer.json` to a new directory.

    Args:
      directory: Must not exist, or be empty; `load_tokenizer` reads it.
    """
    file_name = _VOCABULARY_FILES[self.kind]
    with files.write_directory_atomically(directory) as temporary:
      (temporary / file_name).write_bytes(self.vocabulary)
      metadata = dataclasses.asdict(self._metadata())
      files.write_json(temporary / METADATA_FILE, metadata)

  def _kept(self, token_ids):
    kept = []
    for token_id in map(int, token_ids):
      if not 0 <= token_id < self.size:
        raise ValueError(
          f'Token ids must lie in 0 to {self.size - 1}, found {token_id}.'
        )
      if token_id not in (self.end_of_text_id, self.padding_id):
        kept.append(token_id)
    return kept

  def _metadata(self) -> _Metadata:
    names = [field.name for field in dataclasses.fields(_Metadata)]
    return _Metadata(**{name: getattr(self, name) for name in names[1:]})


def load_tokenizer(
  path: str | os.PathLike, *, lower_case: bool | None = None
) -> Tokenizer:
  """Loads a tokenizer.

  Args:
    path: A directory that `Tokenizer.save` wrote or that holds a
      `tokenizer.json` of Hugging Face's library, a WordPiece vocabulary file
      (`.txt`, as BERT's), or a SentencePiece model (`.model`, `.model.v1`).
    lower_case: For a WordPiece vocabulary file only: whether texts are
      lower-cased and stripped of accents. None: they are if no piece has an
      upper-case letter.

  Raises:
    UserError: If the path is none of these, is damaged, or lacks a special
      piece.
    ValueError: If `lower_case` is given for anything else than a `.txt` file.
  """
  path = pathlib.Path(path)
  is_file = path.is_file()
  if is_file and path.suffix == '.txt':
    return wordpiece_tokenizer(_read(path), str(path), lower_case=lower_case)
  if lower_case is not None:
    raise ValueError(
      '`lower_case` may be set for a WordPiece vocabulary file (.txt) only, '
      f'but {str(path)!r} settles it itself. Leave it out.'
    )
  if is_file and '.model' in path.suffixes:
    return _sentencepiece_tokenizer(_read(path), str(path))
  if (path / METADATA_FILE).is_file():
    return _load_directory(path)
  if not path.exists():
    found = 'does not exist'
  elif path.is_dir():
    found = f'is a directory without {METADATA_FILE}'
  else:
    found = 'is another file'
  raise UserError(
    f'A vocabulary must be a directory with {METADATA_FILE}, a WordPiece '
    f'`.txt` file or a SentencePiece `.model` file, but {str(path)!r} '
    f'{found}. Name one, or make one with `fedfish tokenizer train`.'
  )


def wordpiece_tokenizer(
  vocabulary: bytes, source: str, *, lower_case: bool | None = None
) -> Tokenizer:
  """Returns a tokenizer for a WordPiece vocabulary.

  Args:
    vocabulary: The bytes of a vocabulary file, one piece a line.
    source: The file's name, for errors.
    lower_case: See `load_tokenizer`.

  Raises:
    UserError: If the vocabulary is malformed or lacks a special piece.
  """
  pieces = wordpiece.parse_vocabulary(vocabulary, source)
  ids = wordpiece.special_ids(pieces, source)
  if lower_case is None:
    lower_case = wordpiece.is_lower_case(pieces)
  return Tokenizer(
    kind=WORDPIECE,
    size=len(pieces),
    lower_case=lower_case,
    vocabulary=vocabulary,
    codec=wordpiece.WordPieceCodec(
      pieces, lower_case=lower_case, source=source
    ),
    **ids,
  )


def _sentencepiece_tokenizer(model: bytes, source: str) -> Tokenizer:
  size, ids = sentencepiece.special_ids(model, source)
  return Tokenizer(
    kind=SENTENCEPIECE,
    size=size,
    lower_case=False,
    vocabulary=model,
    codec=sentencepiece.SentencePieceCodec(model, source),
    **ids,
  )


def _huggingface_tokenizer(
  data: bytes,
  contents: Mapping[str, typing.Any] | None,
  source: str,
  end_of_text: str | int | None,
) -> Tokenizer:
  codec = tokenizer_json.TokenizerJsonCodec(data, contents, source)
  return Tokenizer(
    kind=TOKENIZER_JSON,
    size=codec.size,
    lower_case=False,
    vocabulary=data,
    codec=codec,
    **codec.special_ids(end_of_text),
  )


def _load_directory(path: pathlib.Path) -> Tokenizer:
  data = _read(path / METADATA_FILE)
  if (contents := tokenizer_json.contents_or_none(data)) is not None:
    # What a run saved may be older than the check.
    tokenizer = _huggingface_tokenizer(
      data,
      contents,
      str(path / METADATA_FILE),
      tokenizer_json.configured_end_of_text(path),
    )
    tokenizer.codec.require_unknown_piece()
    return tokenizer
  metadata = _read_metadata(path / METADATA_FILE)
  file = path / _VOCABULARY_FILES[metadata.kind]
  if not file.is_file():
    raise UserError(
      f'The vocabulary {str(path)!r} must hold {file.name}, but does not. '
      'Copy the whole directory again.'
    )
  vocabulary = _read(file)
  sha256 = hashlib.sha256(vocabulary).hexdigest()
  if sha256 != metadata.sha256:
    raise UserError(
      f'The vocabulary {str(path)!r} is damaged: {file.name} must have the '
      f'sha256 {metadata.sha256[:16]} that {METADATA_FILE} states, but '
      f'has {sha256[:16]}. Copy the whole directory again.'
    )
  if metadata.kind == WORDPIECE:
    tokenizer = wordpiece_tokenizer(
      vocabulary, str(file), lower_case=metadata.lower_case
    )
  elif metadata.kind == TOKENIZER_JSON:
    tokenizer = _huggingface_tokenizer(
      vocabulary,
      tokenizer_json.contents_or_none(vocabulary),
      str(file),
      metadata.end_of_text_id,
    )
  else:
    tokenizer = _sentencepiece_tokenizer(vocabulary, str(file))
  found = dataclasses.asdict(tokenizer._metadata())
  for name, value in dataclasses.asdict(metadata).items():
    if found[name] != value and name != 'schema_version':
      raise UserError(
        f'The vocabulary {str(path)!r} is damaged: {METADATA_FILE} states '
        f'`{name}` {value}, but {file.name} has {found[name]}. Copy the whole '
        'directory again.'
      )
  return tokenizer


def _read_metadata(path: pathlib.Path) -> _Metadata:
  try:
    metadata = files.read_json(path, schema=_Metadata)
  except files.NewerSchemaError as error:
    raise UserError(
      f'{str(path)!r} has schema version {error.version}, but this version of '
      f'fedfish reads up to {SCHEMA_VERSION}. Update fedfish.'
    ) from error
  except json_values.WrongValueError as error:
    if error.name in ('', 'schema_version'):
      raise UserError(
        f'{str(path)!r} must describe a vocabulary, but has no '
        '`schema_version`. Name a directory that `fedfish tokenizer train` '
        'made.'
      ) from error
    expected = typing.get_type_hints(_Metadata)[error.name]
    expected = getattr(expected, '__name__', expected)
    raise UserError(
      f'{str(path)!r} must state `{error.name}` as {expected}, found '
      f'{error.found!r}. Copy the whole directory again.'
    ) from error
  except ValueError as error:
    raise UserError(
      f'{str(path)!r} must be JSON, but cannot be parsed ({error}). Copy the '
      'whole directory again.'
    ) from error
  if metadata.kind not in _VOCABULARY_FILES:
    raise UserError(
      f'{str(path)!r} must state a `kind` of {" or ".join(_VOCABULARY_FILES)}, '
      f'found {metadata.kind!r}. Copy the whole directory again.'
    )
  return metadata


def _read(path: pathlib.Path) -> bytes:
  try:
    return path.read_bytes()
  except OSError as error:
    raise _unreadable(path, error) from error


def _unreadable(path: pathlib.Path, error: OSError) -> UserError:
  return UserError(
    f'{str(path)!r} cannot be read ({error.strerror}). Change its '
    'permissions, or name another vocabulary.'
  )


def _utf8(text: bytes | str) -> bytes:
  if isinstance(text, str):
    return text.encode('utf-8', 'replace')
  try:
    text.decode('utf-8')
  except UnicodeDecodeError:
    return text.decode('utf-8', 'replace').encode('utf-8')
  return text

"""Tokenizers: text to token ids and back, loaded from and saved to disk."""

import dataclasses
import hashlib
import os
import pathlib
from collections.abc import Iterable, Sequence

import numpy as np

from tff_fedfish import files
from tff_fedfish.data import sentencepiece, tokenizer_json, wordpiece
from tff_fedfish.errors import UserError

WORDPIECE = 'wordpiece'
SENTENCEPIECE = 'sentencepiece'
TOKENIZER_JSON = 'tokenizer_json'
METADATA_FILE = 'tokenizer.json'
Codec = wordpiece.TextCodec | tokenizer_json.TokenizerJsonCodec
_VOCABULARY_FILES = {
  WORDPIECE: 'vocab.txt',
  SENTENCEPIECE: 'sentencepiece.model',
  # Not its own name, which the metadata have.
  TOKENIZER_JSON: 'huggingface.json',
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Metadata:
  """Facts that are read from `tokenizer.json`; the vocabulary has the rest."""

  schema_version: int = 1
  kind: str
  lower_case: bool
  end_of_text_id: int
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
  codec: Codec = dataclasses.field(repr=False)
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
    # Reports compare the vocabularies of runs by the bytes of this file.
    metadata = {'schema_version': _Metadata.schema_version}
    for name in (
      *('kind', 'size', 'lower_case'),
      *('end_of_text_id', 'padding_id', 'unknown_id', 'sha256'),
    ):
      metadata[name] = getattr(self, name)
    with files.write_directory_atomically(directory) as temporary:
      file = temporary / _VOCABULARY_FILES[self.kind]
      file.write_bytes(self.vocabulary)
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
    model = _read(path)
    codec = sentencepiece.SentencePieceCodec(model, str(path))
    return _tokenizer(SENTENCEPIECE, model, codec)
  if (path / METADATA_FILE).is_file():
    return _load_directory(path)
  raise UserError(
    f'A vocabulary must be a directory with {METADATA_FILE}, a WordPiece '
    f'`.txt` file or a SentencePiece `.model` file, but {str(path)!r} '
    f'{"is neither" if path.exists() else "does not exist"}. Name one, or make '
    'one with `fedfish tokenizer train`.'
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
  codec = wordpiece.WordPieceCodec(vocabulary, source, lower_case)
  return _tokenizer(WORDPIECE, vocabulary, codec)


def _tokenizer(kind: str, vocabulary: bytes, codec: Codec) -> Tokenizer:
  return Tokenizer(
    kind=kind,
    size=codec.size,
    lower_case=codec.lower_case,
    end_of_text_id=codec.end_of_text_id,
    padding_id=codec.padding_id,
    unknown_id=codec.unknown_id,
    vocabulary=vocabulary,
    codec=codec,
  )


def _load_directory(path: pathlib.Path) -> Tokenizer:
  data = _read(path / METADATA_FILE)
  if (contents := tokenizer_json.contents_or_none(data)) is not None:
    codec = tokenizer_json.TokenizerJsonCodec(
      data,
      contents,
      str(path / METADATA_FILE),
      tokenizer_json.configured_end_of_text(path),
    )
    # At the start, not at the first text in training that it cannot express.
    codec.encode_batch([tokenizer_json.TRIAL_TEXT])
    return _tokenizer(TOKENIZER_JSON, data, codec)
  metadata = _read_metadata(path / METADATA_FILE)
  file = path / _VOCABULARY_FILES[metadata.kind]
  vocabulary = _read(file)
  if hashlib.sha256(vocabulary).hexdigest() != metadata.sha256:
    raise UserError(
      f'{str(file)!r} must have the sha256 that {METADATA_FILE} states, '
      f'{metadata.sha256[:16]}, but has another: it was changed or damaged. '
      'Copy the whole directory again.'
    )
  if metadata.kind == WORDPIECE:
    codec = wordpiece.WordPieceCodec(vocabulary, str(file), metadata.lower_case)
  elif metadata.kind == SENTENCEPIECE:
    codec = sentencepiece.SentencePieceCodec(vocabulary, str(file))
  else:
    codec = tokenizer_json.TokenizerJsonCodec(
      vocabulary,
      tokenizer_json.contents_or_none(vocabulary),
      str(file),
      metadata.end_of_text_id,
    )
  return _tokenizer(metadata.kind, vocabulary, codec)


def _read_metadata(path: pathlib.Path) -> _Metadata:
  try:
    metadata = files.read_json(path, schema=_Metadata)
    if metadata.kind not in _VOCABULARY_FILES:
      raise ValueError(f'its `kind` is {metadata.kind!r}')
  except ValueError as error:
    raise UserError(
      f'{str(path)!r} must describe a vocabulary as `fedfish tokenizer train` '
      f'of this version or an earlier one does, but does not ({error}). Copy '
      'the whole directory again, or update fedfish.'
    ) from error
  return metadata


def _read(path: pathlib.Path) -> bytes:
  try:
    return path.read_bytes()
  except OSError as error:
    raise UserError(
      f'The vocabulary {str(path)!r} cannot be read ({error.strerror}). Change '
      'its permissions, copy the whole directory again, or name another one.'
    ) from error


def _utf8(text: bytes | str) -> bytes:
  if isinstance(text, str):
    return text.encode('utf-8', 'replace')
  try:
    text.decode('utf-8')
  except UnicodeDecodeError:
    return text.decode('utf-8', 'replace').encode('utf-8')
  return text

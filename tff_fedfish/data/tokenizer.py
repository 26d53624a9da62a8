"""Text to token ids and back, whatever the kind of vocabulary."""

import abc
import hashlib
import itertools
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from tff_fedfish import files

METADATA_FILE = 'tokenizer.json'
SCHEMA_VERSION = 1


class Tokenizer(abc.ABC):
  """Turns text into token ids and back. Thread safe, never changes.

  Made by `load_tokenizer`. There is a subclass for each kind of vocabulary.
  """

  kind: ClassVar[str]
  """'wordpiece', 'sentencepiece' or 'tokenizer_json'."""
  vocabulary_file: ClassVar[str]
  """Name of the vocabulary in a directory that `save` writes."""
  size: int
  """Number of token ids; they are 0 to size - 1."""
  lower_case: bool = False
  """Whether texts are lower-cased and stripped of accents first."""
  end_of_text_id: int
  """Follows every document; `encode_batch` does not add it."""
  padding_id: int
  """Fills up sequences; may equal `end_of_text_id`, as padding is masked."""
  unknown_id: int | None
  """Stands for what the vocabulary cannot express; None: it has all bytes."""
  letter_of: Mapping[int, int] = {}
  """Ids of pieces that are single bytes, each to that of a letter."""

  def __init__(self, vocabulary: bytes):
    """Keeps the bytes of the vocabulary file."""
    self.vocabulary = vocabulary

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
    return self._encode([_utf8(text) for text in texts]) if texts else []

  def decode(self, token_ids: Iterable[int]) -> str:
    """Returns the text of token ids, without end-of-text and padding.

    Args:
      token_ids: Ids from 0 to `size - 1`.

    Returns:
      Text that reads like the original; what tokenization normalized away
      (WordPiece: white space, and case if `lower_case`) does not come back.
    """
    kept = self._kept(token_ids)
    return self._decode(kept) if kept else ''

  def num_bytes(self, token_ids: Iterable[int]) -> int:
    """Returns the UTF-8 bytes of the text of token ids; see `decode`."""
    # The byte of a part of a character would be decoded as three.
    kept = [self.letter_of.get(i, i) for i in self._kept(token_ids)]
    return self._num_bytes(kept) if kept else 0

  def pieces(self, token_ids: Iterable[int]) -> list[str]:
    """Returns the vocabulary entries of token ids, special ones too."""
    return [self._piece(int(token_id)) for token_id in token_ids]

  def save(self, directory: str | os.PathLike) -> None:
    """Writes the vocabulary and `tokenizer.json` to a new directory.

    Args:
      directory: Must not exist, or be empty; `load_tokenizer` reads it.
    """
    # Reports compare the vocabularies of runs by the bytes of this file.
    metadata = {'schema_version': SCHEMA_VERSION}
    for name in (
      *('kind', 'size', 'lower_case'),
      *('end_of_text_id', 'padding_id', 'unknown_id', 'sha256'),
    ):
      metadata[name] = getattr(self, name)
    with files.write_directory_atomically(
      directory, marker=METADATA_FILE
    ) as temporary:
      file = temporary / self.vocabulary_file
      file.write_bytes(self.vocabulary)
      files.sync(file)
      files.write_json(temporary / METADATA_FILE, metadata)

  def _kept(self, token_ids: Iterable[int]) -> list[int]:
    special = (self.end_of_text_id, self.padding_id)
    return [i for i in map(int, token_ids) if i not in special]

  @abc.abstractmethod
  def _encode(self, texts: list[bytes]) -> list[np.ndarray]:
    """Returns for each text, in UTF-8, its token ids, int32 [num_tokens]."""

  @abc.abstractmethod
  def _decode(self, token_ids: list[int]) -> str:
    """Returns the text of ids, at least one."""

  def _num_bytes(self, token_ids: list[int]) -> int:
    return len(self._decode(token_ids).encode())

  @abc.abstractmethod
  def _piece(self, token_id: int) -> str:
    """Returns the vocabulary entry of an id."""


def encode_by_tensorflow(
  tokenizer: Any, texts: Sequence[bytes]
) -> list[np.ndarray]:
  """Returns the ids of texts by a tokenizer of tensorflow-text."""
  import tensorflow as tf

  with tf.device('/CPU:0'):
    ragged = tokenizer.tokenize(tf.constant(texts))
  token_ids = ragged.flat_values.numpy()
  splits = ragged.row_splits.numpy()
  return [token_ids[i:j] for i, j in itertools.pairwise(splits)]


def _utf8(text: bytes | str) -> bytes:
  if isinstance(text, str):
    return text.encode('utf-8', 'replace')
  try:
    text.decode('utf-8')
  except UnicodeDecodeError:
    return text.decode('utf-8', 'replace').encode('utf-8')
  return text

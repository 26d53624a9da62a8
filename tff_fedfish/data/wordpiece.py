"""WordPiece vocabularies: BERT's file format, special pieces, encoding."""

import functools
import textwrap
from collections.abc import Sequence

import numpy as np

from tff_fedfish.data.tokenizer import Tokenizer, encode_by_tensorflow
from tff_fedfish.errors import UserError

# Ours first, then BERT's name for the piece that ends a text.
END_OF_TEXT_PIECES = ('[END]', '[SEP]')
PADDING_PIECE = '[PAD]'
UNKNOWN_PIECE = '[UNK]'
# A longer word is unknown as a whole.
MAX_WORD_BYTES = 100
_CONTINUATION = '##'


class WordPieceTokenizer(Tokenizer):
  """Encodes and decodes with a WordPiece vocabulary (Devlin et al., 2019).

  Splits at white space and around punctuation, then greedily into the longest
  pieces; with `lower_case`, letters are lowered and accents removed first.
  """

  kind = 'wordpiece'
  vocabulary_file = 'vocab.txt'

  def __init__(
    self, vocabulary: bytes, source: str, lower_case: bool | None = None
  ):
    """Reads the pieces.

    Args:
      vocabulary: The bytes of a vocabulary file, one piece a line.
      source: The file's name, for errors.
      lower_case: Whether texts are lower-cased and stripped of accents. None:
        they are if no piece but a bracketed one has an upper-case letter.

    Raises:
      UserError: If the vocabulary is malformed or lacks a special piece.
    """
    super().__init__(vocabulary)
    self._pieces = _parse(vocabulary, source)
    self.size = len(self._pieces)
    self.end_of_text_id = self._id_of(END_OF_TEXT_PIECES, source)
    self.padding_id = self._id_of([PADDING_PIECE], source)
    self.unknown_id = self._id_of([UNKNOWN_PIECE], source)
    if lower_case is None:
      lower_case = all(
        piece == piece.lower() or (piece[0], piece[-1]) == ('[', ']')
        for piece in self._pieces
      )
    self.lower_case = lower_case
    self._source = source

  @functools.cached_property
  def _library(self):
    """The tokenizer of tensorflow-text, loaded when it is first used."""
    # Late: sizes and hashes of vocabularies need no TensorFlow.
    import tensorflow as tf
    import tensorflow_text as tf_text

    try:
      with tf.device('/CPU:0'):
        # The same ids as `BertTokenizer`, in a seventh of the time.
        return tf_text.FastBertTokenizer(
          self._pieces,
          suffix_indicator=_CONTINUATION,
          unknown_token=UNKNOWN_PIECE,
          max_bytes_per_word=MAX_WORD_BYTES,
          token_out_type=tf.int32,
          lower_case_nfd_strip_accents=self.lower_case,
        )
    except (RuntimeError, ValueError) as error:
      reason = textwrap.shorten(str(error), 200)
      raise UserError(
        f'{self._source!r} must be a WordPiece vocabulary, but no tokenizer '
        f'can be built from it ({reason}). Name another file.'
      ) from error

  def _encode(self, texts: list[bytes]) -> list[np.ndarray]:
    return encode_by_tensorflow(self._library, texts)

  def _piece(self, token_id: int) -> str:
    return self._pieces[token_id]

  def _decode(self, token_ids: list[int]) -> str:
    """Returns the pieces with words set apart by a space."""
    text = ''
    for token_id in token_ids:
      piece = self._pieces[token_id]
      if text and piece.startswith(_CONTINUATION) and piece != _CONTINUATION:
        text += piece.removeprefix(_CONTINUATION)
      else:
        text += f' {piece}' if text else piece
    return text

  def _id_of(self, candidates: Sequence[str], source: str) -> int:
    """Returns the id of the first candidate that is a piece."""
    for piece in candidates:
      if piece in self._pieces:
        return self._pieces.index(piece)
    raise UserError(
      f'{source!r} must hold the piece {" or ".join(candidates)}, but none of '
      f'its {self.size} lines does. Add it, or train a vocabulary with '
      '`fedfish tokenizer train`.'
    )


def _parse(vocabulary: bytes, source: str) -> list[str]:
  """Returns the pieces of a vocabulary file in the order of ids."""
  try:
    lines = vocabulary.decode('utf-8').split('\n')
  except UnicodeDecodeError as error:
    raise UserError(
      f'{source!r} must be a vocabulary in UTF-8, one piece a line, but byte '
      f'{error.start} is not UTF-8. Name a WordPiece vocabulary file.'
    ) from error
  # Not `splitlines`: it would also split at characters that a piece may hold.
  pieces = [line.removesuffix('\r') for line in lines]
  if pieces[-1] == '':
    pieces.pop()
  seen = set()
  for line_num, piece in enumerate(pieces, start=1):
    if not piece or piece in seen:
      raise UserError(
        f'{source!r} must hold one piece a line, each once, but {piece!r} in '
        f'line {line_num} is empty or stands above. Remove it, or name a '
        'WordPiece vocabulary file.'
      )
    seen.add(piece)
  return pieces

"""WordPiece vocabularies: BERT's file format, special pieces, encoding."""

import textwrap
from collections.abc import Sequence

from tff_fedfish.data.text_codec import TextCodec
from tff_fedfish.errors import UserError

# Ours first, then BERT's name for the piece that ends a text.
END_OF_TEXT_PIECES = ('[END]', '[SEP]')
PADDING_PIECE = '[PAD]'
UNKNOWN_PIECE = '[UNK]'
# A longer word is unknown as a whole.
MAX_WORD_BYTES = 100
_CONTINUATION = '##'


def parse_vocabulary(data: bytes, source: str) -> list[str]:
  """Returns the pieces of a vocabulary file: one a line, in the order of ids.

  Args:
    data: The file's bytes.
    source: The file's name, for errors.

  Raises:
    UserError: If the file is not text, or a piece is empty or stands twice.
  """
  try:
    lines = data.decode('utf-8').split('\n')
  except UnicodeDecodeError as error:
    raise UserError(
      f'{source!r} must be a vocabulary in UTF-8, one piece a line, but byte '
      f'{error.start} is not UTF-8. Name a WordPiece vocabulary file.'
    ) from error
  # Not `splitlines`: it would also split at characters that a piece may hold.
  pieces = [line.removesuffix('\r') for line in lines]
  if pieces[-1] == '':
    pieces.pop()
  line_of = {}
  for line_num, piece in enumerate(pieces, start=1):
    if not piece:
      raise UserError(
        f'{source!r} must hold one piece a line, but line {line_num} is '
        'empty. Name a WordPiece vocabulary file.'
      )
    if piece in line_of:
      raise UserError(
        f'{source!r} must hold every piece once, but {piece!r} stands in '
        f'lines {line_of[piece]} and {line_num}. Remove one of them.'
      )
    line_of[piece] = line_num
  return pieces


def special_ids(pieces: Sequence[str], source: str) -> dict[str, int]:
  """Returns the ids of the special pieces.

  They are `end_of_text_id` ([END], or [SEP] as in BERT's files), `padding_id`
  ([PAD]) and `unknown_id` ([UNK]).

  Raises:
    UserError: If one of them is missing; names `source`, the file.
  """
  id_of = {piece: i for i, piece in enumerate(pieces)}
  choices = {
    'end_of_text_id': END_OF_TEXT_PIECES,
    'padding_id': (PADDING_PIECE,),
    'unknown_id': (UNKNOWN_PIECE,),
  }
  found = {}
  for name, candidates in choices.items():
    present = [piece for piece in candidates if piece in id_of]
    if not present:
      raise UserError(
        f'{source!r} must hold the piece {" or ".join(candidates)}, but none '
        f'of its {len(pieces)} lines does. Add it, or train a vocabulary '
        'with `fedfish tokenizer train`.'
      )
    found[name] = id_of[present[0]]
  return found


def is_lower_case(pieces: Sequence[str]) -> bool:
  """Says whether no piece but the bracketed ones has an upper-case letter."""
  return not any(
    piece != piece.lower()
    for piece in pieces
    if not (piece.startswith('[') and piece.endswith(']'))
  )


class WordPieceCodec(TextCodec):
  """Encodes and decodes with a WordPiece vocabulary (Devlin et al., 2019).

  Splits at white space and around punctuation, then greedily into the longest
  pieces; with `lower_case`, letters are lowered and accents removed first.
  """

  def __init__(self, pieces: Sequence[str], *, lower_case: bool, source: str):
    """Builds the tokenizer's tables.

    Args:
      pieces: The vocabulary, with [UNK].
      lower_case: Whether texts are lower-cased and stripped of accents.
      source: The file's name, for errors.

    Raises:
      UserError: If the pieces cannot be used together.
    """
    import tensorflow as tf
    import tensorflow_text as tf_text

    self._pieces = list(pieces)
    try:
      with tf.device('/CPU:0'):
        # The same ids as `BertTokenizer`, in a seventh of the time.
        self.tokenizer = tf_text.FastBertTokenizer(
          self._pieces,
          suffix_indicator=_CONTINUATION,
          unknown_token=UNKNOWN_PIECE,
          max_bytes_per_word=MAX_WORD_BYTES,
          token_out_type=tf.int32,
          lower_case_nfd_strip_accents=lower_case,
        )
    except (RuntimeError, ValueError) as error:
      reason = textwrap.shorten(str(error), 200)
      raise UserError(
        f'{source!r} must be a WordPiece vocabulary, but no tokenizer can be '
        f'built from it ({reason}). Name another file.'
      ) from error

  def piece(self, token_id: int) -> str:
    """Returns the vocabulary entry of an id."""
    return self._pieces[token_id]

  def decode(self, token_ids: Sequence[int]) -> str:
    """Returns the pieces with words set apart by a space."""
    text = ''
    for token_id in token_ids:
      piece = self._pieces[token_id]
      if text and piece.startswith(_CONTINUATION) and piece != _CONTINUATION:
        text += piece.removeprefix(_CONTINUATION)
      else:
        text += f' {piece}' if text else piece
    return text

"""Vocabularies of Hugging Face's `tokenizers`: their special pieces, encoding.

A `tokenizer.json` says all of a tokenizer but which piece ends a text, which a
`tokenizer_config.json` beside it may say.
"""

import functools
import pathlib
import textwrap
from typing import Any

import numpy as np

from tff_fedfish import files, json_values
from tff_fedfish.data.sentencepiece import BYTE_PIECES
from tff_fedfish.data.tokenizer import Tokenizer
from tff_fedfish.errors import UserError

CONFIG_FILE = 'tokenizer_config.json'
TRIAL_TEXT = ''.join(
  map(chr, [*range(0x800), *range(0x800, 0x110000, 0x800)])
).encode(errors='ignore')
"""Holds all bytes that UTF-8 has, and characters that few vocabularies have."""
# Where no configuration names another one, in this order.
_END_OF_TEXT_PIECES = (
  '<|endoftext|>',
  '<|end_of_text|>',
  '</s>',
  '<eos>',
  '[END]',
  '[SEP]',
)


def configured_end_of_text(directory: pathlib.Path) -> str | None:
  """Returns the piece that a directory's `tokenizer_config.json` names.

  None if there is no such file, or it names none.

  Raises:
    UserError: If the file is damaged, or names something else.
  """
  path = directory / CONFIG_FILE
  if not path.is_file():
    return None
  with files.explained(
    path,
    'a JSON object with a piece, or null, as `eos_token`',
    'Write the piece that ends a text there, or copy the directory again.',
  ):
    value = files.parse_json(path.read_bytes())
    piece = json_values.from_json(dict[str, Any], value, '').get('eos_token')
    # Older versions describe the piece by an object.
    if isinstance(piece, dict):
      piece = piece.get('content', 0)
    return json_values.from_json(str | None, piece, 'eos_token')


class JsonTokenizer(Tokenizer):
  """Encodes and decodes with a `tokenizer.json`.

  Padding is the end of text, as it is masked. `unknown_id` is None where the
  vocabulary expresses every byte.
  """

  kind = 'tokenizer_json'
  # Not its own name, which the metadata have.
  vocabulary_file = 'huggingface.json'

  def __init__(
    self, vocabulary: bytes, source: str, end_of_text: str | int | None
  ):
    """Loads a tokenizer.

    Args:
      vocabulary: The bytes of the file.
      source: The file's name, for errors.
      end_of_text: The piece that ends a text, or its id. None: the first of
        the usual ones that is a piece.

    Raises:
      UserError: If it is none, its ids are not 0 to their number less 1, or
        no piece ends a text.
    """
    import tokenizers

    super().__init__(vocabulary)
    self._source = source
    try:
      self._library = tokenizers.Tokenizer.from_buffer(vocabulary)
      model = files.parse_json(vocabulary)['model']
    # What the library raises is of no narrower class.
    except Exception as error:
      reason = textwrap.shorten(str(error), 200)
      raise UserError(
        f'{source!r} must be a tokenizer.json, but cannot be loaded as one '
        f'({reason}). Save it with a version of `tokenizers` that this one '
        f'({tokenizers.__version__}) reads.'
      ) from error
    # Also as a step of others.
    self._is_byte_level = 'ByteLevel(' in repr(self._library.decoder)
    ids = [*map(self._library.token_to_id, BYTE_PIECES)]
    self.letter_of = {} if None in ids else dict.fromkeys(ids, ids[ord('A')])
    # Texts are cut into sequences later.
    self._library.no_truncation()
    self._library.no_padding()
    ids = self._library.get_vocab(with_added_tokens=True).values()
    self.size = len(set(ids))
    if self.size == 0 or max(ids) != self.size - 1:
      raise UserError(
        f'{source!r} must have the token ids 0 to their number less 1, but has '
        f'{self.size} up to {max(ids, default=None)}. Name another vocabulary.'
      )
    self.end_of_text_id = self.padding_id = self._end_of_text_id(end_of_text)
    # Of unigrams an id, of other models a piece.
    self.unknown_id = None
    if isinstance(self._library.model, tokenizers.models.Unigram):
      self.unknown_id = model.get('unk_id')
    elif (piece := model.get('unk_token')) is not None:
      self.unknown_id = self._library.token_to_id(piece)

  def _end_of_text_id(self, end_of_text: str | int | None) -> int:
    pieces = _END_OF_TEXT_PIECES if end_of_text is None else [end_of_text]
    for piece in pieces:
      end_id = piece
      if isinstance(piece, str):
        end_id = self._library.token_to_id(piece)
      if end_id is not None and 0 <= end_id < self.size:
        return end_id
    raise UserError(
      f'{self._source!r} must have the piece that ends a text, '
      f'{" or ".join(map(str, pieces))}, but has none. Name it as `eos_token` '
      f'in {CONFIG_FILE} beside it.'
    )

  def _encode(self, texts: list[bytes]) -> list[np.ndarray]:
    try:
      encoded = self._library.encode_batch_fast(
        [text.decode() for text in texts], add_special_tokens=False
      )
    except Exception as error:  # As in `__init__`.
      raise UserError(
        f'{self._source!r} must encode every text, but does not '
        f'({textwrap.shorten(str(error), 200)}). Use a vocabulary whose '
        '`unk_token` or `unk_id` is a piece in its `model.vocab`.'
      ) from error
    return [np.array(found.ids, np.int32) for found in encoded]

  def _piece(self, token_id: int) -> str:
    return self._library.id_to_token(token_id)

  def _decode(self, token_ids: list[int]) -> str:
    return self._library.decode(token_ids, skip_special_tokens=False)

  def _num_bytes(self, token_ids: list[int]) -> int:
    """Counts byte-level pieces as their bytes.

    A part of a character by itself would be decoded as another one.
    """
    if self._is_byte_level:
      return sum(self._lengths[i] for i in token_ids)
    return super()._num_bytes(token_ids)

  @functools.cached_property
  def _lengths(self) -> list[int]:
    """Bytes of byte-level pieces, and of added ones, which are texts."""
    from tokenizers import pre_tokenizers

    signs = {*pre_tokenizers.ByteLevel.alphabet()}
    added = self._library.get_added_tokens_decoder()
    return [
      # An added piece may be of nothing but signs, too: é is one, of a byte.
      len(
        piece if i not in added and signs.issuperset(piece) else piece.encode()
      )
      for i, piece in enumerate(map(self._piece, range(self.size)))
    ]

"""Vocabularies of Hugging Face's `tokenizers`: their special pieces, encoding.

A `tokenizer.json` says all of a tokenizer but which piece ends a text, which a
`tokenizer_config.json` beside it may say.
"""

import functools
import pathlib
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tff_fedfish import files
from tff_fedfish.data.sentencepiece import BYTE_PIECES
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


def contents_or_none(data: bytes) -> dict[str, Any] | None:
  """Returns the object that a file of that library holds; None: it is none."""
  try:
    value = files.parse_json(data)
  except ValueError:
    return None
  model = value.get('model') if isinstance(value, dict) else None
  return value if isinstance(model, dict) else None


def configured_end_of_text(directory: pathlib.Path) -> str | None:
  """Returns the piece that a directory's `tokenizer_config.json` names.

  None if there is no such file, or it names none.

  Raises:
    UserError: If the file is damaged, or names something else.
  """
  path = directory / CONFIG_FILE
  try:
    value = files.parse_json(path.read_bytes())
    if not isinstance(value, dict):
      raise ValueError('it is no object')
    piece = value.get('eos_token')
    # Older versions describe the piece by an object.
    if isinstance(piece, dict):
      piece = piece.get('content', '')
    # JSON may hold lone surrogates, which are no text.
    is_text = type(piece) is str and re.fullmatch(r'[^\ud800-\udfff]+', piece)
    if piece is not None and not is_text:
      raise ValueError(f'it has {piece!r}')
  except FileNotFoundError:
    return None
  except (ValueError, OSError) as error:
    raise UserError(
      f'{str(path)!r} must be a JSON object with a piece, or null, as '
      f'`eos_token`, but is not ({error}). Write the piece that ends a text '
      'there, or copy the whole directory again.'
    ) from error
  return piece


def _types(decoder):
  """Yields the types of a decoder and of its steps, which may have steps."""
  yield decoder.get('type')
  for step in decoder.get('decoders', ()):
    yield from _types(step)


class TokenizerJsonCodec:
  """Encodes and decodes with a `tokenizer.json`.

  Attributes are those of `TextCodec` but for `tokenizer`. Padding is the end of
  text, as it is masked. `unknown_id` is None where the vocabulary expresses
  every byte.
  """

  lower_case = False

  def __init__(
    self,
    data: bytes,
    contents: Mapping[str, Any] | None,
    source: str,
    end_of_text: str | int | None,
  ):
    """Loads a tokenizer.

    Args:
      data: The bytes of the file.
      contents: Result of `contents_or_none`.
      source: The file's name, for errors.
      end_of_text: The piece that ends a text, or its id. None: the first of
        the usual ones that is a piece.

    Raises:
      UserError: If it is none, its ids are not 0 to their number less 1, or
        no piece ends a text.
    """
    import tokenizers

    self._source = source
    try:
      self._tokenizer = tokenizers.Tokenizer.from_buffer(data)
      if contents is None:
        raise ValueError('it is no JSON object with a `model`')
    # What the library raises is of no narrower class.
    except Exception as error:
      reason = textwrap.shorten(str(error), 200)
      raise UserError(
        f'{source!r} must be a tokenizer.json, but cannot be loaded as one '
        f'({reason}). Save it with a version of `tokenizers` that this one '
        f'({tokenizers.__version__}) reads.'
      ) from error
    self._is_byte_level = 'ByteLevel' in _types(contents.get('decoder') or {})
    # Of unigrams an id, of other models a piece.
    is_unigram = isinstance(self._tokenizer.model, tokenizers.models.Unigram)
    self._unknown_name = 'unk_id' if is_unigram else 'unk_token'
    unknown = contents['model'].get(self._unknown_name)
    ids = [*map(self._tokenizer.token_to_id, BYTE_PIECES)]
    self.letter_of = {} if None in ids else dict.fromkeys(ids, ids[ord('A')])
    # Texts are cut into sequences later.
    self._tokenizer.no_truncation()
    self._tokenizer.no_padding()
    ids = self._tokenizer.get_vocab(with_added_tokens=True).values()
    self.size = len(set(ids))
    if self.size == 0 or max(ids) != self.size - 1:
      raise UserError(
        f'{source!r} must have the token ids 0 to their number less 1, but has '
        f'{self.size} up to {max(ids, default=None)}. Name another vocabulary.'
      )
    self.end_of_text_id = self.padding_id = self._end_of_text_id(end_of_text)
    self.unknown_id = unknown
    if type(unknown) is str:
      self.unknown_id = self._tokenizer.token_to_id(unknown)

  def _end_of_text_id(self, end_of_text: str | int | None) -> int:
    pieces = _END_OF_TEXT_PIECES if end_of_text is None else [end_of_text]
    for piece in pieces:
      end_id = piece
      if isinstance(piece, str):
        end_id = self._tokenizer.token_to_id(piece)
      if end_id is not None and 0 <= end_id < self.size:
        return end_id
    raise UserError(
      f'{self._source!r} must have the piece that ends a text, '
      f'{" or ".join(map(str, pieces))}, but has none. Name it as `eos_token` '
      f'in {CONFIG_FILE} beside it.'
    )

  def encode_batch(self, texts: Sequence[bytes]) -> list[np.ndarray]:
    """Returns for each text, in UTF-8, its token ids, int32 [num_tokens]."""
    try:
      encoded = self._tokenizer.encode_batch_fast(
        [text.decode() for text in texts], add_special_tokens=False
      )
    except Exception as error:  # As in `__init__`.
      raise self._refusal(textwrap.shorten(str(error), 200)) from error
    return [np.array(found.ids, np.int32) for found in encoded]

  def piece(self, token_id: int) -> str:
    """Returns the vocabulary entry of an id."""
    return self._tokenizer.id_to_token(token_id)

  def decode(self, token_ids: Sequence[int]) -> str:
    """Returns the text of the ids."""
    return self._tokenizer.decode(token_ids, skip_special_tokens=False)

  def num_bytes(self, token_ids: Sequence[int]) -> int:
    """Returns the UTF-8 bytes of the text of the ids.

    Byte-level pieces count as their bytes: a part of a character by itself is
    decoded as another one.
    """
    if self._is_byte_level:
      return sum(self._lengths[i] for i in token_ids)
    return len(self.decode(token_ids).encode())

  def _refusal(self, reason):
    what = 'number' if self._unknown_name == 'unk_id' else 'name'
    return UserError(
      f'{self._source!r} must encode every text, but does not ({reason}). Use '
      f'a vocabulary whose `{self._unknown_name}` is the {what} of a piece in '
      'its `model.vocab`.'
    )

  @functools.cached_property
  def _lengths(self) -> list[int]:
    """Bytes of byte-level pieces, and of added ones, which are texts."""
    from tokenizers import pre_tokenizers

    signs = {*pre_tokenizers.ByteLevel.alphabet()}
    added = self._tokenizer.get_added_tokens_decoder()
    return [
      # An added piece may be of nothing but signs, too: é is one, of a byte.
      len(
        piece if i not in added and signs.issuperset(piece) else piece.encode()
      )
      for i, piece in enumerate(map(self.piece, range(self.size)))
    ]

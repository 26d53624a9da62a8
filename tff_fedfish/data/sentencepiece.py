"""SentencePiece models: the special pieces of a model file, and encoding."""

import functools
import textwrap

import numpy as np

from tff_fedfish.data import protos
from tff_fedfish.data.tokenizer import Tokenizer, encode_by_tensorflow
from tff_fedfish.errors import UserError

BYTE_PIECES = [f'<0x{byte:02X}>' for byte in range(256)]
"""Pieces that spell characters which a vocabulary does not have."""

# Of SentencePiece's own message definition, what is read here; nothing
# installed carries the generated class. What is repeated here is optional
# there, with a default other than 0: [] is the default.
_FIELDS = {
  'Piece': [
    'optional string piece 1',
    'optional float score 2',
    'optional int32 type 3',
  ],
  'Trainer': [
    'optional int32 model_type 3',
    'optional int32 byte_fallback 35',
    'optional string eos_piece 47',
    'optional string pad_piece 48',
  ],
  'Normalizer': [
    'optional bytes precompiled_charsmap 2',
    'repeated int32 add_dummy_prefix 3',
    'repeated int32 remove_extra_whitespaces 4',
    'repeated int32 escape_whitespaces 5',
  ],
  'Model': [
    'repeated Piece pieces 1',
    'optional Trainer trainer_spec 2',
    'optional Normalizer normalizer_spec 3',
  ],
}
_END_PIECE, _PADDING_PIECE = '</s>', '<pad>'
_UNKNOWN_TYPE = 2
_CONTROL_TYPE = 3


@functools.cache
def model_class() -> type:
  """Returns the class of a model's message."""
  return protos.message_classes('sentencepiece', _FIELDS).Model


class SentencePieceTokenizer(Tokenizer):
  """Encodes and decodes with a SentencePiece model (Kudo and Richardson, 2018).

  The model file says how text is normalized, case included.
  """

  kind = 'sentencepiece'
  vocabulary_file = 'sentencepiece.model'

  def __init__(self, vocabulary: bytes, source: str):
    """Reads the special pieces of a model.

    Args:
      vocabulary: The bytes of a `.model` file.
      source: The file's name, for errors.

    Raises:
      UserError: If the bytes are no SentencePiece model, one that cannot end a
        text, or one that contradicts itself.
    """
    super().__init__(vocabulary)
    self._find_special_pieces(source)
    self._source = source

  @functools.cached_property
  def _library(self):
    """The tokenizer of tensorflow-text, loaded when it is first used."""
    # Late: sizes and hashes of vocabularies need no TensorFlow.
    import tensorflow as tf
    import tensorflow_text as tf_text

    try:
      with tf.device('/CPU:0'):
        library = tf_text.SentencepieceTokenizer(
          self.vocabulary, out_type=tf.int32
        )
        # Loading is lazy: a fault shows when the model is first asked.
        library.string_to_id(['']).numpy()
    except tf.errors.OpError as error:
      reason = textwrap.shorten(error.message, 200)
      raise UserError(
        f'{self._source!r} must be a SentencePiece model, but cannot be loaded '
        f'as one ({reason}). Name another file.'
      ) from error
    return library

  def _find_special_pieces(self, source):
    """Sets the size and special ids; without padding the end of text serves."""
    from google.protobuf.message import DecodeError

    try:
      model = model_class().FromString(self.vocabulary)
    except DecodeError as error:
      raise UserError(
        f'{source!r} must be a SentencePiece model, but it cannot be parsed as '
        'one. Name a `.model` file, or train a vocabulary with `fedfish '
        'tokenizer train`.'
      ) from error
    pieces = list(enumerate(model.pieces))
    unknown = [i for i, piece in pieces if piece.type == _UNKNOWN_TYPE]
    control = {p.piece: i for i, p in pieces if p.type == _CONTROL_TYPE}
    end_piece = model.trainer_spec.eos_piece or _END_PIECE
    if len(unknown) != 1 or end_piece not in control:
      raise UserError(
        f'{source!r} must be a SentencePiece model with one unknown piece and '
        f'the end-of-text piece {end_piece!r}; of its {len(pieces)} pieces '
        f'{len(unknown)} are unknown pieces and {int(end_piece in control)} '
        'end texts. Train a model with both.'
      )
    self.size, self.unknown_id = len(pieces), unknown[0]
    self.end_of_text_id = control[end_piece]
    id_of = {piece.piece: i for i, piece in pieces}
    if id_of.keys() >= {*BYTE_PIECES}:
      letter = id_of[BYTE_PIECES[ord('A')]]
      self.letter_of = {id_of[piece]: letter for piece in BYTE_PIECES}
    padding_piece = model.trainer_spec.pad_piece or _PADDING_PIECE
    self.padding_id = control.get(padding_piece, self.end_of_text_id)

  def _encode(self, texts: list[bytes]) -> list[np.ndarray]:
    return encode_by_tensorflow(self._library, texts)

  def _piece(self, token_id: int) -> str:
    return self._library.id_to_string(token_id).numpy().decode('utf-8')

  def _decode(self, token_ids: list[int]) -> str:
    import tensorflow as tf

    with tf.device('/CPU:0'):
      text = self._library.detokenize(tf.constant(token_ids, tf.int32))
    return text.numpy().decode('utf-8', 'replace')

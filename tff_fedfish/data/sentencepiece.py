"""SentencePiece models: the special pieces of a model file, and encoding."""

import functools
import textwrap
from collections.abc import Sequence

from tff_fedfish.data import protos
from tff_fedfish.data.text_codec import BYTE_PIECES, TextCodec
from tff_fedfish.errors import UserError

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


def special_ids(data: bytes, source: str) -> tuple[int, dict[str, int]]:
  """Reads a model's size and the ids of its special pieces.

  Args:
    data: The bytes of a `.model` file.
    source: The file's name, for errors.

  Returns:
    The number of pieces, and `end_of_text_id`, `padding_id` (of a model
    without padding: the end of text) and `unknown_id`.

  Raises:
    UserError: If the bytes are no SentencePiece model, or one that cannot end
      a text.
  """
  from google.protobuf.message import DecodeError

  try:
    model = model_class().FromString(data)
  except DecodeError as error:
    raise UserError(
      f'{source!r} must be a SentencePiece model, but it cannot be parsed as '
      'one. Name a `.model` file, or train a vocabulary with `fedfish '
      'tokenizer train`.'
    ) from error
  trainer = model.trainer_spec
  unknown = [
    i for i, piece in enumerate(model.pieces) if piece.type == _UNKNOWN_TYPE
  ]
  control = {
    piece.piece: i
    for i, piece in enumerate(model.pieces)
    if piece.type == _CONTROL_TYPE
  }
  end_piece = trainer.eos_piece or _END_PIECE
  if len(unknown) != 1 or end_piece not in control:
    raise UserError(
      f'{source!r} must be a SentencePiece model with one unknown piece and '
      f'the end-of-text piece {end_piece!r}; of its {len(model.pieces)} '
      f'pieces {len(unknown)} are unknown pieces and '
      f'{int(end_piece in control)} end texts. Train a model with both.'
    )
  return len(model.pieces), {
    'end_of_text_id': control[end_piece],
    'padding_id': control.get(
      trainer.pad_piece or _PADDING_PIECE, control[end_piece]
    ),
    'unknown_id': unknown[0],
  }


class SentencePieceCodec(TextCodec):
  """Encodes and decodes with a SentencePiece model (Kudo and Richardson, 2018).

  The model file says how text is normalized, case included.
  """

  def __init__(self, data: bytes, source: str):
    """Loads a model.

    Args:
      data: The bytes of a `.model` file that `special_ids` accepts.
      source: The file's name, for errors.

    Raises:
      UserError: If the model contradicts itself.
    """
    import tensorflow as tf
    import tensorflow_text as tf_text

    try:
      with tf.device('/CPU:0'):
        self.tokenizer = tf_text.SentencepieceTokenizer(data, out_type=tf.int32)
        # Loading is lazy: a fault shows when the model is first asked.
        self.tokenizer.vocab_size()
        # Those that are not there, such as '', have the id of the unknown one.
        ids = self.tokenizer.string_to_id([*BYTE_PIECES, '']).numpy().tolist()
    except tf.errors.OpError as error:
      reason = textwrap.shorten(error.message, 200)
      raise UserError(
        f'{source!r} must be a SentencePiece model, but cannot be loaded as '
        f'one ({reason}). Name another file.'
      ) from error
    if len({*ids}) == len(ids):
      self.letter_of = dict.fromkeys(ids[:-1], ids[ord('A')])

  def piece(self, token_id: int) -> str:
    """Returns the vocabulary entry of an id."""
    return self.tokenizer.id_to_string(token_id).numpy().decode('utf-8')

  def decode(self, token_ids: Sequence[int]) -> str:
    """Returns the text of the ids."""
    import tensorflow as tf

    with tf.device('/CPU:0'):
      text = self.tokenizer.detokenize(tf.constant(token_ids, tf.int32))
    return text.numpy().decode('utf-8', 'replace')

"""SentencePiece models: the special pieces of a model file, and encoding."""

import textwrap
from collections.abc import Sequence

import numpy as np

from tff_fedfish.data import ragged_encoding
from tff_fedfish.errors import UserError

# Of SentencePiece's own message definition, what is read here.
_PIECE_FIELDS = (('piece', 1, 'string'), ('type', 3, 'int32'))
_TRAINER_FIELDS = (
  ('eos_piece', 47, 'string', '</s>'),
  ('pad_piece', 48, 'string', '<pad>'),
)
_UNKNOWN_TYPE = 2
_CONTROL_TYPE = 3


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
    model = _model_class()().FromString(data)
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
  end_piece = trainer.eos_piece
  if len(unknown) != 1 or end_piece not in control:
    raise UserError(
      f'{source!r} must be a SentencePiece model with one unknown piece and '
      f'the end-of-text piece {end_piece!r}; of its {len(model.pieces)} '
      f'pieces {len(unknown)} are unknown pieces and '
      f'{int(end_piece in control)} end texts. Train a model with both.'
    )
  return len(model.pieces), {
    'end_of_text_id': control[end_piece],
    'padding_id': control.get(trainer.pad_piece, control[end_piece]),
    'unknown_id': unknown[0],
  }


class SentencePieceCodec:
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
        self._tokenizer = tf_text.SentencepieceTokenizer(
          data, out_type=tf.int32
        )
        # Loading is lazy: a fault shows when the model is first asked.
        self._tokenizer.vocab_size()
    except tf.errors.OpError as error:
      reason = textwrap.shorten(error.message, 200)
      raise UserError(
        f'{source!r} must be a SentencePiece model, but cannot be loaded as '
        f'one ({reason}). Name another file.'
      ) from error

  def encode(self, texts: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """Returns ids and splits; see `ragged_encoding.encode`."""
    return ragged_encoding.encode(self._tokenizer, texts)

  def piece(self, token_id: int) -> str:
    """Returns the vocabulary entry of an id."""
    return self._tokenizer.id_to_string(token_id).numpy().decode('utf-8')

  def decode(self, token_ids: Sequence[int]) -> str:
    """Returns the text of the ids."""
    import tensorflow as tf

    with tf.device('/CPU:0'):
      text = self._tokenizer.detokenize(tf.constant(token_ids, tf.int32))
    return text.numpy().decode('utf-8', 'replace')


def _model_class() -> type:
  # Built here, as nothing installed carries the generated class; protobuf skips
  # the fields that are not declared.
  from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

  field_proto = descriptor_pb2.FieldDescriptorProto
  types = {
    'string': field_proto.TYPE_STRING,
    'int32': field_proto.TYPE_INT32,
    'message': field_proto.TYPE_MESSAGE,
  }
  file = descriptor_pb2.FileDescriptorProto(
    name='fedfish_sentencepiece.proto', package='fedfish_sentencepiece'
  )

  def add_field(message, name, number, kind, *, default=None, of=None):
    message.field.add(
      name=name,
      number=number,
      type=types[kind],
      label=(
        field_proto.LABEL_REPEATED
        if name == 'pieces'
        else field_proto.LABEL_OPTIONAL
      ),
      default_value=default,
      type_name=of and f'.fedfish_sentencepiece.{of}',
    )

  piece = file.message_type.add(name='Piece')
  for name, number, kind in _PIECE_FIELDS:
    # A piece without a type is a normal one.
    default = '1' if name == 'type' else None
    add_field(piece, name, number, kind, default=default)
  trainer = file.message_type.add(name='Trainer')
  for name, number, kind, default in _TRAINER_FIELDS:
    add_field(trainer, name, number, kind, default=default)
  model = file.message_type.add(name='Model')
  add_field(model, 'pieces', 1, 'message', of='Piece')
  add_field(model, 'trainer_spec', 2, 'message', of='Trainer')
  pool = descriptor_pool.DescriptorPool()
  pool.Add(file)
  descriptor = pool.FindMessageTypeByName('fedfish_sentencepiece.Model')
  return message_factory.GetMessageClass(descriptor)

"""A SentencePiece model as tokenizer.json: texts as by the original."""

import itertools

import pytest
import tensorflow_text

from tff_fedfish.data import sentencepiece
from tff_fedfish.huggingface import sentencepiece_json

_PIECES = ('▁', 'a', 'b', '▁a', '▁b', 'ab', '▁ab')
_TEXTS = ('ab', ' ab', 'a b ', 'ab  ab')


def _model(add_dummy_prefix, remove_extra_whitespaces):
  proto = sentencepiece.model_class()()
  for name, kind in (('<unk>', 2), ('<s>', 3), ('</s>', 3)):
    proto.pieces.add(piece=name, score=0, type=kind)
  for number, piece in enumerate(_PIECES, start=1):
    proto.pieces.add(piece=piece, score=-number, type=1)
  proto.trainer_spec.model_type = 1
  # Fields 3 to 5 of normalizer_spec, field 3 of the model, as SentencePiece
  # writes them: not packed.
  flags = bytes([0x18, add_dummy_prefix, 0x20, remove_extra_whitespaces])
  return proto.SerializeToString() + bytes([0x1A, len(flags)]) + flags


@pytest.mark.parametrize(
  'flags', list(itertools.product((False, True), repeat=2))
)
def test_texts_encode_and_decode_as_by_sentencepiece(flags):
  data = _model(*flags)
  original = tensorflow_text.SentencepieceTokenizer(model=data)
  exported = sentencepiece_json.build(data)
  for text in _TEXTS:
    ids = original.tokenize(text).numpy().tolist()
    assert exported.encode(text).ids == ids
    decoded = original.detokenize(ids).numpy().decode()
    # SentencePiece loses every first space beside the one that it adds.
    assert exported.decode(ids) == decoded or flags == (True, False)
    assert exported.decode(ids) in (decoded, text)


def test_a_first_space_that_is_text_stays():
  exported = sentencepiece_json.build(_model(False, False))
  assert exported.decode(exported.encode(' ab').ids) == ' ab'

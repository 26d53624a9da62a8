"""The bytes that scored tokens stand for, by hand."""

import numpy as np
import pytest

from tff_fedfish.data import sentencepiece, tokenizers
from tff_fedfish.data.sequences import Sequences, build_sequences
from tff_fedfish.evaluation.evaluate import num_scored_bytes

#            0        1        2        3      4       5
_PIECES = '[PAD]\n[UNK]\n[END]\nab\n##cd\n\u0439\n'.encode()


def test_targets_by_hand():
  tokenizer = tokenizers.wordpiece_tokenizer(_PIECES, 'v.txt')
  rows = build_sequences(
    [np.array(ids, np.int32) for ids in ([3, 4, 5, 3], [4, 4], [3, 4])],
    sequence_length=3,
    end_of_text_id=tokenizer.end_of_text_id,
    padding_id=tokenizer.padding_id,
  )
  # ab ##cd \u0439 ab | END ##cd ##cd END | ab ##cd END and padding.
  tokens = [[3, 4, 5, 3], [2, 4, 4, 2], [3, 4, 2, 0]]
  assert rows.tokens.tolist() == tokens
  # "abcd \u0439 ab" has 10 bytes, 2 of them in its first token; "##cdcd" 6, of
  # which the end of the text before has none; "abcd" without "ab" 2.
  assert num_scored_bytes(rows, tokenizer) == 8 + 6 + 2


def _sentencepiece(tmp_path, pieces, byte_fallback):
  model = sentencepiece.model_class()()
  model.trainer_spec.byte_fallback = byte_fallback
  for piece, kind in (
    *[('<unk>', 2), ('</s>', 3), ('\u2581', 1), ('a', 1)],
    *pieces,
  ):
    model.pieces.add(piece=piece, score=0.0, type=kind)
  (tmp_path / 'v.model').write_bytes(model.SerializeToString())
  return tokenizers.load_tokenizer(tmp_path / 'v.model')


def test_parts_of_a_character(tmp_path):
  pieces = [(f'<0x{byte:02X}>', 6) for byte in range(256)]
  tokenizer = _sentencepiece(tmp_path, pieces, 1)
  [ids] = tokenizer.encode_batch(['\u0439a'])
  assert tokenizer.pieces(ids) == ['\u2581', '<0xD0>', '<0xB9>', 'a']
  rows = Sequences(
    tokens=np.array([ids[1:3], ids[2:]]),
    num_targets=np.array([1, 1], np.int32),
  )
  # The second byte, and a; a byte by itself is decoded as a character of 3.
  assert num_scored_bytes(rows, tokenizer) == 1 + 1


@pytest.mark.parametrize(
  ('present', 'text', 'num_bytes'),
  [
    # A piece that its maker defined: six characters.
    ([0x0A], 'a<0x0A>a', 1 + 6 + 1),
    # The unknown piece is decoded as ' \u2047 ', 5 bytes.
    ([0x41], 'a\u0439a', 1 + 5 + 1),
    # 255 pieces.
    (range(1, 256), 'a\u0439a', 1 + 5 + 1),
  ],
)
def test_pieces_of_only_some_bytes(tmp_path, present, text, num_bytes):
  pieces = [(f'<0x{byte:02X}>', 4) for byte in present]
  tokenizer = _sentencepiece(tmp_path, pieces, 0)
  [ids] = tokenizer.encode_batch([text])
  assert tokenizer.num_bytes(ids) == num_bytes

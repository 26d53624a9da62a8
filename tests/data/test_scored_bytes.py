"""The bytes that scored tokens stand for, by hand."""

import numpy as np

from tff_fedfish.data import tokenizers
from tff_fedfish.data.scored_bytes import num_scored_bytes
from tff_fedfish.data.sequences import build_sequences

#            0        1        2        3      4       5
_PIECES = '[PAD]\n[UNK]\n[END]\nab\n##cd\n\u0439\n'.encode()


def test_targets_by_hand():
  tokenizer = tokenizers.wordpiece_tokenizer(_PIECES, 'v.txt')
  rows = build_sequences(
    [np.array([3, 4, 5, 3], np.int32), np.array([4, 4], np.int32)],
    sequence_length=3,
    end_of_text_id=tokenizer.end_of_text_id,
    padding_id=tokenizer.padding_id,
  )
  # ab ##cd \u0439 ab | END ##cd ##cd END.
  assert rows.tokens.tolist() == [[3, 4, 5, 3], [2, 4, 4, 2]]
  # "abcd \u0439 ab" has 10 bytes, 2 of them in its first token; "##cdcd" 6, of
  # which the end of the text before has none.
  assert num_scored_bytes(rows, tokenizer) == 8 + 6


def test_padding_and_a_row_of_the_same_word():
  tokenizer = tokenizers.wordpiece_tokenizer(_PIECES, 'v.txt')
  rows = build_sequences(
    [np.array([3, 4], np.int32)],
    sequence_length=5,
    end_of_text_id=tokenizer.end_of_text_id,
    padding_id=tokenizer.padding_id,
  )
  # ab ##cd END and padding: "abcd" without "ab".
  assert num_scored_bytes(rows, tokenizer) == 2

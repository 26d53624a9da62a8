"""The bytes that scored tokens stand for, by hand."""

import numpy as np

from tff_fedfish.data import tokenizers
from tff_fedfish.data.sequences import build_sequences
from tff_fedfish.evaluation.measure import num_scored_bytes

#            0        1        2        3      4       5
_PIECES = '[PAD]\n[UNK]\n[END]\nab\n##cd\n\u0439\n'.encode()


def test_targets_by_hand():
  tokenizer = tokenizers.WordPieceTokenizer(_PIECES, 'v.txt')
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

"""The fraction of unknown tokens, by hand."""

import types

import numpy as np
import pytest

from tff_fedfish.data import tokenizers, unknown_tokens
from tff_fedfish.data.sequences import build_sequences
from tff_fedfish.errors import UserError

#            0        1        2        3    4
_PIECES = b'[PAD]\n[UNK]\n[END]\na\nb\n'


@pytest.fixture(name='tokenizer', scope='module')
def _tokenizer():
  return tokenizers.WordPieceTokenizer(_PIECES, 'v.txt')


def _sequences(tokenizer, *texts):
  return build_sequences(
    tokenizer.encode_batch(texts),
    sequence_length=3,
    end_of_text_id=tokenizer.end_of_text_id,
    padding_id=tokenizer.padding_id,
  )


class TestSequences:
  def test_russian_and_latin_by_hand(self, tokenizer):
    # a UNK b END | b b END and one of padding: 1 of 7 tokens.
    first = _sequences(tokenizer, 'a и b', 'b b')
    assert first.tokens.tolist() == [[3, 1, 4, 2], [4, 4, 2, 0]]
    assert unknown_tokens.fraction_of([first], tokenizer) == 1 / 7
    # UNK UNK END: 3 of 10 of both, which is not the mean of 1/7 and 2/3.
    second = _sequences(tokenizer, 'привет мир')
    assert unknown_tokens.fraction_of([first, second], tokenizer) == 3 / 10

  def test_padding_that_looks_unknown_is_not_counted(self, tokenizer):
    padded = build_sequences(
      [np.array([3, 1], np.int32)],
      sequence_length=5,
      end_of_text_id=2,
      padding_id=tokenizer.unknown_id,
    )
    assert padded.tokens.tolist() == [[3, 1, 2, 1, 1, 1]]
    assert unknown_tokens.fraction_of([padded], tokenizer) == 1 / 3

  def test_nothing_to_count(self, tokenizer):
    assert unknown_tokens.fraction_of([], tokenizer) is None
    # Images have no tokenizer; some vocabularies express everything.
    assert unknown_tokens.fraction_of([object()], None) is None
    complete = types.SimpleNamespace(unknown_id=None)
    assert unknown_tokens.fraction_of([object()], complete) is None


def test_texts_of_a_corpus(tokenizer):
  documents = {b'x': ['a и b', 'b b'], b'y': ['мир']}
  clients = [
    (client_id, [{'text': text.encode()} for text in texts])
    for client_id, texts in documents.items()
  ]
  corpus = types.SimpleNamespace(stream=lambda: iter(clients))
  seen = []
  found = unknown_tokens.fraction_of_corpus(
    corpus, tokenizer, on_client=lambda: seen.append(1)
  )
  # a UNK b END b b END, UNK END: 2 of 9.
  assert (found, len(seen)) == (2 / 9, 2)
  clients.append((b'z', [{}]))
  with pytest.raises(UserError, match="b'z' has an example without .*text"):
    unknown_tokens.fraction_of_corpus(corpus, tokenizer)


def test_description_warns_above_five_per_cent():
  assert unknown_tokens.describe(0.05) == 'Unknown tokens: 5.00 %'
  assert unknown_tokens.describe(None) == 'Unknown tokens: -'
  found = unknown_tokens.describe(0.9871)
  assert found.startswith('Unknown tokens: 98.71 % (warning: above 5 %, ')

"""Learned vocabularies: exact in size, complete in characters, repeatable."""

import collections
import functools
import gzip
import json
import string

import numpy as np
import pytest

from tff_fedfish import corpora
from tff_fedfish.data import tokenizers, vocabulary_training
from tff_fedfish.errors import UserError


def _train(counts, vocabulary_size=256, **kwargs):
  return vocabulary_training.train_vocabulary(
    counts, vocabulary_size=vocabulary_size, **kwargs
  )


def _tokenizer(vocabulary, lower_case=True):
  return tokenizers.wordpiece_tokenizer(
    vocabulary.to_bytes(), 'v.txt', lower_case=lower_case
  )


@pytest.fixture(name='descriptions', scope='module')
def _descriptions():
  """Word counts of 150 package descriptions."""
  path = corpora.debian_descriptions() / 'c4-validation.00000-of-00001.json.gz'
  counts = collections.Counter()
  with gzip.open(path) as lines:
    for line in list(lines)[:150]:
      counts.update(json.loads(line)['text'].encode().split())
  return counts


@pytest.fixture(name='trained', scope='module')
def _trained(descriptions):
  """Returns a function from a size to the descriptions' vocabulary of it.

  Training takes a second; each size is trained once, and the result is read
  only. What training said of its steps is the second value.
  """

  @functools.cache
  def train(vocabulary_size):
    steps = []
    return _train(descriptions, vocabulary_size, on_step=steps.append), steps

  return train


def test_a_small_corpus_fills_up_with_unused_pieces():
  found = _train({b'low': 5, b'lower': 2, b'low.': 1})
  used = found.pieces[: 256 - found.num_unused]
  assert used[:3] == ['[PAD]', '[UNK]', '[END]']
  # Then characters by code point. l never continues a word and . never does,
  # so ##l and ##. are left out.
  assert used[3:9] == ['.', 'e', 'l', 'o', 'r', 'w']
  assert {'##e', '##o', '##r', '##w', 'low', 'lower'} <= set(used)
  assert not {'##l', '##.'} & set(used)
  assert found.pieces[-1] == f'[unused{found.num_unused - 1}]'
  assert found.pieces[-found.num_unused] == '[unused0]'
  # low, lower, low and . : 5 + 2 + 1 + 1 occurrences of 3 distinct words.
  assert (found.num_words, found.num_distinct_words) == (9, 3)
  assert found.num_unknown_words == 0


@pytest.mark.parametrize('vocabulary_size', [256, 500, 1111])
def test_the_size_is_exact(trained, vocabulary_size):
  found, steps = trained(vocabulary_size)
  assert len(found.pieces) == len(set(found.pieces)) == vocabulary_size
  assert found.num_unused == 0
  assert 1 <= len(steps) <= 8
  assert f'(wanted: {vocabulary_size:,})' in steps[-1]


def test_every_word_with_usual_characters_can_be_spelled(descriptions, trained):
  found, _ = trained(500)
  tokenizer = _tokenizer(found)
  words = list(descriptions)
  num_unknown = sum(
    descriptions[word] * np.count_nonzero(ids == tokenizer.unknown_id)
    for word, ids in zip(words, tokenizer.encode_batch(words), strict=True)
  )
  assert num_unknown == found.num_unknown_words
  assert num_unknown < 0.001 * found.num_words


def test_more_pieces_make_shorter_texts(descriptions, trained):
  texts = list(descriptions.elements())
  lengths = [
    sum(map(len, _tokenizer(trained(size)[0]).encode_batch(texts)))
    for size in (256, 1111)
  ]
  num_characters = sum(len(text.decode()) for text in texts)
  assert num_characters > 1.5 * lengths[0]
  assert lengths[0] > 1.3 * lengths[1]


def test_the_order_of_the_counts_does_not_matter(descriptions, trained):
  backwards = dict(reversed(descriptions.items()))
  assert trained(500)[0] == _train(backwards, 500)


def test_case():
  counts = {'Été'.encode(): 10, b'Zoo': 3, b'zoo': 1}
  lower, cased = _train(counts), _train(counts, lower_case=False)
  assert {'ete', 'zoo'} <= set(lower.pieces)
  assert {'Été', 'Zoo', 'zoo'} <= set(cased.pieces)
  assert (lower.num_distinct_words, cased.num_distinct_words) == (2, 3)
  assert _tokenizer(cased, False).encode_batch(['Été'])[0].shape == (1,)


def test_rare_characters_become_unknown_but_ascii_does_not():
  # Of 100,006 characters a alone covers 99.994 %, more than the 99.99 % that
  # are asked for: ж, which occurs more often than b, is left out, b is not.
  found = _train({b'aaaa': 25_000, b'ab': 1, 'ж'.encode(): 4})
  assert {'a', '##a', 'b', '##b'} <= set(found.pieces)
  assert not {'ж', '##ж'} & set(found.pieces)
  assert found.num_unknown_words == 4


def test_words_that_are_too_long_are_unknown():
  found = _train({b'ab' * 60: 2, b'ab': 5})
  assert found.num_unknown_words == 2
  assert 'ab' in found.pieces


def test_no_break_spaces_separate_words():
  for lower_case in (True, False):
    found = _train({'one\u00a0two'.encode(): 3}, lower_case=lower_case)
    assert {'one', 'two'} <= set(found.pieces)
    assert found.num_words == 6


@pytest.mark.parametrize('size', [0, 255])
def test_a_size_that_is_too_small_is_an_error(size):
  with pytest.raises(
    UserError, match=f'`--vocabulary_size` must be at least 256, found {size}'
  ):
    _train({b'a': 1}, size)


def test_a_size_that_is_too_large_is_an_error():
  with pytest.raises(
    UserError,
    match='`--vocabulary_size` must be at most 1,000,000, found 1000001. Lower',
  ):
    _train({b'a': 1}, 1_000_001)


def test_at_most_ten_unused_pieces_for_each_that_is_learned():
  # Words of one letter have no other pieces: 200 of them and 3 reserved pieces,
  # 203, with 10 x 203 unused ones are 2,233.
  counts = {chr(code).encode(): 1 for code in range(0x4E00, 0x4E00 + 200)}
  found = _train(counts, 2233)
  assert (len(found.pieces), found.num_unused) == (2233, 2030)
  with pytest.raises(
    UserError,
    match='^`--vocabulary_size` must be at most 2,233 for this corpus, which '
    'has 203 pieces to learn, found 2234: the rest would be unused. Lower it',
  ):
    _train(counts, 2234)
  # The smallest models have 2,048, however small the corpus is.
  assert _train({b'a': 1}, 2048).num_unused == 2044
  with pytest.raises(UserError, match='must be at most 2,048 .* has 4 pieces'):
    _train({b'a': 1}, 2049)


@pytest.mark.parametrize('counts', [{}, {b'\x00': 3}])
def test_no_words_is_an_error(counts):
  with pytest.raises(UserError, match='learned from words, .* holds none'):
    _train(counts)


def test_too_many_characters_is_an_error():
  # 256 pieces have room for (256 - 3) // 4 = 63 characters.
  letters = string.ascii_letters + string.digits
  assert len(letters) == 62
  fits = _train({f'{letters}ж'.encode(): 1}, lower_case=False)
  assert fits.num_unknown_words == 0
  with pytest.raises(
    UserError,
    match='`--vocabulary_size` 256 has room for 63 characters, but none of the '
    '1 words of the corpus can be spelled with them',
  ):
    _train({f'{letters}жд'.encode(): 1}, lower_case=False)

"""Words of a corpus, and vocabularies learned from them."""

import collections
import gzip
import json
import re
import string
import time

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
  return tokenizers.WordPieceTokenizer(
    vocabulary.to_bytes(), 'v.txt', lower_case=lower_case
  )


@pytest.fixture(name='descriptions', scope='module')
def _descriptions():
  """Word counts of 40 package descriptions."""
  path = corpora.debian_descriptions() / 'c4-validation.00000-of-00001.json.gz'
  counts = collections.Counter()
  with gzip.open(path) as lines:
    for line in list(lines)[:40]:
      counts.update(json.loads(line)['text'].encode().split())
  return counts


def _their_pieces(ranked, threshold):
  """Returns the pieces that TensorFlow Text's learner finds."""
  from tensorflow_text.tools.wordpiece_vocab import (
    wordpiece_tokenizer_learner_lib as learner,
  )

  return learner.learn(
    ranked,
    vocab_size=len(ranked),
    reserved_tokens=list(vocabulary_training.RESERVED_PIECES),
    lower_thresh=threshold,
    upper_thresh=threshold,
    max_input_tokens=-1,
    max_unique_chars=1000,
  )


def _random_words(num_words, length, letters='abcde'):
  choices = np.random.default_rng(1).choice([*letters], (num_words, length))
  return {''.join(choice): 1 for choice in choices}


def _our_pieces(words, threshold):
  ends = vocabulary_training._count_ends(
    vocabulary_training._without_long(words)
  )
  return vocabulary_training._learn(words, ends, threshold)


def test_pieces_are_those_of_tensorflow_text(descriptions):
  words = collections.Counter()
  for word, count in descriptions.items():
    words[word.decode().strip('.,()"')] += count
  # One more than what a piece can have.
  words = {'a' * 51: 99, 'ab' * 25: 3} | _random_words(50, 9, 'ab') | words
  ranked = sorted(words.items(), key=lambda item: (-item[1], item[0]))
  for threshold in (1, 2, 3, 10, 50):
    theirs = _their_pieces(ranked, threshold)
    ours = _our_pieces(ranked, threshold)
    assert ours == [piece for piece in theirs if piece in set(ours)]
    # Continuations by a character that continues no word.
    assert all(re.fullmatch('##.', piece) for piece in set(theirs) - set(ours))


def test_words_longer_than_a_piece_are_spelled():
  for others in ({}, {b'b': 1}):
    found = _train({b'c' * 51: 3, b'c' * 101: 1} | others)
    assert found.num_unknown_words == 1
    assert {'c', '##c'} <= {*found.pieces}


def test_time_grows_linearly_with_the_length_of_words():
  seconds = []
  for length in (12, 48):
    words = sorted(_random_words(300, length).items())
    times = []
    for _ in range(3):
      start = time.process_time()
      _our_pieces(words, 2)
      times.append(time.process_time() - start)
    seconds.append(min(times))
  # It was 40 times the time for four times the length.
  assert seconds[1] < 12 * seconds[0]


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


@pytest.mark.parametrize('vocabulary_size', [256, 600])
def test_the_size_is_exact_and_usual_words_are_spelled(
  descriptions, vocabulary_size
):
  steps = []
  found = _train(descriptions, vocabulary_size, on_step=steps.append)
  assert len(found.pieces) == len(set(found.pieces)) == vocabulary_size
  assert found.num_unused == 0
  assert 1 <= len(steps) <= 8
  assert f'(wanted: {vocabulary_size:,})' in steps[-1]
  tokenizer = _tokenizer(found)
  words = list(descriptions)
  num_unknown = sum(
    descriptions[word] * np.count_nonzero(ids == tokenizer.unknown_id)
    for word, ids in zip(words, tokenizer.encode_batch(words), strict=True)
  )
  assert num_unknown == found.num_unknown_words
  assert num_unknown < 0.001 * found.num_words


def test_the_order_of_the_counts_does_not_matter(monkeypatch):
  # Of words that are equally frequent, half are left out.
  monkeypatch.setattr(vocabulary_training, '_MAX_LEARNER_WORDS', 20)
  counts = {b'word%d' % i: 5 for i in range(40)}
  assert _train(counts) == _train(dict(reversed(counts.items())))


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


def test_words_that_are_too_long_and_no_break_spaces():
  words = {b'ab' * 60: 2, 'ab\u00a0one'.encode(): 3}
  for lower_case in (True, False):
    found = _train(words, lower_case=lower_case)
    assert {'ab', 'one'} <= set(found.pieces)
    assert (found.num_words, found.num_unknown_words) == (8, 2)


@pytest.mark.parametrize(
  ('counts', 'message'),
  [
    ({}, 'none of the 0 words of the corpus .* group a corpus with text'),
    ({b'\x00': 3}, 'none of the 0 words of the corpus'),
    # 256 pieces have room for (256 - 3) // 4 = 63 characters.
    (
      {f'{string.ascii_letters}{string.digits}жд'.encode(): 1},
      '`--vocabulary_size` 256 has room for 63 characters, but none of the 1 '
      'words of the corpus can be spelled with them',
    ),
  ],
)
def test_words_that_do_not_fit(counts, message):
  with pytest.raises(UserError, match=message):
    _train(counts, lower_case=False)


class _Corpus:
  """Clients and their texts, in memory."""

  def __init__(self, texts):
    self._texts = texts

  def stream(self, by_id):
    assert by_id
    for client_id, texts in sorted(self._texts.items()):
      yield client_id, [{'text': text} for text in texts]


def _count(texts, **options):
  return vocabulary_training.count_corpus_words(_Corpus(texts), **options)


def test_words_are_separated_by_white_space():
  calls = []
  words = _count(
    {b'x': [b'The end.\n\tThe', b''], b'y': ['end. É'.encode()]},
    on_client=lambda: calls.append(None),
  )
  assert words.counts == {b'The': 2, b'end.': 2, 'É'.encode(): 1}
  assert (words.num_documents, words.num_capped_documents) == (3, 0)
  assert words.num_forgotten_words == 0
  assert len(calls) == 2


def test_the_cap_holds_for_every_client_and_chooses_by_text():
  huge = [b'h%d' % i for i in range(100)]
  first, again = (
    _count(
      {b'huge': order, b'small': [b's1', b's2']}, max_documents_per_client=10
    )
    for order in (huge, huge[::-1])
  )
  assert (first.num_documents, first.num_capped_documents) == (12, 90)
  assert first == again
  chosen = {word for word in first.counts if word.startswith(b'h')}
  assert len(chosen) == 10
  # Not the first, nor the last, nor the smallest ten.
  assert chosen not in ({*huge[:10]}, {*huge[-10:]}, {*sorted(huge)[:10]})


def test_rare_words_are_forgotten_to_bound_memory():
  # At most 4 words. The fifth, e, makes it forget those that stand once (a
  # and e, two occurrences) and, as 3 are still more than 2, then those that
  # stand less than four times (b and c, 2 + 3 occurrences). a comes back.
  text = b'a b b c c c d d d d'
  words = _count({b'x': [text, b'e', b'a']}, max_distinct_words=4)
  assert words.counts == {b'd': 4, b'a': 1}
  assert words.num_forgotten_words == 7

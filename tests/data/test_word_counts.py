"""Words are counted, capped by a hash, and forgotten only when counted."""

import pytest

from tff_fedfish.data import word_counts
from tff_fedfish.errors import UserError


class _Corpus:
  """Clients and their texts, in memory."""

  def __init__(self, texts):
    self._texts = texts
    self.client_ids = sorted(texts)

  def examples(self, client_id):
    return [{'text': text} for text in self._texts[client_id]]


def test_words_are_what_white_space_separates():
  corpus = _Corpus(
    {
      b'x': [b'The end.\n\tThe', b''],
      b'y': ['end. É'.encode()],
    }
  )
  found = word_counts.count_words(corpus)
  assert found.counts == {b'The': 2, b'end.': 2, 'É'.encode(): 1}
  assert (found.num_documents, found.num_capped_documents) == (3, 0)
  assert found.num_forgotten_words == 0


def test_the_cap_holds_for_every_client():
  huge = [b'h%d' % i for i in range(100)]
  corpus = _Corpus({b'huge': huge, b'small': [b's1', b's2']})
  found = word_counts.count_words(corpus, max_documents_per_client=10)
  assert found.num_documents == 12
  assert found.num_capped_documents == 90
  assert sum(word.startswith(b'h') for word in found.counts) == 10


def test_the_choice_depends_on_the_texts_not_on_their_order():
  texts = [b'h%d' % i for i in range(100)]
  first, again = (
    word_counts.count_words(
      _Corpus({b'x': order}), max_documents_per_client=10
    ).counts
    for order in (texts, texts[::-1])
  )
  assert first == again
  # Not the first, nor the last, nor the smallest ten.
  assert set(first) not in (
    {*texts[:10]},
    {*texts[-10:]},
    {*sorted(texts)[:10]},
  )


def test_rare_words_are_forgotten_to_bound_memory():
  # At most 4 words. The fifth, e, makes it forget those that stand once (a
  # and e, two occurrences) and, as 3 are still more than 2, then those that
  # stand less than four times (b and c, 2 + 3 occurrences). a comes back.
  text = b'a b b c c c d d d d'
  corpus = _Corpus({b'x': [text, b'e', b'a']})
  found = word_counts.count_words(corpus, max_distinct_words=4)
  assert found.counts == {b'd': 4, b'a': 1}
  assert found.num_forgotten_words == 7


def test_progress_is_told_of_every_client():
  calls = []
  word_counts.count_words(
    _Corpus({b'x': [], b'y': [b'a']}), on_client=lambda: calls.append(None)
  )
  assert len(calls) == 2


def test_a_cap_below_one_is_an_error():
  with pytest.raises(
    UserError, match='`--max_documents_per_client` must be at least 1, found 0'
  ):
    word_counts.count_words(_Corpus({}), max_documents_per_client=0)


def test_an_example_without_text_is_an_error():
  class Titles:
    client_ids = (b'x',)

    def examples(self, client_id):
      return [{'title': client_id}]

  with pytest.raises(
    UserError, match="Client b'x' has an example without the feature `text`"
  ):
    word_counts.count_words(Titles())

"""Counts the words of a grouped corpus, in bounded memory."""

import collections
import dataclasses
import heapq
from collections.abc import Callable, Mapping

from tff_fedfish.data import randomness
from tff_fedfish.data.grouped_corpus import GroupedCorpus, example_texts
from tff_fedfish.errors import UserError

# Distinct words held in memory while counting, about 100 bytes each.
_MAX_DISTINCT_WORDS = 4_000_000


@dataclasses.dataclass(frozen=True)
class WordCounts:
  """Occurrences of each white-space separated word of a corpus."""

  counts: Mapping[bytes, int]
  """UTF-8 word, as written, to occurrences."""
  num_documents: int
  """Documents that were read."""
  num_capped_documents: int
  """Documents left out by `max_documents_per_client`."""
  num_forgotten_words: int
  """Occurrences of rare words that were forgotten to bound memory."""


def count_words(
  corpus: GroupedCorpus,
  *,
  max_documents_per_client: int | None = None,
  max_distinct_words: int = _MAX_DISTINCT_WORDS,
  on_client: Callable[[], None] = lambda: None,
) -> WordCounts:
  """Counts the words of a corpus.

  Args:
    corpus: Source of examples with a bytes feature `text`.
    max_documents_per_client: Documents to read of a client, at most, chosen by
      a hash of their text, so that a few huge clients do not make up the
      vocabulary. None: all.
    max_distinct_words: Words to hold in memory. Above it the rarest are
      forgotten, occurrences first seen late more readily than early ones.
    on_client: Called after each client.

  Returns:
    The counts.

  Raises:
    UserError: If `max_documents_per_client` is below 1, or an example has no
      text.
  """
  if max_documents_per_client is not None and max_documents_per_client < 1:
    raise UserError(
      '`--max_documents_per_client` must be at least 1, found '
      f'{max_documents_per_client}. Raise it, or leave it out to read all.'
    )
  counts = collections.Counter()
  num_documents = num_capped = num_forgotten = 0
  for client_id in corpus.client_ids:
    texts = example_texts(client_id, corpus.examples(client_id))
    kept = _choose_texts(texts, max_documents_per_client)
    num_documents += len(kept)
    num_capped += len(texts) - len(kept)
    for text in kept:
      counts.update(text.split())
      if len(counts) > max_distinct_words:
        counts, num_words = _forget_rare(counts, max_distinct_words // 2)
        num_forgotten += num_words
    on_client()
  return WordCounts(
    counts=counts,
    num_documents=num_documents,
    num_capped_documents=num_capped,
    num_forgotten_words=num_forgotten,
  )


def _choose_texts(texts: list[bytes], max_texts: int | None) -> list[bytes]:
  if max_texts is None or len(texts) <= max_texts:
    return texts
  return heapq.nsmallest(
    max_texts,
    texts,
    key=lambda text: randomness.digest('vocabulary_documents', 0, text),
  )


def _forget_rare(
  counts: collections.Counter, max_words: int
) -> tuple[collections.Counter, int]:
  """Returns at most `max_words` of the words, and the occurrences forgotten."""
  min_count = 2
  kept = counts
  while len(kept) > max_words:
    kept = {word: n for word, n in kept.items() if n >= min_count}
    min_count *= 2
  num_forgotten = sum(counts.values()) - sum(kept.values())
  return collections.Counter(kept), num_forgotten

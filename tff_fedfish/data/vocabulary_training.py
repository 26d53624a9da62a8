"""Learns a WordPiece vocabulary of an exact size from a grouped corpus."""

import collections
import dataclasses
import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from tff_fedfish.data import randomness, wordpiece
from tff_fedfish.data.grouped_corpus import GroupedCorpus, example_texts
from tff_fedfish.errors import UserError

# Distinct words held in memory while counting, about 100 bytes each.
_MAX_DISTINCT_WORDS = 4_000_000
RESERVED_PIECES = (
  wordpiece.PADDING_PIECE,
  wordpiece.UNKNOWN_PIECE,
  wordpiece.END_OF_TEXT_PIECES[0],
)
# Fewer leave no room for pieces beside the characters of an alphabet.
MIN_VOCABULARY_SIZE = 256
MAX_VOCABULARY_SIZE = 1_000_000
# Share of character occurrences that the vocabulary spells. The rarest
# characters, each of which costs two pieces, become unknown.
_CHARACTER_COVERAGE = 0.9999
# The learner's time grows with distinct words; rarer ones hardly matter to it.
_MAX_LEARNER_WORDS = 200_000
# As TensorFlow Text's learner has them.
_MAX_PIECE_CHARACTERS = 50
_NUM_ITERATIONS = 4
# A vocabulary at most this much too large is trimmed instead of learned again.
_TRIMMED_SHARE = 0.1


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


@dataclasses.dataclass(frozen=True)
class TrainedVocabulary:
  """A vocabulary, and what it leaves out."""

  pieces: list[str]
  """`vocabulary_size` distinct pieces, reserved ones first, then characters."""
  num_unused: int
  """Pieces `[unused0]`, ... that fill up where the corpus has no more."""
  num_words: int
  """Occurrences of words it was learned from, punctuation included."""
  num_distinct_words: int
  """Distinct words among these."""
  num_unknown_words: int
  """Occurrences of words that become unknown: a rare character, or too long."""

  def to_bytes(self) -> bytes:
    """Returns the vocabulary file: one piece a line."""
    return ''.join(f'{piece}\n' for piece in self.pieces).encode()


def count_corpus_words(
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
      forgotten, so that counts depend on the order of clients: by id.
    on_client: Called after each client.

  Returns:
    The counts.

  Raises:
    UserError: If an example has no text.
  """
  counts = collections.Counter()
  num_documents = num_capped = num_forgotten = 0
  for client_id, examples in corpus.stream(by_id=True):
    texts = example_texts(client_id, examples)
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


def train_vocabulary(
  word_counts: Mapping[bytes, int],
  *,
  vocabulary_size: int,
  lower_case: bool = True,
  on_step: Callable[[str], None] = lambda line: None,
) -> TrainedVocabulary:
  """Learns a WordPiece vocabulary (Schuster and Nakajima, 2012).

  A frequency threshold gives a vocabulary of roughly predictable size. The
  threshold is searched, and the smallest
  vocabulary found that is large enough loses its rarest pieces, but no
  character, until the size is exact. The result depends on the arguments only,
  not on the order of `word_counts`.

  Args:
    word_counts: UTF-8 word, as written, to occurrences.
    vocabulary_size: Pieces of the vocabulary; see `check_vocabulary_size`.
    lower_case: Lower-case words and strip accents first, as the tokenizer will.
    on_step: Called with a line on each step of the search.

  Returns:
    The vocabulary.

  Raises:
    UserError: If the size is too small for the words, or there is no word.
  """
  counts = _split_words(word_counts, lower_case)
  spelled = _spelled(counts, vocabulary_size)
  # Sorted, as the learner breaks ties by order where it has to drop words.
  ranked = sorted(spelled.items(), key=lambda item: (-item[1], item[0]))
  pieces = _search(ranked[:_MAX_LEARNER_WORDS], vocabulary_size, on_step)
  pieces = _trim(pieces, vocabulary_size)
  unused = [f'[unused{i}]' for i in range(vocabulary_size - len(pieces))]
  return TrainedVocabulary(
    pieces=pieces + unused,
    num_unused=len(unused),
    num_words=sum(counts.values()),
    num_distinct_words=len(counts),
    num_unknown_words=sum(counts.values()) - sum(spelled.values()),
  )


def check_vocabulary_size(vocabulary_size: int) -> None:
  """Raises a UserError if no corpus has that size; needs no TensorFlow."""
  if not MIN_VOCABULARY_SIZE <= vocabulary_size <= MAX_VOCABULARY_SIZE:
    raise UserError(
      f'`--vocabulary_size` must lie between {MIN_VOCABULARY_SIZE} and '
      f'{MAX_VOCABULARY_SIZE:,}, found {vocabulary_size}. Change it: a smaller '
      'one would hold characters only.'
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


def _split_words(
  word_counts: Mapping[bytes, int], lower_case: bool
) -> dict[str, int]:
  """Normalizes words and splits them at punctuation, as the tokenizer does."""
  import tensorflow as tf
  from tensorflow_text.python.ops import bert_tokenizer

  splitter = bert_tokenizer.BasicTokenizer(lower_case=lower_case)
  counts = collections.Counter()
  words = list(word_counts)
  batch_size = 100_000
  for start in range(0, len(words), batch_size):
    batch = words[start : start + batch_size]
    with tf.device('/CPU:0'):
      ragged = splitter.tokenize(tf.constant(batch))
    parts = ragged.flat_values.numpy()
    for word, i, j in zip(
      batch,
      ragged.row_starts().numpy(),
      ragged.row_limits().numpy(),
      strict=True,
    ):
      for part in parts[i:j]:
        # Split again: cased, the splitter keeps no-break spaces within words.
        for final in part.decode('utf-8', 'replace').split():
          counts[final] += word_counts[word]
  return dict(counts)


def _spelled(counts: Mapping[str, int], vocabulary_size: int) -> dict[str, int]:
  """Returns the words that the vocabulary will spell, with their counts."""
  occurrences = collections.Counter()
  for word, count in counts.items():
    for character in word:
      occurrences[character] += count
  ranked = sorted(occurrences.items(), key=lambda item: (-item[1], item[0]))
  needed = _CHARACTER_COVERAGE * sum(occurrences.values())
  characters, covered = set(), 0
  max_characters = (vocabulary_size - len(RESERVED_PIECES)) // 4
  for character, count in ranked[:max_characters]:
    # ASCII goes in wherever it stands: other corpora will have more of it.
    if covered < needed or character.isascii():
      characters.add(character)
    covered += count
  spelled = {
    word: count
    for word, count in counts.items()
    if characters.issuperset(word)
    and len(word.encode()) <= wordpiece.MAX_WORD_BYTES
  }
  if not spelled:
    raise UserError(
      f'`--vocabulary_size` {vocabulary_size} has room for {len(characters)} '
      f'characters, but none of the {len(counts)} words of the corpus can be '
      'spelled with them. Raise it, or group a corpus with text.'
    )
  return spelled


def _search(
  ranked: Sequence[tuple[str, int]],
  wanted: int,
  on_step: Callable[[str], None],
) -> list[str]:
  """Returns the smallest vocabulary found that is large enough.

  Where none is, even with every piece that occurs, returns that one.
  """
  low, high = 1, ranked[0][1] + 1
  smallest = largest = None
  ends = _count_ends(_without_long(ranked))
  while low < high:
    threshold = math.isqrt(low * high)
    if smallest and largest:
      # The size falls about as a power of the threshold.
      share = math.log(len(smallest) / ((1 + _TRIMMED_SHARE / 2) * wanted))
      share /= math.log(len(smallest) / len(largest))
      threshold = round((low - 1) * (high / (low - 1)) ** share)
      threshold = min(max(threshold, low), high - 1)
    pieces = _learn(ranked, ends, threshold)
    on_step(
      f'pieces that occur {threshold:,} times or more: {len(pieces):,} '
      f'(wanted: {wanted:,})'
    )
    if len(pieces) < wanted:
      high = threshold
      largest = pieces
    else:
      low = threshold + 1
      smallest = pieces
      if len(pieces) <= (1 + _TRIMMED_SHARE) * wanted:
        break
  return smallest or largest


def _learn(
  ranked: Sequence[tuple[str, int]], ends: Mapping[str, int], threshold: int
) -> list[str]:
  """Returns the pieces at one threshold, reserved ones first.

  They are those of TensorFlow Text's `wordpiece_tokenizer_learner_lib`, which
  counts every part of a word, then takes from each the counts of all parts that
  it begins. What is left are the parts with which words end: only these are
  counted here, so that time grows linearly with the length of words. `ends` has
  the counts of all of them, whatever the threshold.
  """
  words = _without_long(ranked)
  # Of long words, too: they are spelled.
  characters = sorted({c for word, _ in ranked for c in word})
  # Continuations only of characters that are within words: punctuation marks
  # are always words of their own.
  inner = sorted({c for word, _ in ranked for c in word[1:]})
  spelling = dict.fromkeys((*characters, *map(_continued, characters)), 1)
  pieces = {}
  for _ in range(_NUM_ITERATIONS):
    counts = _count_ends(words, pieces) if pieces else ends
    frequent = {piece: n for piece, n in counts.items() if n >= threshold}
    pieces = spelling | frequent
  for character in {*characters} - {*inner}:
    del pieces[_continued(character)]
  ranked_pieces = sorted(pieces, key=lambda piece: (-pieces[piece], piece))
  return list(dict.fromkeys((*RESERVED_PIECES, *characters, *ranked_pieces)))


def _without_long(
  ranked: Sequence[tuple[str, int]],
) -> list[tuple[str, int]]:
  return [item for item in ranked if len(item[0]) <= _MAX_PIECE_CHARACTERS]


def _count_ends(
  words: Iterable[tuple[str, int]], pieces: Mapping[str, int] | None = None
) -> Mapping[str, int]:
  """Counts the ends of words, from each start of a piece; None: from all."""
  # Beginning of two characters -> length of the longest piece.
  longest = {}
  for piece in pieces or ():
    beginning = piece[: 4 if piece.startswith('##') else 2]
    longest[beginning] = max(longest.get(beginning, 0), len(piece))
  counts = collections.Counter()
  for word, count in words:
    starts = _starts(word, pieces, longest) if pieces else range(len(word))
    for start in starts:
      end = word[start:]
      counts[_continued(end) if start else end] += count
  return counts


def _starts(
  word: str, pieces: Mapping[str, int], longest: Mapping[str, int]
) -> Iterator[int]:
  """Yields where pieces begin if each is the longest that fits."""
  start = 0
  while start < len(word):
    yield start
    rest, prefix = (_continued(word[start:]), 2) if start else (word, 0)
    # Every character is a piece.
    rest = rest[: longest.get(rest[: prefix + 2], prefix + 1)]
    while rest not in pieces:
      rest = rest[:-1]
    start += len(rest) - prefix


def _continued(text: str) -> str:
  return f'##{text}'


def _trim(pieces: list[str], vocabulary_size: int) -> list[str]:
  """Drops the last pieces, the rarest, but keeps every single character."""
  num_surplus = len(pieces) - vocabulary_size
  kept = []
  for piece in reversed(pieces):
    is_character = len(piece) == 1 or _is_continued_character(piece)
    if num_surplus > 0 and not is_character:
      num_surplus -= 1
    else:
      kept.append(piece)
  return kept[::-1]


def _is_continued_character(piece: str) -> bool:
  return len(piece) == 3 and piece.startswith('##')

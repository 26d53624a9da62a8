"""Learns a WordPiece vocabulary of an exact size from word counts."""

import collections
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

from tff_fedfish.data import wordpiece
from tff_fedfish.errors import UserError

RESERVED_PIECES = (
  wordpiece.PADDING_PIECE,
  wordpiece.UNKNOWN_PIECE,
  wordpiece.END_OF_TEXT_PIECES[0],
)
# Fewer leave no room for pieces beside the characters of an alphabet.
MIN_VOCABULARY_SIZE = 256
MAX_VOCABULARY_SIZE = 1_000_000
# More unused pieces for each that is learned are surely a mistake, except in
# vocabularies of up to the default size, which small models need.
_MAX_UNUSED_PER_PIECE = 10
_HARMLESS_SIZE = 2048
# Share of character occurrences that the vocabulary spells. The rarest
# characters, each of which costs two pieces, become unknown.
_CHARACTER_COVERAGE = 0.9999
# The learner's time grows with distinct words; rarer ones hardly matter to it.
_MAX_LEARNER_WORDS = 200_000
# A vocabulary at most this much too large is trimmed instead of learned again.
_TRIMMED_SHARE = 0.1


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


def train_vocabulary(
  word_counts: Mapping[bytes, int],
  *,
  vocabulary_size: int,
  lower_case: bool = True,
  on_step: Callable[[str], None] = lambda line: None,
) -> TrainedVocabulary:
  """Learns a WordPiece vocabulary (Schuster and Nakajima, 2012).

  The learner of TensorFlow Text turns a frequency threshold into a vocabulary
  of roughly predictable size. Here the threshold is searched, and the smallest
  vocabulary found that is large enough loses its rarest pieces, but no
  character, until the size is exact. The result depends on the arguments only,
  not on the order of `word_counts`.

  Args:
    word_counts: UTF-8 word, as written, to occurrences.
    vocabulary_size: Pieces of the vocabulary, from 256 to 1,000,000.
    lower_case: Lower-case words and strip accents first, as the tokenizer will.
    on_step: Called with a line on each step of the search.

  Returns:
    The vocabulary.

  Raises:
    UserError: If the size is too small, or too large for the words, or there is
      no word.
  """
  check_vocabulary_size(vocabulary_size)
  counts = _split_words(word_counts, lower_case)
  if not counts:
    raise UserError(
      'A vocabulary is learned from words, but the corpus holds none. Group '
      'a corpus with text.'
    )
  characters = _frequent_characters(
    counts, (vocabulary_size - len(RESERVED_PIECES)) // 4
  )
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
      'spelled with them. Raise it.'
    )
  # Sorted, as the learner breaks ties by order where it has to drop words.
  ranked = sorted(spelled.items(), key=lambda item: (-item[1], item[0]))
  pieces = _search(ranked[:_MAX_LEARNER_WORDS], vocabulary_size, on_step)
  pieces = _trim(pieces, vocabulary_size)
  most = max((1 + _MAX_UNUSED_PER_PIECE) * len(pieces), _HARMLESS_SIZE)
  if vocabulary_size > most:
    raise UserError(
      f'`--vocabulary_size` must be at most {most:,} for this corpus, which '
      f'has {len(pieces):,} pieces to learn, found {vocabulary_size}: the '
      'rest would be unused. Lower it, or group a larger corpus.'
    )
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
  if vocabulary_size < MIN_VOCABULARY_SIZE:
    raise UserError(
      f'`--vocabulary_size` must be at least {MIN_VOCABULARY_SIZE}, found '
      f'{vocabulary_size}. Raise it: a smaller one holds characters only.'
    )
  if vocabulary_size > MAX_VOCABULARY_SIZE:
    raise UserError(
      f'`--vocabulary_size` must be at most {MAX_VOCABULARY_SIZE:,}, found '
      f'{vocabulary_size}. Lower it.'
    )


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


def _frequent_characters(
  counts: Mapping[str, int], max_characters: int
) -> set[str]:
  occurrences = collections.Counter()
  for word, count in counts.items():
    for character in word:
      occurrences[character] += count
  ranked = sorted(occurrences.items(), key=lambda item: (-item[1], item[0]))
  needed = _CHARACTER_COVERAGE * sum(occurrences.values())
  characters, covered = set(), 0
  for character, count in ranked[:max_characters]:
    # ASCII goes in wherever it stands: other corpora will have more of it.
    if covered < needed or character.isascii():
      characters.add(character)
    covered += count
  return characters


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
  while low < high:
    threshold = math.isqrt(low * high)
    if smallest and largest:
      # The size falls about as a power of the threshold.
      share = math.log(len(smallest) / ((1 + _TRIMMED_SHARE / 2) * wanted))
      share /= math.log(len(smallest) / len(largest))
      threshold = round((low - 1) * (high / (low - 1)) ** share)
      threshold = min(max(threshold, low), high - 1)
    pieces = _learn(ranked, threshold)
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


def _learn(ranked: Sequence[tuple[str, int]], threshold: int) -> list[str]:
  """Returns the pieces at one threshold, reserved ones first."""
  from tensorflow_text.tools.wordpiece_vocab import (
    wordpiece_tokenizer_learner_lib as learner,
  )

  # Equal bounds: the learner's own search ends at its first step.
  pieces = learner.learn(
    ranked,
    vocab_size=len(ranked),
    reserved_tokens=list(RESERVED_PIECES),
    lower_thresh=threshold,
    upper_thresh=threshold,
    max_input_tokens=-1,
    max_unique_chars=len({c for word, _ in ranked for c in word}),
  )
  # The learner also makes a continuation of every character, even of those,
  # such as punctuation, that are always words of their own.
  inner = {character for word, _ in ranked for character in word[1:]}
  return [
    piece
    for piece in pieces
    if not _is_continued_character(piece) or piece[2:] in inner
  ]


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

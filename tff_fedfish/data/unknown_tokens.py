"""Fraction of a text's tokens that a vocabulary cannot express.

A model soon learns to predict the unknown token, so a text that is full of it
gets good scores, which say nothing about the text.
"""

from collections.abc import Callable, Iterable

import numpy as np

from tff_fedfish.data.grouped_corpus import GroupedCorpus, example_texts
from tff_fedfish.data.sequences import Sequences
from tff_fedfish.data.tokenizers import Tokenizer

MAX_FRACTION = 0.05
"""Larger ones are warned of."""


def fraction_of(
  rows: Iterable[Sequences], tokenizer: Tokenizer | None
) -> float | None:
  """Returns the fraction of unknown tokens in the rows of some clients.

  Args:
    rows: Sequences. Ends of texts count as tokens, padding does not.
    tokenizer: Made the sequences; None with images.

  Returns:
    A number in [0, 1]. None with images, without a token, and with a vocabulary
    that has no unknown token.
  """
  if tokenizer is None or tokenizer.unknown_id is None:
    return None
  num_unknown = num_tokens = 0
  for sequences in rows:
    num_unknown += sequences.count(tokenizer.unknown_id)
    num_tokens += sequences.num_tokens
  return num_unknown / num_tokens if num_tokens else None


def fraction_of_corpus(
  corpus: GroupedCorpus,
  tokenizer: Tokenizer,
  on_client: Callable[[], None] = lambda: None,
) -> float | None:
  """Returns the fraction of unknown tokens in all texts of a corpus.

  Args:
    corpus: The corpus.
    tokenizer: Turns texts into tokens; the end of each text counts as one, too.
    on_client: Called after each client.

  Returns:
    See `fraction_of`.

  Raises:
    UserError: If an example has no text.
  """
  if tokenizer.unknown_id is None:
    return None
  num_unknown = num_tokens = 0
  for client_id, examples in corpus.stream():
    texts = example_texts(client_id, examples)
    for token_ids in tokenizer.encode_batch(texts):
      num_unknown += np.count_nonzero(token_ids == tokenizer.unknown_id)
      num_tokens += len(token_ids) + 1
    on_client()
  return num_unknown / num_tokens if num_tokens else None


def describe(fraction: float | None) -> str:
  """Returns a line for the console, with the warning where it is due."""
  if fraction is None:
    return 'Unknown tokens: -'
  line = f'Unknown tokens: {100 * fraction:.2f} %'
  if text := warning(fraction):
    line += f' (warning: above {100 * MAX_FRACTION:g} %, {text})'
  return line


def warning(fraction: float | None) -> str:
  """Returns what is wrong with such a fraction; '' if nothing is."""
  if fraction is None or fraction <= MAX_FRACTION:
    return ''
  return 'the vocabulary cannot express this text, so scores on it say little'

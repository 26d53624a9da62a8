"""Bytes of the text that scored tokens stand for.

Losses in nats per token of two vocabularies cannot be compared; bits per byte
of the same text can.
"""

from tff_fedfish.data.sequences import Sequences
from tff_fedfish.data.tokenizers import Tokenizer


def num_scored_bytes(rows: Sequences, tokenizer: Tokenizer) -> int:
  """Returns the UTF-8 bytes of the targets of a client's sequences.

  The first token of a sequence is not a target. The text is the one that the
  tokens decode to: ends of texts have no bytes, and what a vocabulary
  normalizes away (WordPiece: white space, case, accents) or cannot express
  counts as it is decoded.

  Args:
    rows: The sequences.
    tokenizer: Made them.
  """
  return sum(
    tokenizer.num_bytes(tokens[: num_targets + 1])
    - tokenizer.num_bytes(tokens[:1])
    for tokens, num_targets in zip(rows.tokens, rows.num_targets, strict=True)
  )

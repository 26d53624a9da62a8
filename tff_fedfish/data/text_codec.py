"""Texts to token ids by a tokenizer of tensorflow-text."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

BYTE_PIECES = [f'<0x{byte:02X}>' for byte in range(256)]
"""Pieces that spell characters which a vocabulary does not have."""


class TextCodec:
  """Encodes with a tokenizer of tensorflow-text.

  Attributes:
    tokenizer: Turns texts into ragged int32 ids.
    letter_of: Ids of `BYTE_PIECES`, each to that of a letter.
  """

  tokenizer: Any
  letter_of: Mapping[int, int] = {}

  def encode_batch(self, texts: Sequence[bytes]) -> list[np.ndarray]:
    """Returns for each text, in UTF-8, its token ids, int32 [num_tokens]."""
    import tensorflow as tf

    with tf.device('/CPU:0'):
      ragged = self.tokenizer.tokenize(tf.constant(texts))
    token_ids = ragged.flat_values.numpy()
    splits = ragged.row_splits.numpy()
    return [token_ids[i:j] for i, j in itertools.pairwise(splits)]

  def num_bytes(self, token_ids: Sequence[int]) -> int:
    """Returns the UTF-8 bytes of the text of the ids."""
    return len(self.decode(token_ids).encode())

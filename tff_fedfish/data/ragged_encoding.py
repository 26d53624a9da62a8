"""Texts to ragged ids with a tokenizer of tensorflow-text."""

from collections.abc import Sequence
from typing import Any

import numpy as np


def encode(
  tokenizer: Any, texts: Sequence[bytes]
) -> tuple[np.ndarray, np.ndarray]:
  """Returns all ids, int32, and where each text starts and ends, int64.

  Args:
    tokenizer: A tokenizer of tensorflow-text whose tokens are int32 ids.
    texts: UTF-8 texts, at least one.

  Returns:
    (ids [num_ids], splits [num_texts + 1]).
  """
  import tensorflow as tf

  with tf.device('/CPU:0'):
    ragged = tokenizer.tokenize(tf.constant(texts))
  return ragged.flat_values.numpy(), ragged.row_splits.numpy()

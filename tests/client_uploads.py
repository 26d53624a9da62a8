"""Uploads in memory, for tests of solvers."""

import numpy as np

from tff_fedfish.one_shot.solving import Upload


class Uploads(list):
  """A list of uploads with the clients' shares; counts what is read."""

  def __init__(self, num_examples, weights, summaries):
    super().__init__(map(Upload, num_examples, weights, summaries))
    self.shares = np.array(num_examples) / sum(num_examples)
    self.num_read = 0

  def __iter__(self):
    for upload in super().__iter__():
      self.num_read += 1
      yield upload

  @property
  def start(self):
    """w_bar, float32."""
    tensors = zip(
      *(upload.weights for upload in list.__iter__(self)), strict=True
    )
    return tuple(
      np.average(np.stack(t), axis=0, weights=self.shares).astype(np.float32)
      for t in tensors
    )

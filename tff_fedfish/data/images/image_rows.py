"""A client's labelled images as the rows of batches."""

from __future__ import annotations

import collections
import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True, eq=False)
class ImageRows:
  """Images of one client, and a count of what was cut from them.

  The sibling of `sequences.Sequences`: a row has one target, its class, and
  counts as one token where tokens are counted.
  """

  images: np.ndarray
  """uint8 [n, height, width, channels]."""
  labels: np.ndarray
  """int32 [n]."""
  noise_seeds: np.ndarray
  """int32 [n, 2]; what training and fine-tuning draw from. Else zeros."""
  num_dropped_sequences: int = 0
  """Rows that `sequences.take` cut off."""
  num_dropped_tokens: int = 0
  """The same number: a row counts 1 token."""
  is_repeated: np.ndarray | None = None
  """bool [n]; as of `sequences.Sequences`."""

  def __len__(self) -> int:
    return len(self.labels)

  @property
  def num_tokens(self) -> int:
    """A token for each image."""
    return len(self)

  @property
  def num_lost_tokens(self) -> int:
    """Images that were cut off."""
    return self.num_dropped_tokens

  def select(self, index: slice | np.ndarray) -> ImageRows:
    """Returns some of the images, with the counts as they are.

    Args:
      index: A slice, or the rows' numbers in the new order.
    """
    is_repeated = self.is_repeated
    return dataclasses.replace(
      self,
      images=self.images[index],
      labels=self.labels[index],
      noise_seeds=self.noise_seeds[index],
      is_repeated=None if is_repeated is None else is_repeated[index],
    )

  def batch_features(self) -> collections.OrderedDict:
    """Returns x, images and seeds of their noise, and y, the labels.

    x also has `is_repeated` where that is not None.
    """
    x = collections.OrderedDict(image=self.images, noise_seed=self.noise_seeds)
    if self.is_repeated is not None:
      x['is_repeated'] = self.is_repeated
    return collections.OrderedDict(x=x, y=self.labels)


def batch_spec(
  image_shape: tuple[int, int, int],
) -> collections.OrderedDict:
  """Returns the type of a batch.

  Args:
    image_shape: Height, width and channels.

  Returns:
    `OrderedDict(x, y)` of `tf.TensorSpec`s: x is `OrderedDict(image,
    noise_seed)`, uint8 [None, height, width, channels] and int32 [None, 2]; y
    int32 [None].
  """
  import tensorflow as tf

  return collections.OrderedDict(
    x=collections.OrderedDict(
      image=tf.TensorSpec([None, *image_shape], tf.uint8),
      noise_seed=tf.TensorSpec([None, 2], tf.int32),
    ),
    y=tf.TensorSpec([None], tf.int32),
  )

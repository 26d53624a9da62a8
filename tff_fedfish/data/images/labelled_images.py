"""One side, train or test, of a corpus of images."""

from typing import NamedTuple

import numpy as np


class LabelledImages(NamedTuple):
  """Images and their classes, row by row."""

  images: np.ndarray
  """uint8 [n, height, width, channels]."""
  labels: np.ndarray
  """int32 [n]; classes are numbered from 0."""
  coarse_labels: np.ndarray | None = None
  """int32 [n], the superclasses; None where there are none."""

"""What is known of the corpora of images before one is opened."""

import dataclasses
import types
from collections.abc import Mapping
from typing import Literal


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageCorpus:
  """A corpus as it is published; opening it checks that it is so."""

  image_shape: tuple[int, int, int]
  """Height, width and channels."""
  num_classes: int
  """Classes to tell apart."""
  num_images: int
  """Images of both sides, which are held in memory a byte per value."""
  clients: Literal['own', 'partition', 'either']
  """Where its clients come from: its own, a partition, or what is chosen."""

  @property
  def num_bytes(self) -> int:
    """Memory that the images take."""
    height, width, channels = self.image_shape
    return self.num_images * height * width * channels


IMAGE_CORPORA: Mapping[str, ImageCorpus] = types.MappingProxyType(
  {
    'mnist_by_writer': ImageCorpus(
      image_shape=(28, 28, 1),
      num_classes=10,
      num_images=70_000,
      clients='own',
    ),
    'emnist_by_writer': ImageCorpus(
      image_shape=(28, 28, 1),
      num_classes=62,
      num_images=671_585 + 77_483,
      clients='own',
    ),
    'cifar10': ImageCorpus(
      image_shape=(32, 32, 3),
      num_classes=10,
      num_images=60_000,
      clients='partition',
    ),
    'cifar100': ImageCorpus(
      image_shape=(32, 32, 3),
      num_classes=100,
      num_images=60_000,
      clients='either',
    ),
    'fashion_mnist': ImageCorpus(
      image_shape=(28, 28, 1),
      num_classes=10,
      num_images=70_000,
      clients='partition',
    ),
  }
)
"""By the names that `data.corpus` and `open_image_clients` take."""

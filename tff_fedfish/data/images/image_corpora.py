"""Facts about the corpora of images that are known before one is opened."""

import dataclasses
import types
from collections.abc import Mapping
from typing import Literal


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageCorpus:
  """Facts of a published corpus; `fedfish train` checks shape and classes."""

  image_shape: tuple[int, int, int] | None
  """Height, width and channels. None, as in the next two: the files say."""
  num_classes: int | None
  """Classes to tell apart."""
  num_images: int | None
  """Images of both sides, which are held in memory a byte per value."""
  clients: Literal['own', 'partition', 'either']
  """Source of its clients: its own, a partition, or whichever is chosen."""
  holds_out: bool = True
  """Whether some of its clients are held out by a split of its own."""
  pixels: str
  """Meaning of the values 0 to 255 of its images, as part of a sentence."""


_MNIST = dict(image_shape=(28, 28, 1), num_classes=10, num_images=70_000)
_CIFAR = dict(
  image_shape=(32, 32, 3),
  num_images=60_000,
  pixels='channels are red, green and blue',
)

IMAGE_CORPORA: Mapping[str, ImageCorpus] = types.MappingProxyType(
  {
    'mnist_by_writer': ImageCorpus(
      **_MNIST, clients='own', pixels='0 is background and 255 ink'
    ),
    'emnist_by_writer': ImageCorpus(
      image_shape=(28, 28, 1),
      num_classes=62,
      num_images=671_585 + 77_483,
      clients='own',
      pixels='255 is background and 0 ink; of values from 0 to 1, as they are '
      'published, 255 times, rounded',
    ),
    'cifar10': ImageCorpus(**_CIFAR, num_classes=10, clients='partition'),
    'cifar100': ImageCorpus(**_CIFAR, num_classes=100, clients='either'),
    'fashion_mnist': ImageCorpus(
      **_MNIST, clients='partition', pixels='0 is background'
    ),
    'mnist': ImageCorpus(
      **_MNIST, clients='partition', pixels='0 is background and 255 ink'
    ),
    'image_folder': ImageCorpus(
      image_shape=None,
      num_classes=None,
      num_images=None,
      clients='own',
      holds_out=False,
      pixels='channels are red, green and blue, or one of grey',
    ),
  }
)
"""Facts by the names that `data.corpus` and `load_image_corpus` take."""

"""Shape of an image model; no TensorFlow, so counting is free."""

import dataclasses
import math
import types
from collections.abc import Callable, Mapping

from models import emnist_cnn_shapes, resnet_shapes

_WEIGHT_SHAPES: Mapping[str, Callable[..., dict[str, tuple[int, ...]]]] = (
  types.MappingProxyType(
    {
      'emnist_cnn': emnist_cnn_shapes.weight_shapes,
      'resnet18': resnet_shapes.weight_shapes,
    }
  )
)

IMAGE_MODELS = tuple(_WEIGHT_SHAPES)
"""Names of the image models; `image_classifier.py` says how they compute."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageModelConfig:
  """Shape of an image model, which fixes the shapes of its weights."""

  name: str
  """One of `IMAGE_MODELS`."""
  num_classes: int
  """Classes to tell apart, >= 1."""
  image_shape: tuple[int, int, int]
  """Height, width and channels."""

  def __post_init__(self):
    if self.name not in IMAGE_MODELS:
      raise ValueError(
        f'`name` must be one of {", ".join(IMAGE_MODELS)}, found {self.name!r}.'
      )
    for name, value in (
      ('num_classes', self.num_classes),
      ('image_shape', min(self.image_shape)),
    ):
      if value < 1:
        raise ValueError(f'`{name}` must be at least 1, found {value}.')

  def weight_shapes(self) -> dict[str, tuple[int, ...]]:
    """Returns the name and shape of every weight, in the order of `weights`.

    Raises:
      ValueError: If the images are too small for the model.
    """
    return _WEIGHT_SHAPES[self.name](self.num_classes, self.image_shape)

  @property
  def num_parameters(self) -> int:
    """The number of trainable scalars."""
    return sum(math.prod(shape) for shape in self.weight_shapes().values())

"""Shapes of the image models; no TensorFlow, so counting is free."""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

EMNIST_SHAPE = (28, 28, 1)
"""Height, width and channels of EMNIST, MNIST and Fashion-MNIST."""
CIFAR_SHAPE = (32, 32, 3)
"""Height, width and channels of the images that `resnet18` was made for."""

# Units of each hidden layer, those of convolutions first.
_WIDTHS = {
  'emnist_cnn': (32, 64, 128),
  'lenet': (6, 16, 120, 84),
  'fed_net_cnn': (32, 64, 512, 128),
}

# Below it nothing is left to pool.
_CNN_MIN_SIDE = 6

# Channels and stride of each stage.
_RESNET_STAGES = ((64, 1), (128, 2), (256, 2), (512, 2))
_RESNET_BLOCKS_PER_STAGE = 2
RESNET_NORM_GROUPS = 32
"""Groups of channels that each norm of `resnet18` normalizes together."""

_LENET_MIN_SIDE = 16


def emnist_cnn_shapes(
  num_classes: int,
  image_shape: tuple[int, int, int] = EMNIST_SHAPE,
  widths: tuple[int, int, int] = _WIDTHS['emnist_cnn'],
) -> dict[str, tuple[int, ...]]:
  """Returns the name and shape of every weight of the EMNIST CNN, in order.

  Args:
    num_classes: Classes to tell apart, 62 for all of EMNIST.
    image_shape: Height, width (each at least 6 pixels) and channels.
    widths: Channels of both convolutions and units of the hidden layer.

  Raises:
    ValueError: If the images are too small.
  """
  height, width, channels = image_shape
  _check_sides(height, width, _CNN_MIN_SIDE)
  first, second, hidden = widths
  # Each valid 3x3 convolution takes a pixel off every edge.
  num_features = ((height - 4) // 2) * ((width - 4) // 2) * second
  return {
    'conv_1/kernel': (3, 3, channels, first),
    'conv_1/bias': (first,),
    'conv_2/kernel': (3, 3, first, second),
    'conv_2/bias': (second,),
    'hidden/kernel': (num_features, hidden),
    'hidden/bias': (hidden,),
    'head/kernel': (hidden, num_classes),
    'head/bias': (num_classes,),
  }


class ResnetBlock(NamedTuple):
  """Two convolutions and the shortcut that is added to them."""

  name: str
  channels_in: int
  channels: int
  stride: int

  @property
  def projects(self) -> bool:
    """Whether the shortcut needs a convolution to fit what is added to it."""
    return self.stride > 1 or self.channels_in != self.channels


def resnet_blocks() -> Iterator[ResnetBlock]:
  """Yields the blocks of ResNet-18 from the stem to the head."""
  channels_in = _RESNET_STAGES[0][0]
  for stage_num, (channels, stride) in enumerate(_RESNET_STAGES, start=1):
    for block_num in range(1, _RESNET_BLOCKS_PER_STAGE + 1):
      name = f'stage_{stage_num}/block_{block_num}'
      yield ResnetBlock(name, channels_in, channels, stride)
      channels_in, stride = channels, 1


def resnet_shapes(
  num_classes: int, image_shape: tuple[int, int, int] = CIFAR_SHAPE
) -> dict[str, tuple[int, ...]]:
  """Returns the name and shape of every weight of ResNet-18, in order.

  Args:
    num_classes: Classes to tell apart, 100 for CIFAR-100.
    image_shape: Height, width and channels. Only the channels matter: the last
      feature map is averaged over its positions.
  """

  def convolution(name, side, channels_in, channels):
    return {
      f'{name}/kernel': (side, side, channels_in, channels),
      f'{name}/norm/scale': (channels,),
      f'{name}/norm/bias': (channels,),
    }

  shapes = convolution('stem', 3, image_shape[2], _RESNET_STAGES[0][0])
  for block in resnet_blocks():
    name, channels_in, channels, _ = block
    shapes |= convolution(f'{name}/conv_1', 3, channels_in, channels)
    shapes |= convolution(f'{name}/conv_2', 3, channels, channels)
    if block.projects:
      shapes |= convolution(f'{name}/shortcut', 1, channels_in, channels)
  return shapes | {
    'head/kernel': (_RESNET_STAGES[-1][0], num_classes),
    'head/bias': (num_classes,),
  }


def linear_shapes(
  num_classes: int, image_shape: tuple[int, int, int] = EMNIST_SHAPE
) -> dict[str, tuple[int, ...]]:
  """Returns the name and shape of both weights of a linear model, in order."""
  return {
    'head/kernel': (math.prod(image_shape), num_classes),
    'head/bias': (num_classes,),
  }


def lenet_shapes(
  num_classes: int,
  image_shape: tuple[int, int, int] = EMNIST_SHAPE,
  widths: tuple[int, int, int, int] = _WIDTHS['lenet'],
) -> dict[str, tuple[int, ...]]:
  """Returns the name and shape of every weight of LeNet, in order.

  Args:
    num_classes: Classes to tell apart, 10 for Fashion-MNIST.
    image_shape: Height, width (each at least 16 pixels) and channels.
    widths: Channels of both convolutions and units of both hidden layers.

  Raises:
    ValueError: If the images are too small.
  """
  height, width, channels = image_shape
  _check_sides(height, width, _LENET_MIN_SIDE)
  first, second, hidden_1, hidden_2 = widths
  (_, rows), (_, columns) = _lenet_sides(height), _lenet_sides(width)
  return {
    'conv_1/kernel': (5, 5, channels, first),
    'conv_2/kernel': (5, 5, first, second),
    'hidden_1/kernel': ((rows // 2) * (columns // 2) * second, hidden_1),
    'hidden_2/kernel': (hidden_1, hidden_2),
    'head/kernel': (hidden_2, num_classes),
  }


def fed_net_cnn_shapes(
  num_classes: int,
  image_shape: tuple[int, int, int] = CIFAR_SHAPE,
  widths: tuple[int, int, int, int] = _WIDTHS['fed_net_cnn'],
) -> dict[str, tuple[int, ...]]:
  """Returns the name and shape of every weight of FedFisher's CNN, in order.

  See `lenet_shapes`; by default for CIFAR-10's images.
  """
  return lenet_shapes(num_classes, image_shape, widths)


def _lenet_sides(side):
  """Returns one side of the outputs of each of LeNet's convolutions."""
  # A valid 5x5 convolution takes two pixels off every edge, pooling halves.
  return side - 4, (side - 4) // 2 - 4


def _check_sides(height, width, min_side):
  if min(height, width) < min_side:
    raise ValueError(
      f'`image_shape` must have at least {min_side} x {min_side} pixels, found '
      f'{height} x {width}.'
    )


_WEIGHT_SHAPES = {
  'emnist_cnn': emnist_cnn_shapes,
  'resnet18': resnet_shapes,
  'linear': linear_shapes,
  'lenet': lenet_shapes,
  'fed_net_cnn': fed_net_cnn_shapes,
}

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
  widths: tuple[int, ...] | None = None
  """Units of each hidden layer in order, of a convolution its channels. None:
  the model's own. Only of models that are chains of layers."""

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
    own = _WIDTHS.get(self.name, ())
    if self.widths is not None and (
      not own or len(self.widths) != len(own) or min(self.widths) < 1
    ):
      wanted = f'{len(own)} numbers of at least 1, or None' if own else 'None'
      raise ValueError(
        f'`widths` must be {wanted} with {self.name!r}, found {self.widths}.'
      )

  def weight_shapes(self) -> dict[str, tuple[int, ...]]:
    """Returns the name and shape of every weight, in the order of `weights`.

    Raises:
      ValueError: If the images are too small for the model.
    """
    widths = () if self.widths is None else (self.widths,)
    return _WEIGHT_SHAPES[self.name](
      self.num_classes, self.image_shape, *widths
    )

  def widths_of(self, weights: Sequence[Any]) -> tuple[int, ...]:
    """Returns the widths of a chain's weights, which may be other than its own.

    Args:
      weights: Arrays or tensors in the order of `weight_shapes`.
    """
    *hidden, _ = (
      weight.shape[-1]
      for name, weight in zip(self.weight_shapes(), weights, strict=True)
      if name.endswith('/kernel')
    )
    return tuple(hidden)

  def num_convolved(self) -> int:
    """Returns the outputs of all convolutions for one image."""
    height, width, _ = self.image_shape
    if self.name == 'linear':
      return 0
    if self.name in _WIDTHS:
      first, second, *_ = self.widths or _WIDTHS[self.name]
      if self.name == 'emnist_cnn':
        # Each valid 3x3 convolution takes a pixel off every edge.
        num_first = (height - 2) * (width - 2) * first
        return num_first + (height - 4) * (width - 4) * second
      sizes = (first, second), _lenet_sides(height), _lenet_sides(width)
      return sum(map(math.prod, zip(*sizes, strict=True)))
    num_outputs = height * width * _RESNET_STAGES[0][0]
    for block in resnet_blocks():
      # Rounded up.
      height, width = -(-height // block.stride), -(-width // block.stride)
      num_outputs += (2 + block.projects) * height * width * block.channels
    return num_outputs

"""Shapes of the image models; no TensorFlow, so counting is free."""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

EMNIST_SHAPE = (28, 28, 1)
"""Height, width and channels of EMNIST, MNIST and Fashion-MNIST."""
CIFAR_SHAPE = (32, 32, 3)
"""Height, width and channels of the images that `resnet18` was made for."""
IMAGE_MODELS = ('emnist_cnn', 'resnet18', 'linear', 'lenet', 'fed_net_cnn')
"""Names of the image models; `image_models.py` says how they compute."""
RESNET_NORM_GROUPS = 32
"""Groups of channels that each norm of `resnet18` normalizes together."""

# Channels and stride of each stage.
_RESNET_STAGES = ((64, 1), (128, 2), (256, 2), (512, 2))
_RESNET_BLOCKS_PER_STAGE = 2


class Chain(NamedTuple):
  """A model whose layers read only the layer before them, the head last."""

  widths: dict[str, int]
  """Layer -> its units, of a convolution its channels."""
  has_biases: bool
  kernel_side: int = 0
  """Side of the kernels of valid convolutions: without padding."""
  pooled: tuple[str, ...] = ()
  """Convolutions before 2x2 max pooling."""
  min_side: int = 1
  """Smallest side of the images; below it nothing is left to pool."""
  dropouts: tuple[float, float] = (0.0, 0.0)
  """Rates behind the convolutions, and before the head."""


_BOTH = ('conv_1', 'conv_2')
CHAINS = {
  'emnist_cnn': Chain(
    *(dict(conv_1=32, conv_2=64, hidden=128), True, 3, ('conv_2',), 6),
    dropouts=(0.25, 0.5),
  ),
  'linear': Chain({}, True),
  'lenet': Chain(
    dict(conv_1=6, conv_2=16, hidden_1=120, hidden_2=84), False, 5, _BOTH, 16
  ),
  'fed_net_cnn': Chain(
    dict(conv_1=32, conv_2=64, hidden_1=512, hidden_2=128), False, 5, _BOTH, 16
  ),
}
"""All models but `resnet18`."""


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageModelConfig:
  """Shape of an image model, which fixes the shapes of its weights."""

  name: str
  """One of `IMAGE_MODELS`."""
  num_classes: int
  """Classes to tell apart, >= 1."""
  image_shape: tuple[int, int, int]
  """Height, width and channels. `resnet18` reads only the channels: its last
  feature map is averaged over its positions."""
  widths: tuple[int, ...] | None = None
  """Units of each hidden layer in order, of a convolution its channels. None:
  the model's own. `resnet18` and `linear` have no others."""

  def __post_init__(self):
    if self.name not in IMAGE_MODELS:
      raise ValueError(
        f'`name` must be one of {", ".join(IMAGE_MODELS)}, found {self.name!r}.'
      )
    sizes = dict(
      num_classes=self.num_classes, image_shape=min(self.image_shape)
    )
    for name, size in sizes.items():
      if size < 1:
        raise ValueError(f'`{name}` must be at least 1, found {size}.')

  def weight_shapes(self) -> dict[str, tuple[int, ...]]:
    """Returns the name and shape of every weight, in the order of `weights`.

    Raises:
      ValueError: If the images are too small for the model.
    """
    return self._sizes()[0]

  def num_convolved(self) -> int:
    """Returns the outputs of all convolutions for one image."""
    return self._sizes()[1]

  def widths_of(self, weights: Sequence[Any]) -> tuple[int, ...]:
    """Returns the widths of a chain's weights, in the model's order.

    They may be other than its own.
    """
    *hidden, _ = (
      weight.shape[-1]
      for name, weight in zip(self.weight_shapes(), weights, strict=True)
      if name.endswith('/kernel')
    )
    return tuple(hidden)

  def _sizes(self):
    """Returns (weight shapes, outputs of all convolutions)."""
    return self._chain_sizes() if self.name in CHAINS else self._resnet_sizes()

  def _chain_sizes(self):
    chain = CHAINS[self.name]
    height, width, channels = self.image_shape
    if min(height, width) < chain.min_side:
      raise ValueError(
        f'`image_shape` must have at least {chain.min_side} x {chain.min_side} '
        f'pixels, found {height} x {width}.'
      )
    shapes, num_convolved, num_inputs = {}, 0, math.prod(self.image_shape)

    def add(layer, *sizes):
      shapes[f'{layer}/kernel'] = sizes
      if chain.has_biases:
        shapes[f'{layer}/bias'] = sizes[-1:]

    widths = self.widths or chain.widths.values()
    for layer, units in zip(chain.widths, widths, strict=True):
      if not layer.startswith('conv'):
        add(layer, num_inputs, units)
        num_inputs = units
        continue
      side = chain.kernel_side
      add(layer, side, side, channels, units)
      height, width, channels = height - side + 1, width - side + 1, units
      num_convolved += height * width * channels
      if layer in chain.pooled:
        height, width = height // 2, width // 2
      num_inputs = height * width * channels
    add('head', num_inputs, self.num_classes)
    return shapes, num_convolved

  def _resnet_sizes(self):
    height, width, channels_in = self.image_shape
    shapes, num_convolved = {}, 0

    def add(name, side, channels_in, channels):
      nonlocal num_convolved
      shapes[f'{name}/kernel'] = (side, side, channels_in, channels)
      shapes[f'{name}/norm/scale'] = (channels,)
      shapes[f'{name}/norm/bias'] = (channels,)
      num_convolved += height * width * channels

    add('stem', 3, channels_in, _RESNET_STAGES[0][0])
    for block in resnet_blocks():
      name, channels_in, channels, stride = block
      # Rounded up.
      height, width = -(-height // stride), -(-width // stride)
      add(f'{name}/conv_1', 3, channels_in, channels)
      add(f'{name}/conv_2', 3, channels, channels)
      if block.projects:
        add(f'{name}/shortcut', 1, channels_in, channels)
    shapes['head/kernel'] = (_RESNET_STAGES[-1][0], self.num_classes)
    shapes['head/bias'] = (self.num_classes,)
    return shapes, num_convolved

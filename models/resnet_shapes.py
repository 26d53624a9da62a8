"""Shape of ResNet-18 for 32 x 32; no TensorFlow, so counting is free."""

from collections.abc import Iterator
from typing import NamedTuple

IMAGE_SHAPE = (32, 32, 3)
"""Height, width and channels of CIFAR's images."""

# Channels and stride of each stage.
_STAGES = ((64, 1), (128, 2), (256, 2), (512, 2))
_BLOCKS_PER_STAGE = 2


class Block(NamedTuple):
  """Two convolutions and what they are added to."""

  name: str
  channels_in: int
  channels: int
  stride: int

  @property
  def projects(self) -> bool:
    """Whether the shortcut needs a convolution to fit what is added to it."""
    return self.stride > 1 or self.channels_in != self.channels


def weight_shapes(
  num_classes: int, image_shape: tuple[int, int, int] = IMAGE_SHAPE
) -> dict[str, tuple[int, ...]]:
  """Returns the name and shape of every weight, in the order of `weights`.

  Args:
    num_classes: Classes to tell apart, 100 for CIFAR-100.
    image_shape: Height, width and channels. Only the channels matter: the last
      feature map is averaged over its positions.
  """
  first, last = _STAGES[0][0], _STAGES[-1][0]
  shapes = _conv_shapes('stem', 3, image_shape[2], first)
  for block in blocks():
    name, channels_in, channels, _ = block
    shapes |= _conv_shapes(f'{name}/conv_1', 3, channels_in, channels)
    shapes |= _conv_shapes(f'{name}/conv_2', 3, channels, channels)
    if block.projects:
      shapes |= _conv_shapes(f'{name}/shortcut', 1, channels_in, channels)
  return shapes | {
    'head/kernel': (last, num_classes),
    'head/bias': (num_classes,),
  }


def blocks() -> Iterator[Block]:
  """Yields the blocks from the stem to the head."""
  channels_in = _STAGES[0][0]
  for stage_num, (channels, stride) in enumerate(_STAGES, start=1):
    for block_num in range(1, _BLOCKS_PER_STAGE + 1):
      name = f'stage_{stage_num}/block_{block_num}'
      yield Block(name, channels_in, channels, stride)
      channels_in, stride = channels, 1


def _conv_shapes(name, side, channels_in, channels):
  return {
    f'{name}/kernel': (side, side, channels_in, channels),
    f'{name}/norm/scale': (channels,),
    f'{name}/norm/bias': (channels,),
  }

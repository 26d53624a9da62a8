"""Shape of the EMNIST CNN; no TensorFlow, so counting is free."""

IMAGE_SHAPE = (28, 28, 1)
"""Height, width and channels of what the paper trains it on."""

_CONV_CHANNELS = (32, 64)
_HIDDEN_WIDTH = 128
# Below it nothing is left to pool.
_MIN_SIDE = 6


def weight_shapes(
  num_classes: int, image_shape: tuple[int, int, int] = IMAGE_SHAPE
) -> dict[str, tuple[int, ...]]:
  """Returns the name and shape of every weight, in the order of `weights`.

  Args:
    num_classes: Classes to tell apart, 62 for all of EMNIST.
    image_shape: Height, width (each at least 6 pixels) and channels.

  Raises:
    ValueError: If the images are too small.
  """
  height, width, channels = image_shape
  if min(height, width) < _MIN_SIDE:
    raise ValueError(
      f'`image_shape` must have at least {_MIN_SIDE} x {_MIN_SIDE} pixels, '
      f'found {height} x {width}.'
    )
  first, second = _CONV_CHANNELS
  # Each valid 3x3 convolution takes a pixel off every edge.
  num_features = ((height - 4) // 2) * ((width - 4) // 2) * second
  return {
    'conv_1/kernel': (3, 3, channels, first),
    'conv_1/bias': (first,),
    'conv_2/kernel': (3, 3, first, second),
    'conv_2/bias': (second,),
    'hidden/kernel': (num_features, _HIDDEN_WIDTH),
    'hidden/bias': (_HIDDEN_WIDTH,),
    'head/kernel': (_HIDDEN_WIDTH, num_classes),
    'head/bias': (num_classes,),
  }

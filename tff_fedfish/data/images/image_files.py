"""Single PNG and JPEG files of any origin, as arrays; nothing is scaled."""

import io
import os
import stat
import warnings

import numpy as np

from tff_fedfish.errors import UserError

MIN_SIDE, MAX_SIDE = 16, 128
"""Pixels of a side of an image."""

# Pillow opens many more formats, some with external programs.
_FORMATS = ('PNG', 'JPEG')
# The largest image has 48 KiB of pixels, but Pillow also reads the rest.
_MAX_FILE_BYTES = 2**24
# Pillow's mode -> the mode it is converted to without any loss.
_MODES = dict.fromkeys(('1', 'L', 'LA'), 'L') | dict.fromkeys(
  ('P', 'PA', 'RGB', 'RGBA'), 'RGB'
)


def read_image(path: bytes) -> np.ndarray:
  """Reads one file.

  Args:
    path: Its path.

  Returns:
    uint8 [height, width, channels]; 1 channel where the file is grey, else 3.

  Raises:
    UserError: If it is no whole PNG or JPEG file, a side is not between
      `MIN_SIDE` and `MAX_SIDE`, or the pixels do not fit into 8 bits a channel.
  """
  # Late: people who have other corpora need not wait for it.
  from PIL import Image

  try:
    data = _read_file(path)
    with warnings.catch_warnings():
      # Pillow would print lines of its own, such as about large sizes.
      warnings.simplefilter('ignore')
      with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
        # Before anything is unpacked: a small file may hold a huge image.
        _check_header(image, path)
        _check_opaque(image, path)
        pixels = np.asarray(image.convert(_MODES[image.mode]))
  except UserError:
    raise
  # A damaged file makes Pillow raise OSError, SyntaxError, struct.error, ...
  except Exception as error:  # pylint: disable=broad-exception-caught
    # Its text would name an object in memory, not the file.
    unknown = isinstance(error, Image.UnidentifiedImageError)
    reason = 'it is neither' if unknown else ' '.join(str(error).split())
    raise UserError(
      f'{quoted(path)} must be a whole PNG or JPEG file that can be read, but '
      f'it is not ({reason}). Replace or remove it.'
    ) from error
  return pixels.reshape(*pixels.shape[:2], -1)


def quoted(path: bytes) -> str:
  """Returns a path in quotes, in one line whatever its bytes are."""
  return repr(os.fsdecode(path))


def _read_file(path):
  found = os.stat(path)
  # A pipe would never end.
  if not stat.S_ISREG(found.st_mode):
    raise OSError('it is no regular file')
  if found.st_size > _MAX_FILE_BYTES:
    raise OSError(f'it has more than {_MAX_FILE_BYTES:,} bytes')
  with open(path, 'rb') as file:
    return file.read()


def _check_header(image, path):
  width, height = image.size
  if not MIN_SIDE <= min(image.size) <= max(image.size) <= MAX_SIDE:
    raise UserError(
      f'{quoted(path)} must have sides of {MIN_SIDE} to {MAX_SIDE} pixels, '
      f'found {height} x {width} (height x width). Resize it.'
    )
  # Pillow cuts 16 bits of a colour down to 8 without a word.
  is_deep = any('16' in str(arguments) for *_, arguments in image.tile)
  if is_deep or image.mode not in _MODES:
    raise _unfit(path, '16 bits' if is_deep else f'mode {image.mode}')


def _check_opaque(image, path):
  if image.has_transparency_data:
    lowest, _ = image.convert('RGBA').getchannel('A').getextrema()
    if lowest < 255:
      raise _unfit(path, 'transparent pixels')


def _unfit(path, found):
  return UserError(
    f'{quoted(path)} must be grey or RGB with 8 bits a channel and no '
    f'transparent pixels, found {found}. Convert it.'
  )

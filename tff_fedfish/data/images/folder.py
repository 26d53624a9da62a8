"""People's own images: DIRECTORY/CLIENT/CLASS/*.png or *.jpg.

Nothing is scaled. Everything is in the order of the names' bytes, so that
nothing depends on the file system. Client ids and class names are the bytes of
the directories' names.
"""

import os
import warnings
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from tff_fedfish.data.images.image_clients import ImageClients
from tff_fedfish.errors import UserError

# Pixels of a side of an image.
_MIN_SIDE, _MAX_SIDE = 16, 128
_MAX_FILE_BYTES = 1 << 24
# Pillow opens many more formats, some with external programs.
_FORMATS = ('PNG', 'JPEG')
_EXTENSIONS = (b'.png', b'.jpg', b'.jpeg')
# Pillow's mode -> the mode it is converted to without any loss.
_MODES = dict.fromkeys(('1', 'L', 'LA'), 'L') | dict.fromkeys(
  ('P', 'PA', 'RGB', 'RGBA'), 'RGB'
)


class ImageFolder(NamedTuple):
  """The files of a folder and what their places say; none is opened."""

  paths: list[bytes]
  """Paths of all images, at least one, by client, class and name."""
  labels: list[int]
  """The class of each image."""
  client_rows: dict[bytes, range]
  """Client id -> its rows of both."""
  class_names: list[bytes]
  """Classes by label, at least two."""
  skipped: list[bytes]
  """Entries that are no images, and clients without any, below the folder."""


def read_image_folder(directory: str | os.PathLike) -> ImageClients:
  """Returns the clients of a folder of images; nobody is held out.

  All images are held in memory, a byte per value.

  Args:
    directory: Holds a directory per client, each with a directory per class.
      These must be the same for every client, and may be empty.

  Returns:
    Clients with `class_names`.

  Raises:
    UserError: If the directories are not laid out so, there are fewer than two
      classes, or an image cannot be read or differs in size from the others.
  """
  folder = list_folder(directory)
  first = read_image(folder.paths[0])
  # Not a list of arrays: it would have to be copied once more.
  images = np.empty((len(folder.paths), *first.shape), np.uint8)
  for row, path in enumerate(folder.paths):
    image = read_image(path)
    if image.shape != first.shape:
      raise UserError(
        'All images must have the same height, width and channels, but '
        f'{_quoted(folder.paths[0])} has {_size(first)} and {_quoted(path)} '
        f'has {_size(image)}. Convert one of them.'
      )
    images[row] = image
  skipped = ''
  if folder.skipped:
    skipped = (
      f'entries without an image of a class: {len(folder.skipped)} (such as '
      f'{_quoted(folder.skipped[0])})'
    )
  return ImageClients(
    images=images,
    labels=np.array(folder.labels, np.int32),
    client_rows=folder.client_rows,
    num_classes=len(folder.class_names),
    class_names=tuple(folder.class_names),
    skipped=skipped,
  )


def list_folder(directory: str | os.PathLike) -> ImageFolder:
  """Lists the files of a folder; raises UserError as `read_image_folder`."""
  root = os.fsencode(directory)
  skipped = []
  classes = {
    client: _names(root, client, os.path.isdir, skipped)
    for client in _names(root, b'', os.path.isdir, skipped)
  }
  class_names = sorted(set().union(*classes.values()))
  paths, labels, client_rows = [], [], {}
  for client, names in classes.items():
    if missing := sorted({*class_names} - {*names}):
      raise UserError(
        'Every client must have the same class directories, but '
        f'{_quoted(client)} has no {_quoted(missing[0])}, which others have. '
        'Rename one, or make an empty one where a client has no images of a '
        'class.'
      )
    start = len(paths)
    for label, name in enumerate(names):
      place = os.path.join(client, name)
      files = _names(root, place, _is_image, skipped)
      paths += [os.path.join(root, place, file) for file in files]
      labels += [label] * len(files)
    client_rows[client] = range(start, len(paths))
    if start == len(paths):
      skipped.append(client)
  if not paths or len(class_names) < 2:
    raise UserError(
      "Corpus 'image_folder' requires CLIENT/CLASS/*.png or *.jpg with at "
      f'least 2 classes in {_quoted(root)}, found {len(paths)} images of '
      f'{len(class_names)} classes. Name such a directory.'
    )
  return ImageFolder(paths, labels, client_rows, class_names, skipped)


def _names(
  root: bytes,
  place: bytes,
  is_wanted: Callable[[bytes], bool],
  skipped: list[bytes],
) -> list[bytes]:
  """Returns the wanted entries of a place, sorted; adds others to `skipped`."""
  directory = os.path.join(root, place)
  try:
    names = sorted(os.listdir(directory))
  except OSError as error:
    raise UserError(
      f'{_quoted(directory)} cannot be read ({error.strerror}). Change its '
      'permissions, or name another directory.'
    ) from error
  wanted = []
  for name in names:
    if not name.startswith(b'.') and is_wanted(os.path.join(directory, name)):
      wanted.append(name)
    else:
      skipped.append(os.path.join(place, name))
  return wanted


def read_image(path: bytes) -> np.ndarray:
  """Returns the pixels of one file.

  uint8 [height, width, channels]; 1 channel where the file is grey, else 3.

  Raises:
    UserError: If it is no whole PNG or JPEG file of at most 16 MiB, a side is
      not between 16 and 128, or the pixels do not fit into 8 bits a channel.
  """
  # Late: people who have other corpora need not wait for it.
  from PIL import Image

  try:
    # A pipe would never end.
    if not os.path.isfile(path):
      raise OSError('it is no file, or a link to none')
    if (num_bytes := os.path.getsize(path)) > _MAX_FILE_BYTES:
      raise OSError(f'it has {num_bytes:,} bytes, above {_MAX_FILE_BYTES:,}')
    with warnings.catch_warnings():
      # Pillow would print lines of its own, such as about large sizes.
      warnings.simplefilter('ignore')
      with Image.open(path, formats=_FORMATS) as image:
        # Before anything is unpacked: a small file may hold a huge image.
        _require_fit(image)
        pixels = np.asarray(image.convert(_MODES[image.mode]))
  # A damaged file makes Pillow raise OSError, SyntaxError, struct.error, ...
  except Exception as error:  # pylint: disable=broad-exception-caught
    raise UserError(
      f'{_quoted(path)} must be a whole PNG or JPEG file with an image that '
      f'fits, but it is not ({" ".join(str(error).split())}). Convert, replace '
      'or remove it.'
    ) from error
  return pixels.reshape(*pixels.shape[:2], -1)


def _require_fit(image) -> None:
  """Raises ValueError unless an image has a size and values that are taken."""
  width, height = image.size
  if not _MIN_SIDE <= min(image.size) <= max(image.size) <= _MAX_SIDE:
    raise ValueError(
      f'its sides must have {_MIN_SIDE} to {_MAX_SIDE} pixels, found '
      f'{height} x {width} (height x width)'
    )
  # Pillow cuts 16 bits of a colour down to 8 without a word.
  is_deep = any('16' in str(arguments) for *_, arguments in image.tile)
  is_fit = image.mode in _MODES and not is_deep
  if is_fit and image.has_transparency_data:
    is_fit = image.convert('RGBA').getchannel('A').getextrema()[0] == 255
  if not is_fit:
    raise ValueError(
      'it must be grey or RGB with 8 bits a channel and no transparent pixels, '
      f'found mode {image.mode}{" of 16 bits" * is_deep}'
    )


def _is_image(path: bytes) -> bool:
  return path.lower().endswith(_EXTENSIONS)


def _size(image: np.ndarray) -> str:
  return ' x '.join(map(str, image.shape))


def _quoted(path: bytes) -> str:
  """Returns a path in quotes, in one line whatever its bytes are."""
  return repr(os.fsdecode(path))

"""People's own images: DIRECTORY/CLIENT/CLASS/*.png or *.jpg.

Nothing is scaled. Everything is in the order of the names' bytes, so that
nothing depends on the file system. Client ids and class names are the bytes of
the directories' names.
"""

import os
import warnings
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

  def names_of(*parts, is_wanted):
    parent = os.path.join(root, *parts)
    try:
      names = sorted(os.listdir(parent))
    except OSError as error:
      raise _unusable(
        root, f'{_quoted(parent)} cannot be read ({error.strerror})'
      ) from error
    wanted = []
    for name in names:
      path = os.path.join(parent, name)
      if not name.startswith(b'.') and is_wanted(path):
        wanted.append(name)
      else:
        skipped.append(os.path.join(*parts, name))
    return wanted

  classes = {
    client: names_of(client, is_wanted=os.path.isdir)
    for client in names_of(is_wanted=os.path.isdir)
  }
  class_names = sorted(set().union(*classes.values()))
  for client, names in classes.items():
    if missing := sorted({*class_names} - {*names}):
      raise UserError(
        'Every client must have the same class directories, but '
        f'{_quoted(client)} has no {_quoted(missing[0])}, which others have. '
        'Rename one, or make an empty one where a client has no images of a '
        'class.'
      )
  paths, labels, client_rows = [], [], {}
  for client in classes:
    start = len(paths)
    for label, name in enumerate(class_names):
      for file in names_of(client, name, is_wanted=_is_image):
        paths.append(os.path.join(root, client, name, file))
        labels.append(label)
    client_rows[client] = range(start, len(paths))
    if start == len(paths):
      skipped.append(client)
  if not paths or len(class_names) < 2:
    found = ', '.join(map(_quoted, class_names or skipped[:1])) or 'nothing'
    raise _unusable(root, f'found only {found}')
  return ImageFolder(paths, labels, client_rows, class_names, skipped)


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
    if (num_bytes := os.path.getsize(path)) > _MAX_FILE_BYTES:
      raise OSError(f'it has {num_bytes:,} bytes, above {_MAX_FILE_BYTES:,}')
    with warnings.catch_warnings():
      # Pillow would print lines of its own, such as about large sizes.
      warnings.simplefilter('ignore')
      with Image.open(path, formats=_FORMATS) as image:
        # Before anything is unpacked: a small file may hold a huge image.
        _require_fit(image, path)
        pixels = np.asarray(image.convert(_MODES[image.mode]))
  except UserError:
    raise
  # A damaged file makes Pillow raise OSError, SyntaxError, struct.error, ...
  except Exception as error:  # pylint: disable=broad-exception-caught
    raise UserError(
      f'{_quoted(path)} must be a whole PNG or JPEG file that can be read, but '
      f'it is not ({" ".join(str(error).split())}). Replace or remove it.'
    ) from error
  return pixels.reshape(*pixels.shape[:2], -1)


def _require_fit(image, path: bytes) -> None:
  width, height = image.size
  if not _MIN_SIDE <= min(image.size) <= max(image.size) <= _MAX_SIDE:
    raise UserError(
      f'{_quoted(path)} must have sides of {_MIN_SIDE} to {_MAX_SIDE} pixels, '
      f'found {height} x {width} (height x width). Resize it.'
    )
  # Pillow cuts 16 bits of a colour down to 8 without a word.
  is_deep = any('16' in str(arguments) for *_, arguments in image.tile)
  is_fit = image.mode in _MODES and not is_deep
  if is_fit and image.has_transparency_data:
    is_fit = image.convert('RGBA').getchannel('A').getextrema()[0] == 255
  if not is_fit:
    raise UserError(
      f'{_quoted(path)} must be grey or RGB with 8 bits a channel and no '
      f'transparent pixels, found mode {image.mode}{" of 16 bits" * is_deep}. '
      'Convert it.'
    )


def _is_image(path: bytes) -> bool:
  # No pipes, which would never end.
  return path.lower().endswith(_EXTENSIONS) and os.path.isfile(path)


def _unusable(root: bytes, found: str) -> UserError:
  return UserError(
    "Corpus 'image_folder' requires CLIENT/CLASS/*.png or *.jpg with at least "
    f'2 classes in {_quoted(root)}, but {found}. Name such a directory.'
  )


def _size(image: np.ndarray) -> str:
  return ' x '.join(map(str, image.shape))


def _quoted(path: bytes) -> str:
  """Returns a path in quotes, in one line whatever its bytes are."""
  return repr(os.fsdecode(path))

"""People's own images: DIRECTORY/CLIENT/CLASS/*.png or *.jpg.

Nothing is scaled.

Everything is in the order of the names' bytes, so that nothing depends on the
file system. Client ids and class names are the bytes of the directory names.
"""

import collections
import io
import os
import stat
import warnings

import numpy as np

from tff_fedfish.data.images.image_clients import ImageClients
from tff_fedfish.errors import UserError

# Pixels of a side of an image.
_MIN_SIDE, _MAX_SIDE = 16, 128
# Pillow opens many more formats, some with external programs.
_FORMATS = ('PNG', 'JPEG')
# The largest image has 48 KiB of pixels, but Pillow also reads the rest.
_MAX_FILE_BYTES = 2**24
# Pillow's mode -> the mode it is converted to without any loss.
_MODES = dict.fromkeys(('1', 'L', 'LA'), 'L') | dict.fromkeys(
  ('P', 'PA', 'RGB', 'RGBA'), 'RGB'
)
_EXTENSIONS = (b'.png', b'.jpg', b'.jpeg')


def read_image_folder(directory: str | os.PathLike) -> ImageClients:
  """Returns the clients of a folder of images; nobody is held out.

  All images are held in memory, a byte per value.

  Args:
    directory: Holds a directory per client, each with a directory per class.
      These must be the same for every client, and may be empty.

  Returns:
    Clients with `class_names`, whose `fingerprint` covers the pixels.

  Raises:
    UserError: If the directories are not laid out so, there are fewer than two
      classes, or an image cannot be read or differs in size from the others.
  """
  files = ImageFolder(directory)
  first = read_image(files.paths[0])
  # Not a list of arrays: it would have to be copied once more.
  images = np.empty((len(files.paths), *first.shape), np.uint8)
  for row, path in enumerate(files.paths):
    image = read_image(path)
    if image.shape != first.shape:
      raise UserError(
        'All images must have the same height, width and channels, but '
        f'{_quoted(files.paths[0])} has {_size(first)} and {_quoted(path)} has '
        f'{_size(image)}. Convert one of them.'
      )
    images[row] = image
  return ImageClients(
    images=images,
    labels=np.array(files.labels, np.int32),
    client_rows=files.client_rows,
    num_classes=len(files.class_names),
    class_names=files.class_names,
    skipped=files.skipped,
    fingerprints_images=True,
  )


class ImageFolder:
  """The files of a folder and what their places say; none is opened.

  Attributes:
    paths: Of all images, ordered by client, class and name.
    labels: The class of each.
    client_rows: Client id -> its rows of both.
    class_names: By label.
    skipped: How many entries are no images and why, and how many clients have
      none; '' where there is nothing to say.
  """

  def __init__(self, directory: str | os.PathLike):
    """Lists the files; raises UserError as `read_image_folder` does."""
    self._root = os.fsencode(directory)
    self._skipped = collections.defaultdict(list)
    self.paths, self.labels, self.client_rows = [], [], {}
    classes = {
      client: self._directories(client) for client in self._directories(b'')
    }
    self.class_names = self._common(classes)
    for client in classes:
      start = len(self.paths)
      for label, name in enumerate(self.class_names):
        found = self._images(os.path.join(client, name))
        self.paths += found
        self.labels += [label] * len(found)
      self.client_rows[client] = range(start, len(self.paths))
      if start == len(self.paths):
        self._skipped['clients without images'].append(client)
    self.skipped = ', '.join(
      f'{reason}: {len(names)} (such as {_quoted(names[0])})'
      for reason, names in sorted(self._skipped.items())
    )
    if not self.paths:
      found = f'found only {self.skipped}'
      raise self._unusable(found if self.skipped else 'the directory is empty')
    if len(self.class_names) < 2:
      raise self._unusable(f'found only {_quoted(self.class_names[0])}')

  def _directories(self, parent: bytes) -> list[bytes]:
    directories, others = self._entries(parent)
    self._skip('files outside a class directory', parent, others)
    return directories

  def _images(self, parent: bytes) -> list[bytes]:
    directories, files = self._entries(parent)
    images = [name for name in files if name.lower().endswith(_EXTENSIONS)]
    others = [name for name in files if not name.lower().endswith(_EXTENSIONS)]
    self._skip('directories within a class directory', parent, directories)
    self._skip('files with another extension', parent, others)
    return [os.path.join(self._root, parent, name) for name in images]

  def _entries(self, parent: bytes) -> tuple[list[bytes], list[bytes]]:
    """Returns the names of (directories, others), without hidden ones."""
    path = os.path.join(self._root, parent)
    try:
      names = sorted(os.listdir(path))
    except OSError as error:
      raise self._unusable(
        f'{_quoted(path)} cannot be read ({error.strerror})'
      ) from error
    directories, others, hidden = [], [], []
    for name in names:
      if name.startswith(b'.'):
        hidden.append(name)
      elif os.path.isdir(os.path.join(path, name)):
        directories.append(name)
      else:
        others.append(name)
    self._skip('hidden entries', parent, hidden)
    return directories, others

  def _skip(self, reason: str, parent: bytes, names: list[bytes]) -> None:
    if names:
      self._skipped[reason] += [os.path.join(parent, name) for name in names]

  def _common(self, classes: dict[bytes, list[bytes]]) -> tuple[bytes, ...]:
    """Returns the classes, which every client must have."""
    # Where they differ, this client has one that the other lacks.
    whole = max(classes, key=lambda client: len(classes[client]), default=None)
    for client, names in classes.items():
      if missing := sorted({*classes[whole]} - {*names}):
        found, lacking = (
          _quoted(os.path.join(self._root, of, missing[0]))
          for of in (whole, client)
        )
        raise UserError(
          f'Every client must have the same class directories, but {found} '
          f'exists and {lacking} does not. Rename one, or make an empty one '
          'where a client has no images of a class.'
        )
    return tuple(classes[whole]) if classes else ()

  def _unusable(self, found: str) -> UserError:
    return UserError(
      "Corpus 'image_folder' requires CLIENT/CLASS/*.png or *.jpg with at "
      f'least 2 classes in {_quoted(self._root)}, but {found}. Name such a '
      'directory.'
    )


def read_image(path: bytes) -> np.ndarray:
  """Returns the pixels of one file.

  uint8 [height, width, channels]; 1 channel where the file is grey, else 3.

  Raises:
    UserError: If it is no whole PNG or JPEG file, a side is not between
      16 and 128, or the pixels do not fit into 8 bits a channel.
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
      f'{_quoted(path)} must be a whole PNG or JPEG file that can be read, but '
      f'it is not ({reason}). Replace or remove it.'
    ) from error
  return pixels.reshape(*pixels.shape[:2], -1)


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
  if not _MIN_SIDE <= min(image.size) <= max(image.size) <= _MAX_SIDE:
    raise UserError(
      f'{_quoted(path)} must have sides of {_MIN_SIDE} to {_MAX_SIDE} pixels, '
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
    f'{_quoted(path)} must be grey or RGB with 8 bits a channel and no '
    f'transparent pixels, found {found}. Convert it.'
  )


def _size(image: np.ndarray) -> str:
  return ' x '.join(map(str, image.shape))


def _quoted(path: bytes) -> str:
  """Returns a path in quotes, in one line whatever its bytes are."""
  return repr(os.fsdecode(path))

"""People's own images: DIRECTORY/CLIENT/CLASS/*.png or *.jpg.

Everything is in the order of the names' bytes, so that nothing depends on the
file system. Client ids and class names are the bytes of the directory names.
"""

import collections
import os

import numpy as np

from tff_fedfish.data.images.image_clients import ImageClients
from tff_fedfish.data.images.image_files import quoted, read_image
from tff_fedfish.errors import UserError

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
        f'{quoted(files.paths[0])} has {_size(first)} and {quoted(path)} has '
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
      f'{reason}: {len(names)} (such as {quoted(names[0])})'
      for reason, names in sorted(self._skipped.items())
    )
    if not self.paths:
      found = f'found only {self.skipped}'
      raise self._unusable(found if self.skipped else 'the directory is empty')
    if len(self.class_names) < 2:
      raise self._unusable(f'found only {quoted(self.class_names[0])}')

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
        f'{quoted(path)} cannot be read ({error.strerror})'
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
          quoted(os.path.join(self._root, of, missing[0]))
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
      f'least 2 classes in {quoted(self._root)}, but {found}. Name such a '
      'directory.'
    )


def _size(image: np.ndarray) -> str:
  return ' x '.join(map(str, image.shape))

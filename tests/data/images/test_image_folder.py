"""Folders of people's own images: clients, classes, and what is skipped."""

import os
import shutil

import numpy as np
import pytest
import small_image_folders
from PIL import Image

from tff_fedfish.data.images.image_folder import (
  ImageFolder,
  read_image_folder,
)
from tff_fedfish.data.images.label_draws import label_histograms
from tff_fedfish.errors import UserError


@pytest.fixture
def folder(tmp_path):
  return small_image_folders.write_folder(tmp_path / 'own', num_images=2)


def _write(folder, name, **options):
  return small_image_folders.write_image(folder / name, **options)


def _error(folder):
  with pytest.raises(UserError) as raised:
    read_image_folder(folder)
  assert '\n' not in str(raised.value)
  return str(raised.value)


def _histograms(clients):
  found = label_histograms(
    clients.labels, clients.client_rows.values(), clients.num_classes
  )
  return found.tolist()


def test_clients_classes_and_pixels(folder):
  # One more dog for ben, as the first of them by its name's bytes.
  pixels = np.full((16, 16), 77, np.uint8)
  _write(folder, 'ben/dog/-1.PNG', pixels=pixels)
  clients = read_image_folder(folder)
  assert clients.client_ids == [
    b'anna',
    b'ben',
    b'cleo',
    b'dan',
    b'eva',
    b'finn',
  ]
  assert clients.class_names == (b'cat', b'dog')
  assert (clients.num_classes, clients.image_shape) == (2, (16, 16, 1))
  assert _histograms(clients) == [[2, 2], [2, 3], *[[2, 2]] * 4]
  assert clients.held_out == ()
  assert clients.skipped == ''
  rows = clients.sequences(b'ben')
  images, labels = rows.images, rows.labels
  assert labels.tolist() == [0, 0, 1, 1, 1]
  assert (images[2] == 77).all()
  for row, name in ((0, 'cat/0.png'), (4, 'dog/1.png')):
    expected = np.asarray(Image.open(folder / 'ben' / name))
    np.testing.assert_array_equal(images[row, :, :, 0], expected)
  assert len(clients.labels) == 25


def test_listing_opens_no_image(folder):
  (folder / 'ben/cat/0.png').write_text('is not read')
  files = ImageFolder(folder)
  assert files.class_names == (b'cat', b'dog')
  assert files.paths[4] == os.fsencode(folder / 'ben/cat/0.png')
  assert files.client_rows[b'ben'] == range(4, 8)


def test_order_is_that_of_the_bytes_of_names(tmp_path):
  names = ['Z', 'a', 'é', '日本', '\udcff']
  for name in reversed(names):
    for label in ('2', '10'):
      for file in ('b.png', 'B.jpeg', 'a.JPG'):
        _write(tmp_path, f'{name}/{label}/{file}')
  clients = read_image_folder(tmp_path)
  assert clients.client_ids == [os.fsencode(name) for name in names]
  assert clients.class_names == (b'10', b'2')


def test_hostile_names_are_ids(tmp_path):
  names = [
    '<b>&"',
    '=1+1',
    'a\nb',
    '\u202eevil',
    'b' * 255,
    '\udc80\udcff',
    ' ',
  ]
  small_image_folders.write_folder(tmp_path, clients=names, num_images=1)
  clients = read_image_folder(tmp_path)
  assert set(clients.client_ids) == set(map(os.fsencode, names))
  # And in an error they are one line of plain text.
  (tmp_path / 'a\nb' / 'dog' / '\u202e\udcff.png').write_text('no image')
  line = _error(tmp_path)
  assert r'a\nb/dog/\u202e\udcff.png' in line
  line.encode('ascii')


class TestFingerprint:
  def test_identifies_the_images(self, folder, tmp_path):
    first = read_image_folder(folder).fingerprint
    copy = shutil.copytree(folder, tmp_path / 'copy')
    assert read_image_folder(copy).fingerprint == first
    path = copy / 'eva' / 'dog' / '1.png'
    pixels = np.array(Image.open(path))
    pixels[15, 15] ^= 1
    _write(copy, 'eva/dog/1.png', pixels=pixels)
    assert read_image_folder(copy).fingerprint != first

  def test_and_their_shape(self, tmp_path):
    # 16 x 32 and 32 x 16 black pixels are the same bytes.
    found = set()
    for name, size in (('wide', (32, 16)), ('high', (16, 32))):
      for path in ('a/cat/1.png', 'a/dog/1.png'):
        pixels = np.zeros(size[::-1], np.uint8)
        _write(tmp_path / name, path, pixels=pixels)
      found.add(read_image_folder(tmp_path / name).fingerprint)
    assert len(found) == 2


def test_what_is_no_image_is_counted(folder):
  (folder / 'README.txt').write_text('x')
  (folder / 'dan' / 'labels.csv').write_text('x')
  (folder / '.git').mkdir()
  (folder / 'anna' / 'cat' / '.DS_Store').write_text('x')
  (folder / 'anna' / 'cat' / 'Thumbs.db').write_text('x')
  (folder / 'anna' / 'dog' / 'x.png').mkdir()
  (folder / 'loop').symlink_to('loop')
  for label in ('cat', 'dog'):
    (folder / 'zoe' / label).mkdir(parents=True)
  clients = read_image_folder(folder)
  assert clients.skipped == (
    "clients without images: 1 (such as 'zoe'), "
    "directories within a class directory: 1 (such as 'anna/dog/x.png'), "
    "files outside a class directory: 3 (such as 'README.txt'), "
    "files with another extension: 1 (such as 'anna/cat/Thumbs.db'), "
    "hidden entries: 2 (such as '.git')"
  )
  assert b'zoe' not in clients.client_ids
  assert len(clients.client_ids) == 6
  assert len(clients.labels) == 24


def test_a_client_may_lack_a_class(folder):
  for path in (folder / 'ben' / 'cat').iterdir():
    path.unlink()
  clients = read_image_folder(folder)
  assert _histograms(clients)[1] == [0, 2]
  assert clients.skipped == ''


def test_linked_directories(folder, tmp_path):
  (tmp_path / 'linked').symlink_to(folder)
  (folder / 'gus').symlink_to('anna')
  clients = read_image_folder(tmp_path / 'linked')
  assert len(clients.client_rows[b'gus']) == 4


class TestOneLineNamesTwo:
  def test_sizes(self, folder):
    _write(folder, 'eva/cat/1.png', side=20)
    assert _error(folder) == (
      'All images must have the same height, width and channels, but '
      f"'{folder}/anna/cat/0.png' has 16 x 16 x 1 and '{folder}/eva/cat/1.png' "
      'has 20 x 20 x 1. Convert one of them.'
    )

  def test_channels(self, folder):
    _write(folder, 'eva/cat/1.png', mode='RGB')
    assert "eva/cat/1.png' has 16 x 16 x 3" in _error(folder)

  @pytest.mark.parametrize('client', ['anna', 'finn'])
  def test_a_class_too_many(self, folder, client):
    _write(folder, f'{client}/bird/1.png')
    other = 'ben' if client == 'anna' else 'anna'
    assert _error(folder) == (
      'Every client must have the same class directories, but '
      f"'{folder}/{client}/bird' exists and '{folder}/{other}/bird' does not. "
      'Rename one, or make an empty one where a client has no images of a '
      'class.'
    )

  def test_a_class_of_another_name(self, folder):
    (folder / 'eva' / 'cat').rename(folder / 'eva' / 'Cat')
    assert (
      f"but '{folder}/anna/cat' exists and '{folder}/eva/cat' does not"
    ) in _error(folder)

  def test_an_empty_client(self, folder):
    (folder / 'gus').mkdir()
    assert f"and '{folder}/gus/cat' does not" in _error(folder)


class TestNoSuchFolder:
  _REQUIRES = (
    "Corpus 'image_folder' requires CLIENT/CLASS/*.png or *.jpg with at least "
    '2 classes in '
  )

  def test_missing(self, tmp_path):
    path = tmp_path / 'nowhere'
    assert _error(path) == (
      f"{self._REQUIRES}'{path}', but '{path}/' cannot be read (No such file "
      'or directory). Name such a directory.'
    )

  def test_a_file(self, tmp_path):
    path = tmp_path / 'file'
    path.write_text('x')
    assert 'cannot be read (Not a directory)' in _error(path)

  def test_empty(self, tmp_path):
    assert 'but the directory is empty. Name' in _error(tmp_path)

  def test_one_level_only(self, tmp_path):
    _write(tmp_path, 'cat/1.png')
    _write(tmp_path, 'dog/1.png')
    assert (
      "but found only clients without images: 2 (such as 'cat'), files "
      "outside a class directory: 2 (such as 'cat/1.png'). Name"
    ) in _error(tmp_path)

  def test_one_class(self, tmp_path):
    small_image_folders.write_folder(tmp_path, classes=['cat'])
    assert "but found only 'cat'. Name such a directory." in _error(tmp_path)

  @pytest.mark.skipif(os.geteuid() == 0, reason='root may read everything')
  def test_no_permission(self, folder):
    (folder / 'anna' / 'cat').chmod(0)
    assert 'anna/cat' in _error(folder)
    (folder / 'anna' / 'cat').chmod(0o755)


def test_unreadable_image_is_named(folder):
  (folder / 'eva' / 'dog' / '1.png').write_text('no image')
  assert _error(folder).startswith(f"'{folder}/eva/dog/1.png' must be a whole")

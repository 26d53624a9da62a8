"""Folders of people's own images: clients, pixels, and refusals."""

import os
import struct
import zlib

import numpy as np
import pytest
import small_image_folders
from PIL import Image

from tff_fedfish.data.images.folder import (
  list_folder,
  read_image,
  read_image_folder,
)
from tff_fedfish.errors import UserError


@pytest.fixture
def folder(tmp_path):
  return small_image_folders.write_folder(tmp_path / 'own', num_images=2)


def _write(folder, name, **options):
  return small_image_folders.write_image(folder / name, **options)


def test_clients_classes_and_pixels(folder):
  # One more dog for ben, as the first of them by its name's bytes.
  _write(folder, 'ben/dog/-1.PNG', pixels=np.full((16, 16), 77, np.uint8))
  for path in (folder / 'eva' / 'cat').iterdir():
    path.unlink()
  files = list_folder(folder)
  assert files.paths[4] == os.fsencode(folder / 'ben/cat/0.png')
  assert files.client_rows[b'ben'] == range(4, 9)
  clients = read_image_folder(folder)
  names = [b'anna', b'ben', b'cleo', b'dan', b'eva', b'finn']
  assert clients.client_ids == names
  assert clients.class_names == (b'cat', b'dog')
  assert (clients.num_classes, clients.image_shape) == (2, (16, 16, 1))
  assert (clients.held_out, clients.skipped) == ((), '')
  rows = clients.sequences(b'ben')
  assert rows.labels.tolist() == [0, 0, 1, 1, 1]
  assert (rows.images[2] == 77).all()
  for row, name in ((0, 'cat/0.png'), (4, 'dog/1.png')):
    expected = np.asarray(Image.open(folder / 'ben' / name))
    np.testing.assert_array_equal(rows.images[row, :, :, 0], expected)
  assert clients.sequences(b'eva').labels.tolist() == [1, 1]


def test_names_are_bytes_and_in_their_order(tmp_path):
  names = ['=1+1', 'Z', 'a\nb', 'b' * 255, 'é', '\u202eevil', '日本', '\udcff']
  for name in reversed(names):
    for label in ('2', '10'):
      for file in ('b.png', 'B.jpeg', 'a.JPG'):
        _write(tmp_path, f'{name}/{label}/{file}')
  clients = read_image_folder(tmp_path)
  assert clients.client_ids == [os.fsencode(name) for name in names]
  assert clients.class_names == (b'10', b'2')
  # And in an error they are one line of plain text.
  (tmp_path / 'a\nb' / '2' / '\u202e\udcff.png').write_text('no image')
  with pytest.raises(UserError) as raised:
    read_image_folder(tmp_path)
  line = str(raised.value)
  assert line.isascii() and '\n' not in line
  assert r'a\nb/2/\u202e\udcff.png' in line


def test_what_is_no_image_is_counted(folder):
  (folder / 'README.txt').write_text('x')
  (folder / 'dan' / 'labels.csv').write_text('x')
  (folder / '.git').mkdir()
  (folder / 'anna' / 'cat' / 'Thumbs.db').write_text('x')
  (folder / 'loop').symlink_to('loop')
  # Links that lead somewhere are followed.
  (folder / 'gus').symlink_to('eva')
  for label in ('cat', 'dog'):
    (folder / 'zoe' / label).mkdir(parents=True)
  clients = read_image_folder(folder)
  assert clients.skipped == (
    "entries without an image of a class: 6 (such as '.git')"
  )
  assert b'zoe' not in clients.client_ids
  assert len(clients.client_rows[b'gus']) == 4


def test_what_is_no_file_is_refused(folder):
  image = folder / 'anna' / 'dog' / 'x.png'
  for make in (
    os.mkfifo,
    os.mkdir,
    lambda path: os.symlink('/an/unmounted/disk/x.png', path),
  ):
    make(image)
    with pytest.raises(UserError, match="dog/x.png' must be .*it is no file"):
      read_image_folder(folder)
    image.rename(folder / f'.{make.__name__}')


@pytest.fixture
def read(tmp_path):
  """Saves an image and returns the pixels that are read."""

  def save_and_read(image, name='x.png', **options):
    image.save(tmp_path / name, **options)
    return read_image(os.fsencode(tmp_path / name))

  return save_and_read


def _noise(*shape):
  return np.random.RandomState(1).randint(256, size=shape).astype(np.uint8)


def test_pixels_are_those_of_the_file(read, tmp_path):
  for pixels in (_noise(16, 20), _noise(16, 128, 3)):
    found = read(Image.fromarray(pixels))
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, pixels.reshape(*found.shape))
    assert found.ndim == 3
  found = read(Image.fromarray(_noise(16, 17, 3)), 'x.jpg')
  expected = np.asarray(Image.open(tmp_path / 'x.jpg'))
  np.testing.assert_array_equal(found, expected)
  # A palette becomes its colours, a bit black or white.
  image = Image.new('P', (16, 16))
  image.putpalette([9, 8, 7, 200, 100, 50])
  image.putpixel((2, 1), 1)
  found = read(image)
  assert found[1, 2].tolist() == [200, 100, 50]
  assert found[0, 0].tolist() == [9, 8, 7]
  image = Image.new('1', (16, 16))
  image.putpixel((2, 1), 1)
  found = read(image)
  assert (found[1, 2, 0], found[0, 0, 0], found.shape[2]) == (255, 0, 1)
  # Alpha that hides nothing is dropped.
  for channels in (1, 3):
    pixels = _noise(16, 16, channels)
    opaque = np.full((16, 16, 1), 255, np.uint8)
    image = Image.fromarray(np.concatenate([pixels, opaque], axis=2))
    np.testing.assert_array_equal(read(image), pixels)
  for image, options in (
    (Image.new('L', (16, 16), 7), {'transparency': 7}),
    (Image.new('I;16', (16, 16)), {}),
  ):
    with pytest.raises(UserError, match=f'found mode {image.mode}'):
      read(image, **options)


def _deep_png():
  """Returns a file of 16 bits a colour, which Pillow does not write."""
  parts = (
    (b'IHDR', struct.pack('>IIBBBBB', 16, 16, 16, 2, 0, 0, 0)),
    (b'IDAT', zlib.compress(bytes(16 * (1 + 16 * 6)))),
    (b'IEND', b''),
  )
  return b'\x89PNG\r\n\x1a\n' + b''.join(
    struct.pack('>I', len(body))
    + kind
    + body
    + struct.pack('>I', zlib.crc32(kind + body))
    for kind, body in parts
  )


@pytest.mark.parametrize(
  ('data', 'words'),
  [
    # Pillow would give 8 of the 16 bits without a word.
    (_deep_png(), 'found mode RGB of 16 bits'),
    (b'GIF89a' + bytes(50), 'cannot identify'),
    (b'\0' * ((1 << 24) + 1), 'it has 16,777,217 bytes, above 16'),
  ],
  ids=['16_bits', 'gif', 'too_large'],
)
def test_files_that_are_refused(tmp_path, data, words):
  path = tmp_path / 'x.png'
  path.write_bytes(data)
  with pytest.raises(UserError, match=f"^'{path}' must be .*{words}") as raised:
    read_image(os.fsencode(path))
  assert '\n' not in str(raised.value)


@pytest.mark.parametrize('name', ['x.png', 'x.jpg'])
def test_damaged_files_are_refused_in_one_line(read, tmp_path, name):
  read(Image.fromarray(_noise(32, 32, 3)), name)
  whole = (tmp_path / name).read_bytes()
  path = tmp_path / f'damaged_{name}'
  for size in (1, 20, len(whole) // 2, len(whole) - 200):
    path.write_bytes(whole[:size])
    with pytest.raises(UserError, match='must be a whole PNG or JPEG file'):
      read_image(os.fsencode(path))
  random = np.random.RandomState(1)
  for _ in range(200):
    damaged = bytearray(whole)
    for place in random.randint(8, len(whole), size=8):
      damaged[place] = random.randint(256)
    path.write_bytes(damaged)
    try:
      # What a checksum does not cover may be read, with other pixels.
      read_image(os.fsencode(path))
    except UserError as raised:
      assert '\n' not in str(raised)

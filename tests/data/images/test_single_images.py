"""Single image files: what their pixels are, and which are refused."""

import os
import struct
import subprocess
import sys
import zlib

import numpy as np
import pytest
import small_image_folders
from PIL import Image

from tff_fedfish.data.images.image_folder import read_image
from tff_fedfish.errors import UserError


@pytest.fixture
def read(tmp_path):
  """Saves an image and returns the pixels that are read."""

  def save_and_read(image, name='x.png', **options):
    image.save(tmp_path / name, **options)
    return read_image(os.fsencode(tmp_path / name))

  return save_and_read


@pytest.fixture
def error(tmp_path):
  """Writes bytes and returns the one line that is said of them."""

  def write_and_read(data, name='x.png'):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(UserError) as raised:
      read_image(os.fsencode(tmp_path / name))
    line = str(raised.value)
    assert '\n' not in line
    assert line.startswith(repr(str(tmp_path / name)))
    return line

  return write_and_read


def _noise(*shape):
  return np.random.RandomState(1).randint(256, size=shape).astype(np.uint8)


@pytest.mark.parametrize('channels', [(), (3,)])
def test_pixels_as_they_are(read, channels):
  pixels = _noise(16, 20, *channels)
  found = read(Image.fromarray(pixels))
  assert found.dtype == np.uint8
  np.testing.assert_array_equal(found, pixels.reshape(16, 20, -1))


def test_jpeg_is_what_pillow_decodes(read, tmp_path):
  found = read(Image.fromarray(_noise(16, 17, 3)), 'x.jpg')
  expected = np.asarray(Image.open(tmp_path / 'x.jpg'))
  np.testing.assert_array_equal(found, expected)
  # Grey files have one channel.
  assert read(Image.fromarray(_noise(16, 17)), 'y.jpg').shape == (16, 17, 1)


class TestOtherModes:
  def test_palette_becomes_its_colours(self, read):
    image = Image.new('P', (16, 16))
    image.putpalette([9, 8, 7, 200, 100, 50])
    image.putpixel((2, 1), 1)
    found = read(image)
    assert found[1, 2].tolist() == [200, 100, 50]
    assert found[0, 0].tolist() == [9, 8, 7]

  def test_bits_become_black_and_white(self, read):
    image = Image.new('1', (16, 16))
    image.putpixel((2, 1), 1)
    found = read(image)
    assert (found[1, 2, 0], found[0, 0, 0], found.shape[2]) == (255, 0, 1)

  @pytest.mark.parametrize('mode', ['LA', 'RGBA'])
  def test_alpha_that_hides_nothing_is_dropped(self, read, mode):
    channels = len(mode) - 1
    pixels = _noise(16, 16, channels)
    opaque = np.full((16, 16, 1), 255, np.uint8)
    image = Image.fromarray(np.concatenate([pixels, opaque], axis=2))
    assert image.mode == mode
    np.testing.assert_array_equal(read(image), pixels)

  @pytest.mark.parametrize(
    ('image', 'options', 'found'),
    [
      (Image.new('RGBA', (16, 16), (1, 2, 3, 254)), {}, 'transparent pixels'),
      (Image.new('L', (16, 16), 7), {'transparency': 7}, 'transparent pixels'),
      (Image.new('I;16', (16, 16)), {}, '16 bits'),
    ],
  )
  def test_what_would_lose_something(self, read, image, options, found):
    with pytest.raises(
      UserError,
      match='must be grey or RGB with 8 bits a channel and no transparent '
      f'pixels, found {found}. Convert it.$',
    ):
      read(image, **options)

  def test_cmyk(self, read):
    with pytest.raises(UserError, match='found mode CMYK. Convert it.$'):
      read(Image.new('CMYK', (16, 16)), 'x.jpg')

  def test_16_bits_a_colour(self, error):
    # Pillow would give 8 of them without a word.
    rows = zlib.compress(bytes(16 * (1 + 16 * 6)))
    header = struct.pack('>IIBBBBB', 16, 16, 16, 2, 0, 0, 0)
    data = b'\x89PNG\r\n\x1a\n' + b''.join(
      struct.pack('>I', len(body))
      + kind
      + body
      + struct.pack('>I', zlib.crc32(kind + body))
      for kind, body in ((b'IHDR', header), (b'IDAT', rows), (b'IEND', b''))
    )
    assert error(data).endswith('found 16 bits. Convert it.')


@pytest.mark.parametrize(
  ('size', 'found'), [((15, 16), '16 x 15'), ((16, 129), '129 x 16')]
)
def test_sides_out_of_bounds(read, size, found):
  with pytest.raises(
    UserError,
    match=rf'must have sides of 16 to 128 pixels, found {found} \(height x '
    r'width\). Resize it.$',
  ):
    read(Image.new('L', size))


def test_largest_sides(read):
  assert read(Image.new('RGB', (16, 128))).shape == (128, 16, 3)


@pytest.mark.parametrize('name', ['x.png', 'x.jpg'])
def test_cut_off(read, error, tmp_path, name):
  read(Image.fromarray(_noise(32, 32, 3)), name)
  whole = (tmp_path / name).read_bytes()
  for size in (0, 1, 20, len(whole) // 4, len(whole) // 2, len(whole) - 200):
    line = error(whole[:size], name)
    assert 'must be a whole PNG or JPEG file that can be read, but it' in line
    assert line.endswith('Replace or remove it.')


def test_noise_behind_the_header_is_one_line(read, tmp_path):
  read(Image.fromarray(_noise(32, 32, 3)))
  whole = (tmp_path / 'x.png').read_bytes()
  random = np.random.RandomState(1)
  path = tmp_path / 'damaged.png'
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


@pytest.mark.parametrize(
  'data', [b'I am a text.', b'GIF89a' + bytes(50), b'%!PS-Adobe-3.0 EPSF-3.0']
)
def test_other_formats(error, data):
  # No name of an object in memory either.
  assert 'but it is not (it is neither). Replace' in error(data)


def test_directory_pipe_and_broken_link(tmp_path):
  (tmp_path / 'd.png').mkdir()
  os.mkfifo(tmp_path / 'p.png')
  (tmp_path / 'l.png').symlink_to('nowhere')
  for name, found in (
    ('d', 'no regular file'),
    ('p', 'no regular file'),
    ('l', 'No such file'),
  ):
    with pytest.raises(UserError, match=f'be read, but it is not .*{found}'):
      read_image(os.fsencode(tmp_path / f'{name}.png'))


def test_link_to_an_image(tmp_path):
  small_image_folders.write_image(tmp_path / 'a.png')
  (tmp_path / 'b.png').symlink_to('a.png')
  assert read_image(os.fsencode(tmp_path / 'b.png')).shape == (16, 16, 1)


def test_huge_file(error, tmp_path):
  whole = small_image_folders.write_image(tmp_path / 'x.png').read_bytes()
  assert 'more than 16,777,216 bytes' in error(whole + bytes(2**24))


def test_bomb_takes_no_memory(tmp_path):
  path = tmp_path / 'x.png'
  path.write_bytes(small_image_folders.bomb())
  assert path.stat().st_size < 100_000
  # The second is below Pillow's own limit.
  code = """if True:
    import pathlib, sys
    from tff_fedfish.data.images import image_folder
    from tff_fedfish.errors import UserError
    image_folder.read_image(sys.argv[1].encode())
    def peak():
      status = pathlib.Path('/proc/self/status').read_text()
      return int(status.split('VmHWM:')[1].split()[0])
    before = peak()
    for path in sys.argv[2:]:
      try:
        image_folder.read_image(path.encode())
      except UserError as error:
        print(error)
    print(peak() - before)
  """
  good = small_image_folders.write_image(tmp_path / 'good.png')
  small = tmp_path / 'small.png'
  small.write_bytes(small_image_folders.bomb(9_000, 9_000))
  done = subprocess.run(
    [sys.executable, '-W', 'always', '-c', code, good, path, small],
    capture_output=True,
    text=True,
    check=True,
  )
  assert done.stderr == ''
  first, second, kilobytes = done.stdout.splitlines()
  assert 'exceeds limit' in first
  assert 'found 9000 x 9000 (height x width)' in second
  # 300 MB are allowed; nothing was unpacked.
  assert int(kilobytes) < 30_000

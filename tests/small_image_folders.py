"""People's own images as a folder: small, and with what breaks readers."""

import pathlib
import struct
import zlib

import numpy as np
from PIL import Image

CLIENTS = ('anna', 'ben', 'cleo', 'dan', 'eva', 'finn')
CLASSES = ('cat', 'dog')


def write_folder(
  directory: pathlib.Path,
  clients=CLIENTS,
  classes=CLASSES,
  side: int = 16,
  num_images: int = 4,
) -> pathlib.Path:
  """Writes `num_images` grey PNGs of every class for every client.

  An image is noise with a bright row whose place tells its class.
  """
  random = np.random.RandomState(1)
  for client in clients:
    for label, name in enumerate(classes):
      for number in range(num_images):
        pixels = random.randint(100, size=(side, side)).astype(np.uint8)
        pixels[4 * label % side] = 255
        write_image(directory / client / name / f'{number}.png', pixels)
  return directory


def write_image(path: pathlib.Path, pixels=None, mode='L', side=16, **options):
  """Writes an image file: an array, or a plain one of a mode and side."""
  path.parent.mkdir(parents=True, exist_ok=True)
  image = (
    Image.new(mode, (side, side))
    if pixels is None
    else Image.fromarray(np.asarray(pixels, np.uint8))
  )
  image.save(path, **options)
  return path


def bomb(width: int = 20_000, height: int = 20_000) -> bytes:
  """Returns a PNG file of 50 kB that holds 400 MB of black pixels."""
  # A row is its filter's byte and a bit for each pixel.
  row = bytes(1 + (width + 7) // 8)
  deflate = zlib.compressobj(9)
  data = b''.join(deflate.compress(row) for _ in range(height))
  return b'\x89PNG\r\n\x1a\n' + b''.join(
    struct.pack('>I', len(body))
    + kind
    + body
    + struct.pack('>I', zlib.crc32(kind + body))
    for kind, body in (
      (b'IHDR', struct.pack('>IIBBBBB', width, height, 1, 0, 0, 0, 0)),
      (b'IDAT', data + deflate.flush()),
      (b'IEND', b''),
    )
  )

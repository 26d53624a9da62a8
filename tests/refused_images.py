"""Corpora of images that a run refuses, and words of what is said."""

import functools
import struct

import small_image_folders
import small_image_runs
from refused_inputs import Case

_TRAIN_IMAGES = 'train-images-idx3-ubyte'
_TRAIN_LABELS = 'train-labels-idx1-ubyte'
_WRITERS = 'qmnist-train-labels-idx2-int'


def _arguments(corpus, **settings):
  return [
    *('--config', small_image_runs.CONFIG),
    *small_image_runs.overrides(corpus, **settings),
  ]


def _mnist(place, *, damage):
  corpus = place.directory / 'mnist'
  # None: images of another size, though whole.
  small_image_runs.write_corpus(corpus, side=28 if damage else 20)
  if damage:
    damage(corpus)
  return _arguments(corpus)


def _idx(dtype, *shape, values=b''):
  """Returns an idx file; `values` may be too few."""
  header = bytes([0, 0, {'uint8': 8, 'int32': 12}[dtype], len(shape)])
  return header + struct.pack(f'>{len(shape)}I', *shape) + values


def _write(name, content):
  return lambda corpus: (corpus / name).write_bytes(content)


def _edit_writers(name, column, value):
  """Changes a number in the first row of a file of QMNIST."""

  def damage(corpus):
    data = bytearray((corpus / name).read_bytes())
    start = 12 + 4 * column
    data[start : start + 4] = struct.pack('>i', value)
    (corpus / name).write_bytes(data)

  return damage


_NUM_TRAIN = sum(small_image_runs.TRAIN_SIZES.values())
_MNIST = (
  (
    'must have images of 28 x 28 x 1 in 10 classes, but in',
    None,
  ),
  (
    "Corpus 'mnist_by_writer' requires",
    lambda corpus: (corpus / _WRITERS).unlink(),
  ),
  (
    "00 00 00 1c' in 16 bytes",
    _write(_TRAIN_IMAGES, _idx('uint8', 1, 28, 28)),
  ),
  (
    f'must hold a label for each of the {_NUM_TRAIN} images',
    _write(_TRAIN_LABELS, _idx('uint8', 1, values=b'\0')),
  ),
  ('must hold a row of 8 values for each', _edit_writers(_WRITERS, 0, 77)),
)


def _partition(place, **settings):
  corpus = small_image_runs.write_corpus(place.directory / 'fashion')
  return _arguments(
    corpus,
    data__corpus='fashion_mnist',
    **{f'partition__{name}': value for name, value in settings.items()},
  )


_PARTITIONS = {
  '`config.partition.alpha` must be finite and at least 1e-09': dict(
    scheme='per_client_sampling', num_clients=2, alpha=1e-12
  ),
  'must not exceed the 10 classes, found 11': dict(
    scheme='fixed_classes', num_clients=2, classes_per_client=11
  ),
  'must be a multiple of the 10 classes, found 3 x 1': dict(
    scheme='pathological_shards', num_clients=3, shards_per_client=1
  ),
  'must be at least the number of latent distributions': dict(
    scheme='latent_distributions', num_clients=1
  ),
  'clients always had fewer. Raise `alpha`': dict(
    scheme='per_class_over_clients', num_clients=9, alpha=1e-6, min_examples=3
  ),
}


def _cifar(place, *, write, **settings):
  corpus = place.directory / 'cifar'
  corpus.mkdir()
  write(corpus)
  return _arguments(
    corpus,
    data__corpus='cifar100',
    model__preset='resnet18',
    **{
      'partition__scheme': 'latent_distributions',
      'partition__num_clients': 2,
      **settings,
    },
  )


def _cifar_files(pairs):
  """Returns what writes CIFAR-100 with images of (coarse, fine) classes."""

  def write(corpus):
    for name in ('train.bin', 'test.bin'):
      content = b''.join(bytes(pair) + bytes(3072) for pair in pairs)
      (corpus / name).write_bytes(content)

  return write


_CIFAR = (
  ('must hold whole records of 3074 bytes', _cifar_files([(0,)]), {}),
  (
    'draws some class always had none of the 20 clients',
    # 20 of 40 would have to be drawn out of 99, each once.
    _cifar_files([(0, label) for label in range(40)]),
    dict(
      partition__scheme='fixed_classes',
      partition__num_clients=20,
      partition__classes_per_client=2,
    ),
  ),
)


def _folder(place, *, write=lambda corpus: None, **settings):
  corpus = place.directory / 'folder'
  small_image_folders.write_folder(corpus, clients=('a', 'b'), num_images=1)
  write(corpus)
  return _arguments(
    corpus,
    data__corpus='image_folder',
    client_splits__held_out_fraction=0.5,
    **settings,
  )


def _image(**options):
  """Returns what puts another image among the others, last in order."""
  return lambda corpus: small_image_folders.write_image(
    corpus / 'b/dog/1.png', **options
  )


def _rename(old, new):
  return lambda corpus: (corpus / old).rename(corpus / new)


def _remove_class(corpus):
  for client in ('a', 'b'):
    (corpus / client / 'dog/0.png').unlink()
    (corpus / client / 'dog').rmdir()


def _remove_images(corpus):
  for path in corpus.rglob('*.png'):
    path.unlink()


_FOLDERS = (
  ('its sides must have 16 to 128 pixels, found 8 x 8', _image(side=8)),
  (
    'no transparent pixels, found mode CMYK',
    lambda corpus: small_image_folders.write_image(
      corpus / 'b/dog/1.jpg', mode='CMYK'
    ),
  ),
  ('no transparent pixels, found mode RGBA', _image(mode='RGBA')),
  ('All images must have the same height', _image(side=17)),
  ('found 0 images of 2 classes', _remove_images),
  ('found 2 images of 1 classes', _remove_class),
  ('cannot be read (No such file or directory)', _rename('', '../elsewhere')),
)


CASES = (
  *(Case(words, functools.partial(_mnist, damage=d)) for words, d in _MNIST),
  *(
    Case(words, functools.partial(_partition, **settings))
    for words, settings in _PARTITIONS.items()
  ),
  *(
    Case(words, functools.partial(_cifar, write=write, **settings))
    for words, write, settings in _CIFAR
  ),
  *(Case(words, functools.partial(_folder, write=w)) for words, w in _FOLDERS),
)

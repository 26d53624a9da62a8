"""MNIST by writer with a few writers, and a config that trains on it."""

import pathlib
import struct

import numpy as np

from tff_fedfish.cli.main import main

CONFIG = str(
  pathlib.Path(__file__).parents[1] / 'configs' / 'mnist_by_writer.py'
)

TRAIN_SIZES = {11: 5, 12: 6, 13: 7, 14: 9}
"""Writer -> images of hers in the train split."""
TEST_SIZES = {71: 8, 72: 4, 73: 3}
"""Likewise in the test split."""

_IDX_TYPES = {'uint8': 0x08, 'int32': 0x0C}


def write_corpus(directory: pathlib.Path, side: int = 28) -> pathlib.Path:
  """Writes the six files; images are as many pixels high and wide as `side`.

  An image is noise with a bright row whose place tells its class.
  """
  directory.mkdir(parents=True, exist_ok=True)
  for name, other, sizes in (
    ('train', 'train', TRAIN_SIZES),
    ('t10k', 'test', TEST_SIZES),
  ):
    writers = np.repeat(list(sizes), list(sizes.values()))
    # Writers' images lie mixed, as in the real files.
    random = np.random.RandomState(len(writers))
    random.shuffle(writers)
    labels = random.randint(10, size=len(writers))
    images = random.randint(100, size=(len(writers), side, side))
    images[np.arange(len(writers)), 2 * labels % side] = 255
    rows = np.zeros((len(writers), 8), int)
    rows[:, 0], rows[:, 2] = labels, writers
    write_idx(directory / f'{name}-images-idx3-ubyte', images, 'uint8')
    write_idx(directory / f'{name}-labels-idx1-ubyte', labels, 'uint8')
    write_idx(directory / f'qmnist-{other}-labels-idx2-int', rows, 'int32')
  return directory


def train(corpus: pathlib.Path, workdir: pathlib.Path, **settings) -> int:
  """Runs `fedfish train` here; returns its exit code."""
  return main(
    ['train', '--config', CONFIG, '--workdir', str(workdir)]
    + overrides(corpus, **settings)
  )


def overrides(corpus: pathlib.Path, **settings) -> list[str]:
  """Returns arguments that turn the config into a run of some seconds.

  All four writers take part in every round, with at most 6 images each.
  """
  values = {
    'data.directory': corpus,
    'cohorts.cohort_size': 4,
    'client_work.num_local_epochs': 2,
    'client_work.local_batch_size': 4,
    'client_work.max_sequences_per_client': 6,
    'client_work.learning_rate': 0.05,
    'training.num_rounds': 3,
    'evaluation.every_num_rounds': 1,
    'evaluation.num_clients': 2,
    'checkpoints.every_num_rounds': 1,
    'checkpoints.keep_last': 0,
  } | {name.replace('__', '.'): value for name, value in settings.items()}
  return [f'--config.{name}={value}' for name, value in values.items()]


def write_idx(path: pathlib.Path, array: np.ndarray, dtype: str) -> None:
  """Writes a file of MNIST's format; `dtype` is 'uint8' or 'int32'."""
  data = bytes([0, 0, _IDX_TYPES[dtype], array.ndim])
  data += struct.pack(f'>{array.ndim}I', *array.shape)
  path.write_bytes(
    data + array.astype(np.dtype(dtype).newbyteorder('>')).tobytes()
  )

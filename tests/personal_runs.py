"""Four files of MNIST with a few images, and runs of models of clients' own."""

import pathlib
import shutil

import numpy as np
from small_image_runs import write_idx

from tff_fedfish.cli.main import main

CONFIG = str(
  pathlib.Path(__file__).parents[1] / 'configs' / 'mnist_personal.py'
)


def write_corpus(
  directory: pathlib.Path,
  num_train: int = 60,
  num_test: int = 30,
  num_classes: int = 10,
) -> pathlib.Path:
  """Writes images of noise, 28 x 28, with a bright row for their class."""
  directory.mkdir(parents=True, exist_ok=True)
  for name, num_images in (('train', num_train), ('t10k', num_test)):
    random = np.random.RandomState(num_images)
    labels = np.arange(num_images) % num_classes
    random.shuffle(labels)
    images = random.randint(100, size=(num_images, 28, 28))
    images[np.arange(num_images), 2 * labels] = 255
    write_idx(directory / f'{name}-images-idx3-ubyte', images, 'uint8')
    write_idx(directory / f'{name}-labels-idx1-ubyte', labels, 'uint8')
  return directory


def overrides(corpus: pathlib.Path, **settings) -> list[str]:
  """Returns arguments of a run of five clients and a linear model."""
  values = {
    'data.directory': corpus,
    'algorithm.num_downloads': 2,
    'model.preset': 'linear',
    'partition.num_clients': 5,
    'client_work.num_local_epochs': 2,
    'client_work.local_batch_size': 4,
    'client_work.learning_rate': 0.05,
    'training.num_rounds': 3,
    'evaluation.every_num_rounds': 1,
    'checkpoints.every_num_rounds': 1,
  } | {name.replace('__', '.'): value for name, value in settings.items()}
  if values.get('algorithm.name', 'fed_fomo') != 'fed_fomo':
    del values['algorithm.num_downloads']
  return [f'--config.{name}={value}' for name, value in values.items()]


def train(corpus: pathlib.Path, workdir: pathlib.Path, *options, **settings):
  """Runs `fedfish train` here; returns its exit code."""
  return main(
    ['train', '--config', CONFIG, '--workdir', str(workdir), *options]
    + overrides(corpus, **settings)
  )


def evaluate(
  corpus: pathlib.Path, run: pathlib.Path, *options, checkpoint=None
) -> int:
  """Runs `fedfish evaluate` here into a new RUN/out; returns its exit code."""
  output = run / 'out'
  shutil.rmtree(output, ignore_errors=True)
  arguments = ['--checkpoint', str(checkpoint or run), '--output', str(output)]
  return main(['evaluate', '--data', str(corpus), *arguments, *options])

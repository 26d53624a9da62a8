"""A corpus, a vocabulary and a config small enough to train in a second."""

import gzip
import json
import pathlib
import subprocess
import sys
import time

import numpy as np

from tff_fedfish import files
from tff_fedfish.cli.main import main
from tff_fedfish.run import run_directory

CONFIG = str(pathlib.Path(__file__).parents[1] / 'configs' / 'demo.py')

FROM_DIRECTORY = {
  'model__preset': 'from_directory',
  'model__num_layers': None,
  'model__width': None,
  'model__num_heads': None,
  'model__vocabulary_size': None,
}
"""Settings of a run with the sizes of the model that it starts from."""

_WORDS = (
  'the a of and to in is library tool for with data fast small free package '
  'provides support this module parser server client file text network image '
  'sound font game editor compiler python perl debian'
).split()


def write_raw_corpus(path: pathlib.Path, num_hosts: int = 12) -> None:
  """Writes C4 lines of some hosts; host i has i % 5 + 1 documents."""
  random = np.random.RandomState(7)
  with gzip.open(path, 'wt', encoding='utf-8') as file:
    for host in range(num_hosts):
      # Hosts prefer different words, so that clients differ.
      preference = random.dirichlet(np.full(len(_WORDS), 0.3))
      for page in range(host % 5 + 1):
        words = random.choice(_WORDS, size=40, p=preference)
        line = {
          'text': ' '.join(words),
          'timestamp': '2020-01-01T00:00:00Z',
          'url': f'https://host{host}.org/{page}',
        }
        file.write(json.dumps(line) + '\n')


def make_corpus(directory: pathlib.Path, num_hosts: int = 12) -> pathlib.Path:
  """Groups a raw corpus with the real command; returns its directory."""
  directory.mkdir(parents=True, exist_ok=True)
  raw = directory / f'raw{num_hosts}.json.gz'
  write_raw_corpus(raw, num_hosts)
  output = directory / f'grouped{num_hosts}'
  arguments = ['--input', str(raw), '--output', str(output)]
  assert main(['group', 'c4', *arguments, '--num_shards', '2']) == 0
  return output


def make_vocabulary(directory: pathlib.Path, corpus: pathlib.Path):
  """Trains a vocabulary of 256 pieces; returns its directory."""
  output = directory / 'vocabulary'
  arguments = ['--data', str(corpus), '--output', str(output)]
  size = ['--vocabulary_size', '256']
  assert main(['tokenizer', 'train', *arguments, *size]) == 0
  return output


def make_tokens(corpus: pathlib.Path, vocabulary: pathlib.Path):
  """Tokenizes a corpus with the real command; returns the store's directory."""
  output = corpus.with_name(f'{corpus.name}_tokens')
  arguments = [str(corpus), '--vocabulary', str(vocabulary)]
  assert main(['tokenize', *arguments, '--output', str(output)]) == 0
  return output


def train(inputs, workdir, *options, **settings) -> int:
  """Runs `fedfish train` here; returns its exit code."""
  arguments = overrides(*inputs, **settings)
  return main(
    ['train', '--config', CONFIG, '--workdir', str(workdir)]
    + [*options, *arguments]
  )


def starts(run: pathlib.Path) -> list[dict]:
  """Returns the lines of a run's `starts.jsonl`."""
  lines = (run / 'starts.jsonl').read_text('utf-8').splitlines()
  return list(map(json.loads, lines))


def round_read(path: pathlib.Path) -> dict:
  """Returns what a start records of the directory of a round."""
  return {
    'path': str(path),
    'round': int(path.name.removeprefix('round_')),
    'sha256': {'manifest.json': files.sha256_of(path / 'manifest.json')},
  }


def write_config(run: pathlib.Path, values) -> None:
  """Writes config.json of a copied run, and its checkpoints' settings."""
  (run / 'config.json').write_text(json.dumps(values))
  config = run_directory.read_config(run)
  settings = run_directory.settings_of_numbers(config)
  for path in run.glob('checkpoints/*/manifest.json'):
    edit_manifest(path, settings=settings)


def edit_manifest(path: pathlib.Path, **contents) -> None:
  """Changes what the manifest of a round keeps, and its own SHA-256."""
  manifest = json.loads(path.read_text('utf-8'))
  del manifest['sha256']
  manifest['contents'] |= contents
  path.write_text(json.dumps(files.with_hash(manifest)), 'utf-8')


def start(inputs, workdir, num_rounds: int, **settings) -> subprocess.Popen:
  """Starts `fedfish train`; returns once it has logged some rounds.

  Args:
    inputs: Corpus and vocabulary.
    workdir: The run's directory.
    num_rounds: Rounds in metrics.csv to wait for.
    **settings: As for `overrides`.

  Returns:
    The process; its standard error is a pipe.
  """
  process = subprocess.Popen(
    [sys.executable, '-m', 'tff_fedfish', 'train', '--config', CONFIG]
    + ['--workdir', str(workdir), *overrides(*inputs, **settings)],
    cwd=pathlib.Path(__file__).parents[1],
    stderr=subprocess.PIPE,
    text=True,
  )
  metrics = pathlib.Path(workdir) / 'metrics.csv'
  deadline = time.monotonic() + 500
  # The header and round 0 come before.
  while (
    not metrics.exists() or metrics.read_text().count('\n') < 2 + num_rounds
  ):
    if process.poll() is not None or time.monotonic() > deadline:
      process.kill()
      raise AssertionError(process.communicate()[1])
    time.sleep(0.05)
  return process


def overrides(corpus, vocabulary, **settings) -> list[str]:
  """Returns arguments that turn configs/demo.py into a run of a second."""
  values = {
    'data.directory': corpus,
    'data.vocabulary': vocabulary,
    'data.sequence_length': 8,
    'model.preset': 'custom',
    'model.num_layers': 1,
    'model.width': 16,
    'model.num_heads': 2,
    'model.vocabulary_size': 256,
    'cohorts.cohort_size': 3,
    'client_splits.held_out_fraction': 0.3,
    'client_work.max_sequences_per_client': 6,
    'client_work.num_local_epochs': 2,
    'training.num_rounds': 4,
    'evaluation.every_num_rounds': 2,
    'evaluation.num_clients': 2,
    # Most hosts have fewer than 4 documents.
    'evaluation.split_unit': 'sequences',
    'checkpoints.every_num_rounds': 1,
    'checkpoints.keep_last': 0,
  } | {name.replace('__', '.'): value for name, value in settings.items()}
  return [f'--config.{name}={value}' for name, value in values.items()]

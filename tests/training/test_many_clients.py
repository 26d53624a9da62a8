"""A run over 2,000 clients that keep their models: memory, disk, plan."""

import pathlib
import subprocess
import sys

import pytest
import small_image_folders

from tff_fedfish.planning.disk import states_on_disk
from tff_fedfish.run import run_directory, tables
from tff_fedfish.run.client_state import ClientStates

_ROOT = pathlib.Path(__file__).parents[2]
_NUM_CLIENTS = 2000
_COHORT_SIZE = 20


def _write_images(folder):
  """Writes images of 28 x 28, two a client, of ten classes."""
  clients = [f'client{i:04d}' for i in range(_NUM_CLIENTS)]
  classes = [f'class{i}' for i in range(10)]
  for i, client in enumerate(clients):
    small_image_folders.write_folder(
      folder, [client], [classes[i % 10]], side=28, num_images=2
    )
    for name in classes:
      (folder / client / name).mkdir(exist_ok=True)
  return folder


@pytest.mark.slow
def test_memory_disk_and_plan(tmp_path):
  run = tmp_path / 'run'
  settings = {
    'data.corpus': 'image_folder',
    'data.directory': _write_images(tmp_path / 'images'),
    'algorithm.name': 'moon',
    'model.preset': 'linear',
    'cohorts.cohort_size': _COHORT_SIZE,
    'client_work.num_local_epochs': 1,
    'client_work.learning_rate': 0.1,
    'client_splits.held_out_fraction': 0,
    'evaluation.num_clients': 0,
    'evaluation.every_num_rounds': 0,
    'training.num_rounds': 200,
    'checkpoints.every_num_rounds': 10,
    'checkpoints.keep_last': 2,
  }
  subprocess.run(
    [sys.executable, '-m', 'tff_fedfish', 'train', '--config']
    + ['mnist_by_writer', '--workdir', str(run)]
    + [f'--config.{n}={v}' for n, v in settings.items()],
    check=True,
    cwd=_ROOT,
  )
  config = run_directory.read_config(run)
  rows = tables.read_metrics(run / 'timings.csv')
  peaks = [row['peak_memory_bytes'] for row in rows]
  states = ClientStates(run)
  num_live = states.summary(10**8)['num_clients']
  files = list((run / 'client_states').glob('*/*'))
  num_bytes = sum(path.stat().st_size for path in files)
  client_bytes = states.num_bytes / len(
    [path for path in files if path.suffix == '.safetensors']
  )
  planned = states_on_disk(config, num_clients=_NUM_CLIENTS)
  # Each row says the size before what the round itself keeps.
  most_bytes = max(row['client_state_bytes'] for row in rows)
  most_bytes += _COHORT_SIZE * client_bytes
  print(
    f'{num_live} live states of {client_bytes:.0f} bytes; on disk '
    f'{num_bytes / client_bytes:.1f} states; planned '
    f'{planned.peak_bytes / most_bytes:.3f}; memory {peaks[10]:,} in round 10, '
    f'{peaks[-1]:,} in the last',
    file=sys.stderr,
  )
  assert peaks[-1] <= 1.05 * peaks[10]
  assert num_bytes <= (1.1 * num_live + 2 * _COHORT_SIZE) * client_bytes
  assert 0.9 <= planned.peak_bytes / most_bytes <= 1.1

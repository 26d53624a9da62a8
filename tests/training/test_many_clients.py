"""A run over many clients that keep their models: memory, disk, plan."""

import pathlib
import subprocess
import sys

import pytest
import small_image_folders

from tff_fedfish.planning.disk import states_on_disk
from tff_fedfish.run import run_directory, tables
from tff_fedfish.run.client_state import ClientStates

_ROOT = pathlib.Path(__file__).parents[2]
_NUM_CLIENTS = 300
_COHORT_SIZE = 10


@pytest.mark.slow
def test_memory_disk_and_plan(tmp_path):
  folder, run = tmp_path / 'images', tmp_path / 'run'
  small_image_folders.write_folder(
    folder, [f'client{i:04d}' for i in range(_NUM_CLIENTS)], num_images=1
  )
  # 314,114 weights of the CNN on images of 16 x 16.
  settings = {
    'data.corpus': 'image_folder',
    'data.directory': folder,
    'algorithm.name': 'moon',
    'cohorts.cohort_size': _COHORT_SIZE,
    'client_work.num_local_epochs': 1,
    'client_work.learning_rate': 0.1,
    'client_splits.held_out_fraction': 0,
    'evaluation.num_clients': 0,
    'evaluation.every_num_rounds': 0,
    'training.num_rounds': 40,
    'checkpoints.every_num_rounds': 5,
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

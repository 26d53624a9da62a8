"""Sweep files for the tests: configs/demo.py with a `get_sweep()`."""

import pathlib

import pytest

from tff_fedfish.sweeping.sweep_file import read_sweep_file

_DEMO = pathlib.Path(__file__).parents[2] / 'configs' / 'demo.py'

_TEXT = """
import runpy

from ml_collections import ConfigDict


def get_config():
  config = ConfigDict(runpy.run_path({demo!r})['get_config']())
  config.training.num_rounds = 30
{base}
  return config.lock()


def get_sweep():
  return ConfigDict({sweep!r}, allow_dotted_keys=True)
"""


@pytest.fixture
def sweep_file(tmp_path):
  """Writes and reads a sweep file.

  The base is configs/demo.py with 30 rounds: FedFish, 1 local epoch, client
  learning rate 0.1, checkpoints every 10 rounds of which 2 are kept. Further
  lines change it; `overrides` are those of the command line.
  """

  def read(sweep, *base, overrides=()):
    path = tmp_path / 'swept.py'
    lines = '\n'.join(f'  {line}' for line in base)
    path.write_text(_TEXT.format(demo=str(_DEMO), base=lines, sweep=sweep))
    return read_sweep_file(path, overrides)

  return read

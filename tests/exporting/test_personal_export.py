"""Personal models: `--client_id` of `fedfish export` and `generate`."""

import numpy as np
import pytest
import safetensors.numpy
import small_runs

from tff_fedfish.cli.main import main
from tff_fedfish.run import tensor_files
from tff_fedfish.run.client_state import ClientStates

# With 12 clients some hosts train, and others are held out.
_CLIENT = 'host4.org'


@pytest.fixture(scope='module')
def run(small_inputs, tmp_path_factory):
  """A run of one round whose clients each train a model of their own."""
  workdir = tmp_path_factory.mktemp('personal') / 'run'
  settings = dict(
    algorithm__name='local_only',
    client_work__num_local_epochs=1,
    client_splits__held_out_fraction=0.0,
    cohorts__cohort_size=None,
    training__num_rounds=1,
    evaluation__every_num_rounds=1,
  )
  assert small_runs.train(small_inputs, workdir, **settings) == 0
  return workdir


def test_the_model_that_the_client_kept(run, tmp_path):
  output = tmp_path / 'out'
  argv = ['export', '--checkpoint', str(run), '--output', str(output)]
  argv += ['--client_id', _CLIENT, '--format', 'safetensors']
  assert main(argv) == 0
  tensors = safetensors.numpy.load_file(output / 'model.safetensors')
  path = ClientStates(run).path_for(_CLIENT.encode(), 2)
  kept = tensor_files.read(path, prefix='model/')
  assert len(tensors) == len(kept) == 16
  np.testing.assert_array_equal(tensors['token_embedding'], kept['model/0'])
  np.testing.assert_array_equal(tensors['final_norm/bias'], kept['model/15'])
  card = (output / 'README.md').read_text()
  assert card.startswith(
    f'# Language model: Local models, round 1, client {_CLIENT}\n'
  )
  assert 'Clients sent nothing to the server.' in card


@pytest.mark.parametrize(
  ('option', 'words'),
  [
    ([], "`--client_id` is required with algorithm.name 'local_only'"),
    (['--client_id', 'x.org'], 'must be one of the 12 clients that the run tr'),
    (['--client_id', '%'], "found '%'. Name a client of per_client.csv"),
  ],
)
def test_no_such_client(run, capsys, option, words):
  assert main(['generate', '--checkpoint', str(run), *option]) == 2
  [line] = capsys.readouterr().err.splitlines()
  assert words in line


def test_a_method_with_one_model(small_run, capsys):
  argv = ['generate', '--checkpoint', str(small_run), '--client_id', _CLIENT]
  assert main(argv) == 2
  assert 'share the global model. Leave it out.' in capsys.readouterr().err

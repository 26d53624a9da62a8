"""Personal models: `--client_id` of `fedfish export` and `generate`."""

import json
import shutil
import types

import numpy as np
import pytest
import safetensors.numpy
import small_runs

from models.model_shapes import weight_shapes
from tff_fedfish.cli.main import main
from tff_fedfish.evaluation import own_tests
from tff_fedfish.run import run_directory
from tff_fedfish.run.client_state import ClientStates

_CLIENT = 'host4.org'


@pytest.fixture
def run(small_run, tmp_path):
  """A run whose 12 clients each train a model of their own."""
  run = shutil.copytree(small_run, tmp_path / 'run')
  values = json.loads((run / 'config.json').read_text())
  values['algorithm'] = {'name': 'local_only'}
  values['client_splits']['held_out_fraction'] = 0.0
  small_runs.write_config(run, values)
  small_runs.edit_manifest(
    run / 'checkpoints' / 'round_00000004' / 'manifest.json',
    client_states=ClientStates(run).summary(4),
  )
  return run


def test_the_model_of_the_client(run, tmp_path, monkeypatch):
  shapes = weight_shapes(run_directory.read_config(run).model_shape())
  weights = [np.full(s, i, np.float32) for i, s in enumerate(shapes.values())]
  opened = []

  def open_own_tests(config, corpus, tokenizer, checkpoint, states):
    del config, tokenizer
    opened.append((len(corpus.client_ids), checkpoint.round_num))
    assert states.directory.parent == run
    return types.SimpleNamespace(
      weights_of={_CLIENT.encode(): weights}.__getitem__
    )

  monkeypatch.setattr(own_tests, 'open_own_tests', open_own_tests)
  output = tmp_path / 'out'
  argv = ['export', '--checkpoint', str(run), '--output', str(output)]
  argv += ['--client_id', _CLIENT, '--format', 'safetensors']
  assert main(argv) == 0
  assert opened == [(12, 4)]
  tensors = safetensors.numpy.load_file(output / 'model.safetensors')
  assert tensors.keys() == shapes.keys()
  for name, weight in zip(shapes, weights, strict=True):
    np.testing.assert_array_equal(tensors[name], weight)
  card = (output / 'README.md').read_text()
  assert card.startswith(
    f'# Language model: Local models, round 4, client {_CLIENT}\n'
  )
  assert 'Clients sent nothing to the server.' in card


@pytest.mark.parametrize(
  ('option', 'words'),
  [
    ([], "`--client_id` is required with algorithm.name 'local_only'"),
    (['--client_id', 'x.org'], 'must be one of the 12 clients that the run tr'),
    (['--client_id', '%'], "found '%'. Copy an id"),
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

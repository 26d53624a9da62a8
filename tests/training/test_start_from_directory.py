"""A run that begins with a directory that transformers reads."""

import json
import shutil
import types

import numpy as np
import pytest
import small_runs
import tensorflow_federated as tff

from models.model_shapes import weight_shapes
from tff_fedfish import files
from tff_fedfish.config import load as config_loading
from tff_fedfish.exporting.trained_model import load_trained_model
from tff_fedfish.run import build, checkpoints
from tff_fedfish.training import check

_SETTINGS = small_runs.FROM_DIRECTORY | {
  'algorithm__name': 'fed_avg',
  'client_work__num_local_epochs': 1,
  'evaluation__num_clients': 0,
  'training__num_rounds': 1,
}


def _weights(run, round_num):
  return load_trained_model(
    checkpoints.path_of(run / 'checkpoints', round_num)
  ).weights


def _inputs(small_inputs, directory):
  return small_inputs[0], directory


@pytest.mark.slow
def test_weights_and_sizes_are_those_of_the_directory(
  small_inputs, small_run, small_export, tmp_path, capsys
):
  gone = shutil.copytree(small_export, tmp_path / 'gone')
  settings = _SETTINGS | {'training__start_from': gone}
  run = tmp_path / 'run'
  assert small_runs.train(_inputs(small_inputs, gone), run, **settings) == 0
  assert f"Initial weights from '{gone}'" in capsys.readouterr().err
  for name, weight in _weights(small_run, 4).items():
    np.testing.assert_array_equal(_weights(run, 0)[name], weight)
  (start,) = small_runs.starts(run)
  weights = gone / 'model.safetensors'
  assert start['reads'] == {
    'start_from': {
      'path': str(gone),
      'sha256': {weights.name: files.sha256_of(weights)},
    }
  }
  # Its other vocabulary is that of the run; the first is transformers'.
  inputs = _inputs(small_inputs, gone / 'vocabulary')
  other = tmp_path / 'other'
  assert small_runs.train(inputs, other, '--dry_run', **settings) == 0
  config = json.loads((run / 'config.json').read_text())
  assert config['model']['preset'] == 'from_directory'
  assert config['model']['num_layers'] == 1
  # Neither the vocabulary nor the sizes nor the weights are read again.
  shutil.rmtree(gone)
  inputs = _inputs(small_inputs, gone)
  # Nor is it another start, however it is spelled.
  more = settings | {
    'training__num_rounds': 2,
    'training__start_from': f'{tmp_path}//gone',
  }
  assert small_runs.train(inputs, run, **more) == 0
  assert 'Continuing after round 1' in capsys.readouterr().err


@pytest.mark.parametrize('length', [8, 4])
def test_first_positions_are_taken(
  length, small_inputs, small_run, small_export
):
  settings = _SETTINGS | {
    'training__start_from': small_export,
    'data__sequence_length': length,
  }
  config = config_loading.load_config(
    small_runs.CONFIG,
    small_runs.overrides(*_inputs(small_inputs, small_export), **settings),
  )
  start = check.check_run(config).start
  weights = _weights(small_run, 4)
  # Its state is the weights; those that it draws are 0.
  process = types.SimpleNamespace(
    get_model_weights=lambda state: state,
    set_model_weights=lambda state, weights: weights,
  )
  drawn = tuple(
    np.zeros(s) for s in weight_shapes(config.model_shape()).values()
  )
  state = tff.learning.models.ModelWeights(drawn, ())
  state = build.with_start_weights(process, state, config, start)
  for weight, (name, given) in zip(
    state.trainable, weights.items(), strict=True
  ):
    wanted = given[:length] if name == 'position_embedding' else given
    np.testing.assert_array_equal(weight, wanted)


@pytest.mark.parametrize(
  ('settings', 'words'),
  [
    (
      {'training__start_from': None},
      '`config.training.start_from` is required',
    ),
    (
      {'training__start_from': 'none/such'},
      "none/such' is none. Name one",
    ),
    ({'data__sequence_length': 9}, 'has 8 positions. Lower it'),
    (
      {'model__width': 8},
      "has [256, 16]. Set `--config.model.preset` to 'from_directory', no siz",
    ),
    ({'model__num_heads': 1}, '`config.model.num_heads` must be 2'),
    ({'model__position_embedding': 'rotary'}, 'must have shape none'),
  ],
)
def test_what_does_not_fit(
  small_inputs, small_export, tmp_path, capsys, settings, words
):
  settings = _SETTINGS | {'training__start_from': small_export} | settings
  inputs = _inputs(small_inputs, small_export)
  assert small_runs.train(inputs, tmp_path / 'run', **settings) == 2
  assert words in capsys.readouterr().err
  assert not (tmp_path / 'run').exists()


def test_other_vocabularies(small_inputs, small_export, tmp_path, capsys):
  other = shutil.copytree(small_export, tmp_path / 'other')
  file = other / 'tokenizer.json'
  file.write_text(file.read_text() + ' ')
  settings = _SETTINGS | {'training__start_from': small_export}
  inputs = _inputs(small_inputs, other)
  assert small_runs.train(inputs, tmp_path / 'run', **settings) == 2
  assert 'was trained with another vocabulary than' in capsys.readouterr().err
  shutil.rmtree(other / 'vocabulary')
  file.unlink()
  settings['training__start_from'] = other
  inputs = _inputs(small_inputs, small_export)
  assert small_runs.train(inputs, tmp_path / 'run', **settings) == 2
  assert 'must hold tokenizer.json, but does not' in capsys.readouterr().err

"""Files that `fedfish export` writes of a real run, read without fedfish."""

import hashlib
import json
import pathlib
import resource
import shutil

import numpy as np
import pytest
import safetensors
import safetensors.numpy
import tensorflow as tf

from models import transformer, transformer_config
from models.transformer_config import TransformerConfig, weight_shapes
from tff_fedfish.cli.main import main
from tff_fedfish.data.tokenizers import load_tokenizer
from tff_fedfish.errors import FailedError
from tff_fedfish.exporting import export, saved_model
from tff_fedfish.run import checkpoints, run_directory


@pytest.fixture(scope='module')
def exported(small_run, tmp_path_factory):
  """The last checkpoint of the run, in both formats."""
  output = tmp_path_factory.mktemp('exported') / 'model'
  directory, model = export.export(small_run, output)
  assert (directory, model.round_num) == (output, 4)
  return output


@pytest.fixture(scope='module')
def shape(small_run):
  """The shape of the run's model."""
  return run_directory.read_config(small_run).transformer_config()


@pytest.fixture(scope='module')
def weights(small_run, shape):
  """The weights as the checkpoint holds them, by name."""
  prefix = 'global_model_weights/trainable/'
  tensors = checkpoints.load_checkpoint(
    small_run / 'checkpoints' / 'round_00000004', prefix
  ).tensors
  names = weight_shapes(shape)
  return {name: tensors[f'{prefix}{i}'] for i, name in enumerate(names)}


def _tokens(rows, columns):
  random = np.random.RandomState(5)
  return tf.constant(random.randint(256, size=(rows, columns)), tf.int32)


def _files(directory):
  """Returns the paths of all files below a directory, by name."""
  return {
    path.relative_to(directory).as_posix(): path
    for path in directory.rglob('*')
    if path.is_file()
  }


def test_files_and_their_sums(exported):
  assert sorted(path.name for path in exported.iterdir()) == [
    'README.md',
    'SHA256SUMS',
    'config.json',
    'model.safetensors',
    'saved_model',
    'vocabulary',
  ]
  found = _files(exported)
  lines = found.pop('SHA256SUMS').read_text().splitlines()
  assert {*lines} == {
    f'{hashlib.sha256(path.read_bytes()).hexdigest()}  {name}'
    for name, path in found.items()
  }
  # Whatever the umask, none is for its owner alone if the others are not.
  assert len({path.stat().st_mode for path in found.values()}) == 1


def test_no_file_names_a_place_of_this_machine(exported, small_run):
  project = pathlib.Path(__file__).parents[2]
  places = [str(path) for path in (small_run, exported.parent, project)]
  for name, path in _files(exported).items():
    data = path.read_bytes()
    assert not [place for place in places if place.encode() in data], name


class TestSavedModel:
  @pytest.fixture(scope='class')
  def logits(self, exported):
    loaded = tf.saved_model.load(str(exported / 'saved_model'))
    assert list(loaded.signatures) == ['serving_default']
    return loaded.signatures['serving_default']

  # Up to the 8 positions of the model.
  @pytest.mark.parametrize(('rows', 'columns'), [(3, 5), (2, 8)])
  def test_logits(self, logits, shape, weights, rows, columns):
    tokens = _tokens(rows, columns)
    expected = transformer.logits(shape, tuple(weights.values()), tokens)
    found = logits(tokens=tokens)['logits']
    assert found.shape == (rows, columns, 256)
    np.testing.assert_allclose(found, expected, atol=1e-5)

  def test_rows_too_long(self, logits):
    with pytest.raises(tf.errors.InvalidArgumentError, match='at most 8 col'):
      logits(tokens=_tokens(1, 9))


@pytest.mark.slow
def test_saved_model_of_a_deep_model(tmp_path, monkeypatch):
  # What large models take: a loop over layers, bfloat16, logits in chunks.
  monkeypatch.setattr(transformer_config, 'MAX_LOGITS_BYTES', 4 * 11 * 3)
  shape = TransformerConfig(
    num_layers=2,
    width=8,
    num_heads=2,
    vocabulary_size=11,
    sequence_length=7,
    position_embedding='rotary',
    compute_dtype='bfloat16',
    layer_loop='foldl',
  )
  drawn = transformer.initial_weights(shape, 1)
  weights = dict(zip(weight_shapes(shape), drawn, strict=True))
  saved_model.write_saved_model(tmp_path / 'model', shape, weights)
  loaded = tf.saved_model.load(str(tmp_path / 'model'))
  tokens = _tokens(2, 7) % 11
  logits = loaded.signatures['serving_default'](tokens=tokens)['logits']
  expected = transformer.logits(shape, drawn, tokens)
  np.testing.assert_allclose(logits, expected, rtol=0.02, atol=1e-3)


def test_safetensors_are_the_checkpoint_bit_for_bit(exported, weights):
  path = exported / 'model.safetensors'
  tensors = safetensors.numpy.load_file(path)
  assert set(tensors) == set(weights)
  for name, weight in weights.items():
    np.testing.assert_array_equal(tensors[name], weight, err_msg=name)
    assert tensors[name].dtype == np.float32
  with safetensors.safe_open(path, framework='np') as file:
    metadata = file.metadata()
  config = json.loads((exported / 'config.json').read_text())
  assert json.loads(metadata['config']) == config


def test_config_and_vocabulary(exported, small_run):
  config = json.loads((exported / 'config.json').read_text())
  assert config['round'] == 4
  assert config['model'] == {
    'num_layers': 1,
    'width': 16,
    'num_heads': 2,
    'vocabulary_size': 256,
    'sequence_length': 8,
    'position_embedding': 'learned',
    'compute_dtype': 'float32',
    'layer_loop': 'auto',
  }
  assert config['run']['algorithm']['name'] == 'fed_fish'
  # Names, not places.
  assert config['run']['data']['directory'] == 'grouped12'
  assert config['run']['data']['vocabulary'] == 'vocabulary'
  assert 'engine' not in config['run']
  # Whoever knows it can take noise away.
  assert 'privacy_seed' not in config['run']['seeds']
  expected = load_tokenizer(small_run / 'vocabulary')
  assert load_tokenizer(exported / 'vocabulary').sha256 == expected.sha256
  for name, value in config['vocabulary'].items():
    assert value == getattr(expected, name)


@pytest.fixture
def copy(small_run, tmp_path):
  """A copy of the run, to be changed."""
  ignored = shutil.ignore_patterns('tensorboard', 'round_0000000[0-3]')
  return shutil.copytree(small_run, tmp_path / 'run', ignore=ignored)


def _error(capsys, *argv):
  """Returns the one line that `fedfish` refuses arguments with."""
  assert main([str(argument) for argument in argv]) == 2
  [line] = capsys.readouterr().err.splitlines()
  return line


def test_an_export_is_no_checkpoint(exported, tmp_path, capsys):
  command = ('export', '--checkpoint', exported, '--output', tmp_path / 'x')
  words = f'but {str(exported)!r} is a model that `fedfish export` wrote'
  assert words in _error(capsys, *command)


@pytest.mark.parametrize(
  'formats',
  ['onnx', 'safetensors,onnx', '', 'safetensors,huggingface'],
)
def test_formats_that_are_refused(small_run, tmp_path, capsys, formats):
  command = ('export', '--checkpoint', small_run, '--output', tmp_path / 'out')
  assert _error(capsys, *command, '--format', formats) == (
    'fedfish: error: `--format` must name saved_model, safetensors or '
    'huggingface, or saved_model and one of the others with a comma between '
    f'them, found {formats!r}. Leave it out for saved_model,safetensors.'
  )
  assert not list(tmp_path.iterdir())


def test_metrics_that_end_too_early(copy, tmp_path, capsys):
  command = ('export', '--checkpoint', copy, '--output', tmp_path / 'out')
  lines = (copy / 'metrics.csv').read_text().splitlines(keepends=True)
  (copy / 'metrics.csv').write_text(''.join(lines[:-1]))
  words = 'must have a row for round 4, that of the checkpoint, but has none'
  assert words in _error(capsys, *command)
  assert not (tmp_path / 'out').exists()


@pytest.mark.parametrize('name', ['saved_model', 'safetensors'])
def test_a_write_that_fails(small_run, tmp_path, name):
  """Nothing is left, and one line says why."""
  # As a full disk does, a limit fails the libraries' writes in the middle.
  limits = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
  try:
    with pytest.raises(FailedError) as failure:
      export.export(small_run, tmp_path / 'out', [name])
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
  message = str(failure.value)
  assert message.startswith(f"'{tmp_path / 'out'}' could not be written (")
  assert 'File too large' in message and '\n' not in message
  assert message.endswith('); nothing of it is left.')
  assert not list(tmp_path.iterdir())

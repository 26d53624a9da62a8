"""Files that `fedfish export` writes of a real run, read without fedfish."""

import errno
import hashlib
import json
import pathlib
import resource
import shutil
import subprocess
import sys

import numpy as np
import pytest
import safetensors
import safetensors.numpy
import small_runs
import tensorflow as tf

from models import transformer, transformer_config
from models.transformer_config import TransformerConfig, weight_shapes
from tff_fedfish.cli.main import main
from tff_fedfish.data.tokenizers import load_tokenizer
from tff_fedfish.errors import FailedError, UserError
from tff_fedfish.exporting import export, saved_model
from tff_fedfish.run import checkpoints, run_directory


@pytest.fixture(scope='module')
def exported(small_run, tmp_path_factory):
  """The last checkpoint of the run, in both formats."""
  output = tmp_path_factory.mktemp('exported') / 'model'
  written = export.export(small_run, output)
  assert written.directory == output
  assert written.model.round_num == 4
  assert written.remark is None
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


def test_files(exported):
  assert sorted(path.name for path in exported.iterdir()) == [
    'README.md',
    'SHA256SUMS',
    'config.json',
    'model.safetensors',
    'saved_model',
    'vocabulary',
  ]


@pytest.mark.parametrize(
  'argv',
  [
    ['evaluate', '--data', 'corpora/c4'],
    ['export', '--output', 'again'],
    ['generate', '--prompt', 'A'],
  ],
  ids=lambda argv: argv[0],
)
def test_an_export_is_no_checkpoint(
  exported, tmp_path, monkeypatch, capsys, argv
):
  monkeypatch.chdir(tmp_path)
  assert main([*argv, '--checkpoint', str(exported)]) == 2
  [line] = capsys.readouterr().err.splitlines()
  assert line.startswith('fedfish: error: `--checkpoint` must be a checkpoint')
  assert f'but {str(exported)!r} is a model that `fedfish export` wrote' in line


def test_files_are_readable_as_others_are(exported):
  # Whatever the umask, none is for its owner alone if the others are not.
  modes = {
    path.name: path.stat().st_mode & 0o777
    for path in exported.rglob('*')
    if path.is_file()
  }
  assert set(modes.values()) == {modes['README.md']}, modes


class TestSavedModel:
  @pytest.fixture(scope='class')
  def loaded(self, exported):
    return tf.saved_model.load(str(exported / 'saved_model'))

  # Up to the 8 positions of the model.
  @pytest.mark.parametrize(('rows', 'columns'), [(3, 5), (2, 8), (1, 1)])
  def test_logits_are_the_transformers(
    self, loaded, shape, weights, rows, columns
  ):
    tokens = _tokens(rows, columns)
    expected = transformer.logits(shape, tuple(weights.values()), tokens)
    logits = loaded.signatures['serving_default'](tokens=tokens)['logits']
    assert logits.shape == (rows, columns, 256)
    np.testing.assert_allclose(logits, expected, atol=1e-5)

  def test_it_is_the_only_signature(self, loaded):
    assert list(loaded.signatures) == ['serving_default']

  def test_rows_too_long(self, loaded):
    with pytest.raises(
      tf.errors.InvalidArgumentError, match='`tokens` must have at most 8 col'
    ):
      loaded.signatures['serving_default'](tokens=_tokens(1, 9))

  @pytest.mark.slow
  def test_loads_where_fedfish_is_not_installed(self, exported, tmp_path):
    code = (
      'import sys\n'
      'for name in ("tff_fedfish", "models", "tensorflow_federated"):\n'
      '  sys.modules[name] = None  # Importing it is an error.\n'
      'import tensorflow as tf\n'
      f'model = tf.saved_model.load({str(exported / "saved_model")!r})\n'
      'logits = model.signatures["serving_default"]\n'
      'print(logits(tokens=tf.constant([[5, 7]]))["logits"].shape)\n'
    )
    done = subprocess.run(
      [sys.executable, '-c', code],
      cwd=tmp_path,
      capture_output=True,
      text=True,
      timeout=300,
    )
    assert done.stdout == '(1, 2, 256)\n', done.stderr


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


class TestSafetensors:
  def test_weights_are_the_checkpoints_bit_for_bit(self, exported, weights):
    found = safetensors.numpy.load_file(exported / 'model.safetensors')
    assert set(found) == set(weights)
    for name, weight in weights.items():
      assert found[name].dtype == np.float32
      assert found[name].tobytes() == weight.tobytes(), name
      assert found[name].shape == weight.shape

  def test_metadata_hold_the_config(self, exported):
    with safetensors.safe_open(
      exported / 'model.safetensors', framework='np'
    ) as file:
      metadata = file.metadata()
    assert json.loads(metadata['config']) == json.loads(
      (exported / 'config.json').read_text()
    )


def test_config(exported):
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


def test_vocabulary_is_the_runs(exported, small_run):
  expected = load_tokenizer(small_run / 'vocabulary')
  found = load_tokenizer(exported / 'vocabulary')
  assert found.sha256 == expected.sha256
  config = json.loads((exported / 'config.json').read_text())
  for name, value in config['vocabulary'].items():
    assert value == getattr(expected, name)


def test_sums_of_all_files(exported):
  lines = (exported / 'SHA256SUMS').read_text().splitlines()
  sums = {name: digest for digest, name in (line.split('  ') for line in lines)}
  files = {
    path.relative_to(exported).as_posix(): path
    for path in exported.rglob('*')
    if path.is_file() and path.name != 'SHA256SUMS'
  }
  assert {'saved_model/saved_model.pb', 'model.safetensors'} < set(files)
  assert sums == {
    name: hashlib.sha256(path.read_bytes()).hexdigest()
    for name, path in files.items()
  }


def test_no_file_names_a_place_of_this_machine(exported, small_run):
  project = pathlib.Path(__file__).parents[2]
  places = [str(path) for path in (small_run, exported.parent, project)]
  for path in exported.rglob('*'):
    if path.is_file():
      data = path.read_bytes()
      assert not [place for place in places if place.encode() in data], path


class TestOneFormat:
  def test_safetensors_of_an_earlier_round(self, small_run, tmp_path):
    output = tmp_path / 'out'
    written = export.export(
      small_run / 'checkpoints' / 'round_00000002', output, ['safetensors']
    )
    assert written.model.round_num == 2
    assert not (output / 'saved_model').exists()
    card = (output / 'README.md').read_text()
    assert '| `round` | 2 of 4 |' in card


class TestFailure:
  """Nothing is left, and one line says why."""

  def _fails(self, small_run, tmp_path, words, formats=export.FORMATS[:2]):
    with pytest.raises(FailedError) as failure:
      export.export(small_run, tmp_path / 'out', formats)
    message = str(failure.value)
    assert f"'{tmp_path / 'out'}' could not be written" in message
    assert words in message
    assert message.endswith('); nothing of it is left.')
    assert '\n' not in message
    assert not list(tmp_path.iterdir())

  def test_saved_model(self, small_run, tmp_path, monkeypatch):
    def write(directory, *_, **__):
      pathlib.Path(directory).mkdir()
      (pathlib.Path(directory) / 'saved_model.pb').write_bytes(b'half')
      raise tf.errors.ResourceExhaustedError(None, None, 'disk\nis full')

    monkeypatch.setattr(saved_model, 'write_saved_model', write)
    self._fails(small_run, tmp_path, 'disk is full')

  def test_full_disk(self, small_run, tmp_path, monkeypatch):
    def save(*_, **__):
      # As TensorFlow 2.14 says it.
      raise tf.errors.ResourceExhaustedError(
        None,
        None,
        '{{function_node __wrapped__SaveV2_device_/job:localhost/CPU:0}} '
        '/x/part-00000-of-00001.tempstate14; No space left on device '
        '[Op:SaveV2]',
      )

    monkeypatch.setattr(tf.saved_model, 'save', save)
    self._fails(small_run, tmp_path, '; No space left on device')

  @pytest.mark.parametrize('names', [['saved_model'], ['safetensors']])
  def test_a_write_that_fails(self, small_run, tmp_path, names):
    # As a full disk does, a limit fails the libraries' writes in the middle.
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
      self._fails(small_run, tmp_path, 'File too large', names)
    finally:
      resource.setrlimit(resource.RLIMIT_FSIZE, limits)

  def test_safetensors(self, small_run, tmp_path, monkeypatch):
    def save_file(weights, path, metadata):
      path.write_bytes(b'half')
      raise safetensors.SafetensorError('no space')

    monkeypatch.setattr(safetensors.numpy, 'save_file', save_file)
    self._fails(small_run, tmp_path, 'no space')

  def test_model_card(self, small_run, tmp_path, monkeypatch):
    def card(*_):
      raise OSError(errno.ENOSPC, 'No space left on device')

    monkeypatch.setattr(saved_model, 'write_saved_model', lambda *_, **__: None)
    monkeypatch.setattr(export.model_card.ModelCard, 'render', card)
    self._fails(small_run, tmp_path, 'No space left on device')

  def test_interruption(self, small_run, tmp_path, monkeypatch):
    def write(*_, **__):
      raise KeyboardInterrupt

    monkeypatch.setattr(saved_model, 'write_saved_model', write)
    with pytest.raises(KeyboardInterrupt):
      export.export(small_run, tmp_path / 'out')
    assert not list(tmp_path.iterdir())


class TestBadInput:
  def _fails(self, words, checkpoint, output, *formats):
    with pytest.raises(UserError) as error:
      export.export(checkpoint, output, *formats)
    assert words in str(error.value)
    assert '\n' not in str(error.value)

  @pytest.mark.parametrize(
    ('formats', 'found'),
    [
      (['onnx'], "'onnx'"),
      (['safetensors', 'onnx'], "'safetensors,onnx'"),
      (['safetensors', 'safetensors'], "'safetensors,safetensors'"),
      ([''], "''"),
      ([], "''"),
    ],
  )
  def test_formats(self, small_run, tmp_path, formats, found):
    words = 'must name saved_model or safetensors or huggingface, or several'
    self._fails(words, small_run, tmp_path / 'out', formats)
    self._fails(f'found {found}. Leave', small_run, tmp_path / 'out', formats)
    assert not list(tmp_path.iterdir())

  def test_output_in_use(self, small_run, exported):
    self._fails('`--output` must be empty or new', small_run, exported)

  def test_no_checkpoint(self, tmp_path):
    self._fails('`--checkpoint` must be a checkpoint', tmp_path, tmp_path / 'x')

  def test_checkpoint_of_another_model(self, small_run, tmp_path):
    run = _copy_of_the_run(small_run, tmp_path)
    config = json.loads((run / 'config.json').read_text())
    config['model']['width'] = 32
    (run / 'config.json').write_text(json.dumps(config))
    self._fails('was made with other settings than', run, tmp_path / 'out')
    small_runs.write_config(run, config)
    self._fails('is of another model or method', run, tmp_path / 'out')

  def test_without_metrics(self, small_run, tmp_path):
    run = _copy_of_the_run(small_run, tmp_path)
    (run / 'metrics.csv').unlink()
    self._fails('metrics.csv', run, tmp_path / 'out')

  def test_metrics_that_end_too_early(self, small_run, tmp_path):
    run = _copy_of_the_run(small_run, tmp_path)
    lines = (run / 'metrics.csv').read_text().splitlines(keepends=True)
    (run / 'metrics.csv').write_text(''.join(lines[:-1]))
    words = 'must have a row for round 4, that of the checkpoint, but has none'
    self._fails(words, run, tmp_path / 'out')
    assert not (tmp_path / 'out').exists()


def _copy_of_the_run(small_run, tmp_path):
  return shutil.copytree(
    small_run,
    tmp_path / 'run',
    ignore=shutil.ignore_patterns('tensorboard', 'round_0000000[0-3]'),
  )

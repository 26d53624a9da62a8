"""Files of `fedfish export --format huggingface`, read without transformers."""

import json

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy
import small_runs

from tff_fedfish.cli.main import main
from tff_fedfish.errors import UserError
from tff_fedfish.exporting import export
from tff_fedfish.exporting.trained_model import load_trained_model
from tff_fedfish.huggingface import pretrained


def test_files(small_export):
  assert sorted(path.name for path in small_export.iterdir()) == [
    'README.md',
    'SHA256SUMS',
    'config.json',
    'generation_config.json',
    'model.safetensors',
    'tokenizer.json',
    'tokenizer_config.json',
    'vocabulary',
  ]
  card = (small_export / 'README.md').read_text()
  assert card.startswith('---\nlibrary_name: transformers\n')


def test_config_holds_the_run_beside_the_sizes(small_export, small_run):
  config = json.loads((small_export / 'config.json').read_text())
  assert config['architectures'] == ['GPT2LMHeadModel']
  expected = export.json_config(load_trained_model(small_run))
  assert config['fedfish'] == expected


def test_weights_come_back_bit_for_bit(small_export, small_run):
  model = load_trained_model(small_run)
  shape = pretrained.read_shape(small_export, '--x')
  assert (shape.num_layers, shape.width) == (
    model.shape.num_layers,
    model.shape.width,
  )
  found = pretrained.read_weights(small_export, shape)
  assert list(found) == list(model.weights)
  for name, weight in model.weights.items():
    np.testing.assert_array_equal(found[name], weight)
  with safetensors.safe_open(
    small_export / 'model.safetensors', framework='np'
  ) as file:
    assert file.metadata() == {'format': 'pt'}


def test_weights_in_several_files(small_export, small_run, tmp_path):
  tensors = safetensors.numpy.load_file(small_export / 'model.safetensors')
  parts = {'a.safetensors': {}, 'b.safetensors': {}}
  file_of = {name: list(parts)[i % 2] for i, name in enumerate(sorted(tensors))}
  for name, file in file_of.items():
    parts[file][name] = tensors[name]
  for file, part in parts.items():
    safetensors.numpy.save_file(part, tmp_path / file)
  index = tmp_path / 'model.safetensors.index.json'
  index.write_text(json.dumps({'weight_map': file_of}))
  shape = pretrained.read_shape(small_export, '--x')
  found = pretrained.read_weights(tmp_path, shape)
  for name, weight in load_trained_model(small_run).weights.items():
    np.testing.assert_array_equal(found[name], weight)
  (tmp_path / 'sub').mkdir()
  for value in (
    {},
    {'weight_map': {}},
  ):
    index.write_text(json.dumps(value))
    with pytest.raises(UserError, match='must name the files of the weights'):
      pretrained.read_weights(tmp_path, shape)
  # JSON can hold a half of a character, a path cannot.
  for name in ('..', '', 'sub', 'c.safetensors', '\ud800'):
    index.write_text(json.dumps({'weight_map': {'a': name}}))
    with pytest.raises(UserError) as error:
      pretrained.read_weights(tmp_path, shape)
    assert str(error.value) == (
      f'{str(index)!r} names {name!r}, which is no file beside it. Copy the '
      'whole directory again.'
    )
  index.unlink()
  with pytest.raises(UserError, match='safe_serialization=True'):
    pretrained.read_weights(tmp_path, shape)
  (tmp_path / 'model.safetensors').write_bytes(b'0')
  with pytest.raises(UserError, match='cannot be read .* Copy the whole'):
    pretrained.read_weights(tmp_path, shape)


@pytest.mark.parametrize('dtype', [np.float16, ml_dtypes.bfloat16])
def test_weights_of_half_the_size(small_export, tmp_path, dtype):
  tensors = safetensors.numpy.load_file(small_export / 'model.safetensors')
  halves = {name: tensor.astype(dtype) for name, tensor in tensors.items()}
  safetensors.numpy.save_file(halves, tmp_path / 'model.safetensors')
  shape = pretrained.read_shape(small_export, '--x')
  found = pretrained.read_weights(tmp_path, shape)
  np.testing.assert_array_equal(
    found['token_embedding'],
    halves['transformer.wte.weight'].astype(np.float32),
  )
  assert found['token_embedding'].dtype == np.float32


@pytest.mark.parametrize(
  ('value', 'dtype', 'found'),
  [
    (np.nan, np.float32, '1 of its 16 are NaN'),
    (-np.inf, np.float16, '1 of its 16 are NaN'),
    # Above 3.4e38, the largest float32.
    (1e39, np.float64, '1 of its 16 are NaN'),
    (1, np.int8, 'is of I8. Load the model in float32'),
    (1, ml_dtypes.float8_e4m3fn, 'is of F8_E4M3. Load the model in float32'),
  ],
)
def test_weights_that_are_refused(small_export, tmp_path, value, dtype, found):
  tensors = safetensors.numpy.load_file(small_export / 'model.safetensors')
  changed = np.zeros(16, dtype)
  changed[3] = value
  tensors['transformer.ln_f.bias'] = changed
  safetensors.numpy.save_file(tensors, tmp_path / 'model.safetensors')
  shape = pretrained.read_shape(small_export, '--x')
  for use in (pretrained.check_weights, pretrained.read_weights):
    with pytest.raises(UserError) as error:
      use(tmp_path, shape)
    message = str(error.value)
    assert found in message
    assert f"'{tmp_path}': tensor 'transformer.ln_f.bias'" in message


def test_saved_model_may_stand_beside_it(small_run, tmp_path):
  export.export(small_run, tmp_path / 'm', ['saved_model', 'huggingface'])
  assert (tmp_path / 'm' / 'saved_model').is_dir()
  assert pretrained.is_pretrained(tmp_path / 'm')


def test_both_layouts_of_the_weights_are_refused(small_run, tmp_path, capsys):
  argv = ['export', '--checkpoint', str(small_run)]
  argv += ['--output', str(tmp_path / 'm')]
  assert main([*argv, '--format', 'safetensors,huggingface']) == 2
  assert 'one of safetensors and huggingface' in capsys.readouterr().err
  assert not (tmp_path / 'm').exists()


def test_images_are_refused(small_image_run, tmp_path):
  with pytest.raises(UserError, match="'huggingface' is for language models"):
    export.export(small_image_run, tmp_path / 'm', ['huggingface'])


def test_rotary_positions_are_refused(small_inputs, tmp_path):
  run = tmp_path / 'run'
  settings = dict(model__position_embedding='rotary', training__num_rounds=1)
  assert small_runs.train(small_inputs, run, **settings) == 0
  with pytest.raises(UserError, match="as GPT-2 has, found 'rotary'"):
    export.export(run, tmp_path / 'm', ['huggingface'])
  assert not (tmp_path / 'm').exists()

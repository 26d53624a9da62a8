"""Files of `fedfish export --format huggingface`, read without transformers."""

import json

import numpy as np
import safetensors

from tff_fedfish.exporting import export
from tff_fedfish.exporting.trained_model import load_trained_model
from tff_fedfish.huggingface import pretrained


def test_files(small_export, small_run):
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
  assert '\n---\n\n# Language model' in card
  config = json.loads((small_export / 'config.json').read_text())
  assert config['architectures'] == ['GPT2LMHeadModel']
  assert (config['n_layer'], config['n_embd']) == (1, 16)
  assert config['fedfish'] == export.json_config(load_trained_model(small_run))


def test_weights_come_back_bit_for_bit(small_export, small_run):
  model = load_trained_model(small_run)
  shape = pretrained.read_shape(small_export, '--x')
  weights = pretrained.read_weights(small_export, shape)
  assert list(weights) == list(model.weights)
  for name, weight in model.weights.items():
    np.testing.assert_array_equal(weights[name], weight)
  with safetensors.safe_open(small_export / 'model.safetensors', 'np') as file:
    assert file.metadata() == {'format': 'pt'}


def test_saved_model_may_stand_beside_it(small_run, tmp_path):
  export.export(small_run, tmp_path / 'm', ['saved_model', 'huggingface'])
  assert (tmp_path / 'm' / 'saved_model').is_dir()
  assert pretrained.is_pretrained(tmp_path / 'm')

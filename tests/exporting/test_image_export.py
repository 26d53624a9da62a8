"""Files that `fedfish export` writes of image models."""

import json

import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import load_file

from models.image_model_config import ImageModelConfig
from models.image_models import IMAGE_CLASSIFIERS
from tff_fedfish.cli.main import main
from tff_fedfish.run import checkpoints


@pytest.fixture(scope='module')
def exported(small_image_run, tmp_path_factory):
  output = tmp_path_factory.mktemp('exported') / 'model'
  arguments = ['--checkpoint', str(small_image_run), '--output', str(output)]
  assert main(['export', *arguments]) == 0
  return output


@pytest.fixture(scope='module')
def weights(small_image_run):
  """The weights as the checkpoint holds them."""
  prefix = 'global_model_weights/trainable/'
  path = small_image_run / 'checkpoints' / 'round_00000003'
  tensors = checkpoints.load_checkpoint(path, prefix).tensors
  shape = ImageModelConfig(
    name='emnist_cnn', num_classes=10, image_shape=(28, 28, 1)
  )
  names = shape.weight_shapes()
  return {name: tensors[f'{prefix}{i}'] for i, name in enumerate(names)}


@pytest.mark.slow
def test_weights_are_the_checkpoints_bit_for_bit(exported, weights):
  tensors = load_file(exported / 'model.safetensors')
  assert tensors.keys() == weights.keys()
  for name, weight in weights.items():
    np.testing.assert_array_equal(tensors[name], weight, err_msg=name)


@pytest.mark.slow
def test_saved_model_is_the_network_of_the_checkpoint(exported, weights):
  loaded = tf.saved_model.load(str(exported / 'saved_model'))
  random = np.random.RandomState(3)
  images = random.uniform(size=(3, 28, 28, 1)).astype(np.float32)
  model = IMAGE_CLASSIFIERS['emnist_cnn']
  expected = model.logits(list(weights.values()), images)
  logits = loaded.signatures['serving_default'](images=tf.constant(images))
  np.testing.assert_allclose(logits['logits'], expected, atol=1e-5)


@pytest.mark.slow
def test_config_and_card(exported):
  assert not (exported / 'vocabulary').exists()
  config = json.loads((exported / 'config.json').read_text())
  shape = {'image_shape': [28, 28, 1], 'num_classes': 10, 'widths': None}
  assert config['model'] == {'name': 'emnist_cnn', **shape}
  assert 'vocabulary' not in config
  assert config['run']['data']['directory'] == 'raw'
  card = (exported / 'README.md').read_text()
  assert card.startswith('# Image classifier: FedFish, round 3\n')
  for row in (
    '| `parameters` | 1199882 |',
    '| `pixels` | divided by 255 |',
    '| `images` | mnist_by_writer |',
    '| `values 0 to 255` | 0 is background and 255 ink |',
    # Three rounds of two local epochs, 5 + 6 + 6 + 6 images each.
    '| `images trained on` | 138 |',
  ):
    assert row in card
  assert 'vocabulary' not in card


def test_no_format_of_language_models(small_image_run, tmp_path, capsys):
  argv = ['export', '--checkpoint', str(small_image_run)]
  argv += ['--output', str(tmp_path / 'm'), '--format', 'huggingface']
  assert main(argv) == 2
  assert "'huggingface' is for language models" in capsys.readouterr().err
  assert not (tmp_path / 'm').exists()

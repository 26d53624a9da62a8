"""Files that `fedfish export` writes of image models."""

import dataclasses
import json

import numpy as np
import planned_configs
import pytest
import tensorflow as tf
from safetensors.numpy import load_file

from models import emnist_cnn
from models.image_classifier import IMAGE_CLASSIFIERS, initial_weights
from models.image_model_config import (
  IMAGE_MODELS,
  ImageModelConfig,
  emnist_cnn_shapes,
)
from tff_fedfish.cli.main import main
from tff_fedfish.exporting import model_card
from tff_fedfish.exporting.saved_model import write_saved_model
from tff_fedfish.exporting.trained_model import load_trained_model
from tff_fedfish.run import checkpoints

_PARTITION = {
  'data__corpus': 'cifar10',
  'partition__scheme': 'per_client_sampling',
  'partition__num_clients': 100,
  'partition__alpha': 0.1,
}
_OWN_HELD_OUT = {'client_splits__held_out_fraction': None}


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
  names = emnist_cnn_shapes(10)
  return {name: tensors[f'{prefix}{i}'] for i, name in enumerate(names)}


def _in_one_line(path):
  return ' '.join(path.read_text().split())


def _card(model, **settings):
  """Returns the card of a model, in one line, with a shipped config."""
  if settings:
    config = planned_configs.shipped('mnist_by_writer', **settings)
    model = dataclasses.replace(model, config=config)
  values = model_card.gather_values(model)
  return ' '.join(model_card.render(values, ['safetensors']).split())


def _partition_settings(model, **settings):
  """Returns what the card's table holds of a partition."""
  config = planned_configs.shipped('mnist_by_writer', **settings)
  values = model_card.gather_values(dataclasses.replace(model, config=config))
  return {
    name: value
    for name, value in values['settings'].items()
    if 'partition' in name
  }


def test_files(exported):
  assert sorted(path.name for path in exported.iterdir()) == [
    'README.md',
    'SHA256SUMS',
    'config.json',
    'model.safetensors',
    'saved_model',
  ]
  for path in exported.rglob('*'):
    if path.is_file():
      assert b'pytest-of' not in path.read_bytes(), path


def test_weights_are_the_checkpoints_bit_for_bit(exported, weights):
  found = load_file(exported / 'model.safetensors')
  assert found.keys() == weights.keys()
  for name, weight in weights.items():
    np.testing.assert_array_equal(found[name], weight, err_msg=name)


@pytest.mark.parametrize('count', [1, 3])
def test_saved_model_is_the_network_of_the_checkpoint(exported, weights, count):
  loaded = tf.saved_model.load(str(exported / 'saved_model'))
  random = np.random.RandomState(count)
  images = random.randint(256, size=(count, 28, 28, 1)).astype(np.uint8)
  inputs = images.astype(np.float32) / 255
  expected = emnist_cnn.logits(list(weights.values()), inputs)
  logits = loaded.class_logits(images)['logits']
  np.testing.assert_allclose(logits, expected, atol=1e-5)
  for name in ('serving_default', 'class_logits'):
    serving = loaded.signatures[name](images=tf.constant(images))['logits']
    np.testing.assert_array_equal(serving, logits)


def test_saved_model_of_a_resnet(tmp_path):
  shape = ImageModelConfig(
    name='resnet18', num_classes=5, image_shape=(32, 32, 3)
  )
  network = IMAGE_CLASSIFIERS['resnet18']
  weights = initial_weights(shape, 3)
  named = {
    name: weight.numpy()
    for name, weight in zip(shape.weight_shapes(), weights, strict=True)
  }
  write_saved_model(tmp_path / 'model', shape, named)
  loaded = tf.saved_model.load(str(tmp_path / 'model'))
  images = np.random.RandomState(0).randint(256, size=(2, 32, 32, 3))
  axes = dict(axis=(1, 2, 3), keepdims=True)
  # Each image by its own mean and deviation, in double precision.
  inputs = (images - images.mean(**axes)) / images.std(**axes)
  np.testing.assert_allclose(
    loaded.class_logits(images.astype(np.uint8))['logits'],
    network.logits(weights, inputs.astype(np.float32)),
    atol=1e-4,
  )


def test_config(exported):
  config = json.loads((exported / 'config.json').read_text())
  assert config['model'] == {
    'name': 'emnist_cnn',
    'num_classes': 10,
    'image_shape': [28, 28, 1],
    'widths': None,
  }
  assert 'vocabulary' not in config
  assert config['run']['data']['directory'] == 'raw'


class TestModelCard:
  @pytest.fixture(scope='class')
  def model(self, small_image_run):
    return load_trained_model(small_image_run)

  def test_of_a_run(self, exported):
    card = _in_one_line(exported / 'README.md')
    assert card.startswith('# Image classifier: FedFish, round 3 ')
    assert 'The network `emnist_cnn` of 1,199,882 parameters' in card
    # 5 + 6 + 7 + 9 images to train on, 8 + 4 + 3 of held-out writers.
    assert (
      'The corpus `mnist_by_writer` in `raw`: 42 images of 7 clients, 4 of '
      'them for training and 3 held out. Clients are writers. Those held out '
      'are other people, who wrote the test images.' in card
    )
    # Three rounds of two local epochs, 5 + 6 + 6 + 6 images each.
    assert '138 images were trained on' in card
    assert "`client_splits.held_out_fraction` | none: the corpus's own" in card
    assert 'Tokens and sequences in the names of metrics are images.' in card
    assert '- The model may give away which images' in card
    assert 'the images of all clients lay on' in card
    assert 'tf.zeros([1, 28, 28, 1], tf.uint8)' in card
    for word in ('text', 'partition', 'vocabulary', 'documents'):
      assert word not in card, word

  def test_safetensors_alone_say_what_the_network_takes(self, model):
    card = _card(model)
    assert 'pixels divided by 255' in card
    assert 'saved_model' not in card

  def test_images_of_a_split_that_is_not_used_do_not_count(self, model):
    config = model.config
    splits = dataclasses.replace(config.client_splits, held_out_fraction=0.5)
    config = dataclasses.replace(config, client_splits=splits)
    model = dataclasses.replace(model, config=config)
    corpus = model_card.gather_values(model)['corpus']
    # The train split's writers: 5 + 6 + 7 + 9.
    assert corpus['num_examples'] == 27
    assert corpus['num_participating'] + corpus['num_held_out'] == 4

  def test_a_corpus_that_is_gone(self, model):
    data = dataclasses.replace(model.config.data, directory='/nowhere/of_mine')
    config = dataclasses.replace(model.config, data=data)
    assert (
      'The corpus `mnist_by_writer` in `of_mine`. Nothing more is known of it: '
      'it could not be read when this was written.'
      in _card(dataclasses.replace(model, config=config))
    )

  @pytest.mark.parametrize(
    ('settings', 'clients', 'pixels'),
    [
      (
        dict(data__corpus='emnist_by_writer', **_OWN_HELD_OUT),
        'Those held out are the same people again',
        '255 is background',
      ),
      (
        dict(
          data__corpus='cifar100', model__preset='resnet18', **_OWN_HELD_OUT
        ),
        'drew them by Pachinko allocation (Reddi et al., 2021)',
        'red, green and blue',
      ),
      (
        dict(client_splits__held_out_fraction=0.1),
        'A share of them is held out, and the test split was not used.',
        '0 is background and 255 ink',
      ),
      (
        dict(**_PARTITION, **_OWN_HELD_OUT),
        'the scheme `per_client_sampling` divided the train split among them. '
        'Held out are as many, made of the test split',
        'red, green and blue',
      ),
      (
        dict(**_PARTITION, **_OWN_HELD_OUT, partition__held_out='whole'),
        'among them. Held out is the test split, as one client.',
        'red, green and blue',
      ),
      (
        dict(**_PARTITION, client_splits__held_out_fraction=0.1),
        'among them. A share of them is held out, and the test split was not',
        'red, green and blue',
      ),
    ],
  )
  def test_whose_images(self, model, settings, clients, pixels):
    card = _card(model, **settings)
    assert clients in card
    assert pixels in card

  def test_settings_of_a_partition(self, model):
    assert _partition_settings(model) == {}
    partition = _PARTITION | dict(seeds__partition_seed=4)
    expected = {
      'partition.scheme': 'per_client_sampling',
      'partition.num_clients': 100,
      'partition.alpha': 0.1,
      'seeds.partition_seed': 4,
    }
    # What a share of the clients leaves unused is not said.
    fraction = {'client_splits__held_out_fraction': 0.1}
    found = _partition_settings(model, **partition, **fraction)
    assert found == expected
    found = _partition_settings(model, **partition, **_OWN_HELD_OUT)
    assert found == expected | {'partition.held_out': 'matching'}

  def test_defaults_of_a_scheme_are_settings(self, model):
    found = _partition_settings(
      model,
      data__corpus='cifar100',
      model__preset='resnet18',
      partition__scheme='per_class_over_clients',
      partition__num_clients=500,
      partition__alpha=0.5,
    )
    # Li et al. (2022): at least 10 images.
    assert found['partition.min_examples'] == 10

  @pytest.mark.parametrize('preset', IMAGE_MODELS)
  def test_every_network_is_described(self, model, preset):
    corpus = 'cifar100' if preset == 'resnet18' else 'mnist_by_writer'
    card = _card(model, data__corpus=corpus, model__preset=preset)
    described = card.partition('settings of its run. ')[2]
    assert described.startswith('A ')
    assert 'It takes' in described

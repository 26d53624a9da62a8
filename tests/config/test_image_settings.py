"""Configs of runs on images: what they take, and what is said otherwise."""

import json
import pathlib
import re

import planned_configs
import pytest
import small_image_runs

from models.image_model_config import ImageModelConfig
from models.model_shapes import num_parameters
from models.transformer_config import PRESETS
from tff_fedfish.cli.main import main
from tff_fedfish.config import loading as config_loading
from tff_fedfish.config import schema as config_lib
from tff_fedfish.config_fields import ConfigError
from tff_fedfish.data.images.image_corpora import IMAGE_CORPORA
from tff_fedfish.errors import UserError
from tff_fedfish.planning.plan import plan_round
from tff_fedfish.training import run_checks

_CONFIGS = pathlib.Path(small_image_runs.CONFIG).parent
_PARTITION = {
  'data__corpus': 'cifar10',
  'partition__scheme': 'per_client_sampling',
  'partition__num_clients': 100,
  'partition__alpha': 0.1,
}


def _config(**settings):
  return planned_configs.shipped('mnist_by_writer', **settings)


def test_published_settings_of_emnist():
  # Dhawan et al. (2024), Table 2; the cohort is halved.
  config = _config()
  assert config.client_work.local_batch_size == 10
  assert config.client_work.max_sequences_per_client == 100
  assert config.client_work.learning_rate == 1e-3
  assert config.server.learning_rate == 1e-3
  assert config.cohorts.cohort_size == 32


def test_sweep_has_the_same_base_but_for_its_size():
  sweep = planned_configs.shipped('mnist_by_writer_sweep')
  differences = config_loading.differences(_config(), sweep)
  assert set(differences) == {
    'checkpoints.every_num_rounds',
    'checkpoints.keep_last',
    'cohorts.cohort_size',
    'evaluation.every_num_rounds',
    'training.num_rounds',
  }


def test_shape_of_the_model():
  # 320 + 18,496 + 1,179,776 as with 62 classes, and 128 * 10 + 10.
  shape = _config().model_shape()
  assert shape == ImageModelConfig(
    name='emnist_cnn', num_classes=10, image_shape=(28, 28, 1)
  )
  assert num_parameters(shape) == 1_199_882
  shape = _config(model__preset='resnet18', **_PARTITION).model_shape()
  assert shape.image_shape == (32, 32, 3)
  assert shape.weight_shapes()['head/kernel'] == (512, 10)


# Opening a folder of one's own images is tested in test_image_folder_runs.py.
@pytest.mark.parametrize('name', sorted({*IMAGE_CORPORA} - {'image_folder'}))
def test_facts_agree_with_what_opens(name, tmp_path):
  # What may come with a partition, or without, gets as far as the files.
  corpus = IMAGE_CORPORA[name]
  if corpus.clients != 'own':
    settings = _PARTITION | {'data__corpus': name}
    config = _config(data__directory=tmp_path, **settings)
    with pytest.raises(UserError, match='is not there'):
      run_checks.check_run(config)
  if corpus.clients != 'partition':
    config = _config(data__directory=tmp_path, data__corpus=name)
    with pytest.raises(UserError, match='is not there'):
      run_checks.check_run(config)


def test_old_config_json_is_one_of_text():
  values = config_loading.to_json_dict(planned_configs.shipped('demo'))
  del values['partition']
  del values['data']['corpus']
  del values['seeds']['partition_seed']
  config = config_loading.from_json_dict(values, 'config.json')
  assert config == planned_configs.shipped('demo')
  assert config.data.corpus == 'grouped_text'


def test_config_json_gives_the_config_again():
  config = _config(**_PARTITION)
  values = json.loads(json.dumps(config_loading.to_json_dict(config)))
  assert config_loading.from_json_dict(values, 'config.json') == config


_TEXT_PRESETS = ', '.join((*PRESETS, 'custom', 'from_directory'))


@pytest.mark.parametrize(
  ('base', 'settings', 'problem'),
  [
    (
      'mnist_by_writer',
      dict(data__vocabulary='v'),
      '`config.data.vocabulary` must be left out with corpus '
      "'mnist_by_writer', which holds images, found 'v'",
    ),
    (
      'mnist_by_writer',
      dict(data__sequence_length=8),
      '`config.data.sequence_length` must be left out with corpus '
      "'mnist_by_writer', which holds images, found 8",
    ),
    (
      'mnist_by_writer',
      dict(data__sampling='documents'),
      "`config.data.sampling` must be 'blocks' with corpus 'mnist_by_writer', "
      "which holds images, found 'documents'",
    ),
    (
      'demo',
      dict(data__vocabulary=None),
      "`config.data.vocabulary` is required with corpus 'grouped_text'",
    ),
    (
      'demo',
      dict(data__corpus='digits'),
      '`config.data.corpus` must be one of grouped_text, mnist_by_writer, '
      'emnist_by_writer, cifar10, cifar100, fashion_mnist, mnist, '
      "image_folder, found 'digits'",
    ),
    (
      'mnist_by_writer',
      dict(model__preset='tiny'),
      '`config.model.preset` must be one of emnist_cnn, resnet18, linear, '
      "lenet, fed_net_cnn with corpus 'mnist_by_writer', found 'tiny'",
    ),
    (
      'demo',
      dict(model__preset='emnist_cnn'),
      f'`config.model.preset` must be one of {_TEXT_PRESETS} with corpus '
      "'grouped_text', found 'emnist_cnn'",
    ),
    (
      'mnist_by_writer',
      dict(model__width=8),
      '`config.model.width` must be left at None with preset '
      "'emnist_cnn', found 8",
    ),
    (
      'mnist_by_writer',
      dict(model__compute_dtype='bfloat16'),
      '`config.model.compute_dtype` must be left at float32 with preset '
      "'emnist_cnn', found 'bfloat16'",
    ),
    (
      'mnist_by_writer',
      dict(engine__xla=True),
      '`config.engine.xla` must be false with an image model, found true',
    ),
    (
      'mnist_by_writer',
      dict(data__corpus='cifar10'),
      "`config.partition.scheme` is required with corpus 'cifar10', which has "
      'no clients of its own',
    ),
    (
      'mnist_by_writer',
      _PARTITION | dict(data__corpus='mnist_by_writer'),
      '`config.partition.scheme` must be left out with corpus '
      "'mnist_by_writer', which has clients of its own, found "
      "'per_client_sampling'",
    ),
    (
      'demo',
      dict(client_splits__held_out_fraction=None),
      '`config.client_splits.held_out_fraction` must be a number with corpus '
      "'grouped_text', which holds nobody out itself, found None",
    ),
    (
      'mnist_by_writer',
      dict(partition__alpha=0.1),
      '`config.partition.alpha` is read with a `scheme` only, found 0.1; '
      'leave it out',
    ),
    (
      'mnist_by_writer',
      dict(data__corpus='cifar10', partition__scheme='fixed_classes'),
      '`config.partition.num_clients` is required with a `scheme`',
    ),
    (
      'mnist_by_writer',
      _PARTITION | dict(partition__alpha=None),
      '`config.partition.alpha` is required by the scheme '
      "'per_client_sampling', but it is not given",
    ),
    (
      'mnist_by_writer',
      _PARTITION | dict(partition__scheme='dirichlet'),
      '`config.partition.scheme` must be one of per_class_over_clients, ',
    ),
  ],
)
def test_what_does_not_go_together(base, settings, problem):
  with pytest.raises(ConfigError) as error:
    planned_configs.shipped(base, **settings)
  (found,) = error.value.problems
  assert found.startswith(problem)
  assert '\n' not in str(error.value)


def test_held_out_clients_of_its_own_are_scored():
  # 0 would be a config error: nobody would be held out.
  assert _config().client_splits.held_out_fraction is None
  assert _config().evaluation.num_clients == 64
  with pytest.raises(ConfigError, match='num_clients` must be 0 when'):
    _config(client_splits__held_out_fraction=0)


class TestInputs:
  @pytest.fixture(scope='class')
  def corpus(self, tmp_path_factory):
    return small_image_runs.write_corpus(tmp_path_factory.mktemp('mnist'))

  def _open(self, corpus, **settings):
    settings = (
      dict(evaluation__num_clients=0, cohorts__cohort_size=1) | settings
    )
    config = _config(data__directory=corpus, **settings)
    return run_checks.check_run(config)

  def test_own_split(self, corpus):
    inputs = self._open(corpus)
    assert inputs.split.participating == [
      b'writer-0011',
      b'writer-0012',
      b'writer-0013',
      b'writer-0014',
    ]
    assert inputs.split.held_out == [
      b'writer-0071',
      b'writer-0072',
      b'writer-0073',
    ]
    assert inputs.tokenizer is None
    assert inputs.identity.fingerprint == inputs.corpus.fingerprint

  def test_share_is_of_the_clients_for_training(self, corpus):
    own = self._open(corpus).split
    split = self._open(corpus, client_splits__held_out_fraction=0.5).split
    together = sorted(split.participating + split.held_out)
    assert together == own.participating

  def test_partition_is_a_function_of_its_seed(self, corpus):
    # The four files of MNIST are those of Fashion-MNIST.
    settings = _PARTITION | dict(
      data__corpus='fashion_mnist', partition__num_clients=3
    )
    inputs = self._open(corpus, **settings)
    again = self._open(corpus, **settings)
    other = self._open(corpus, **settings, seeds__partition_seed=6)
    assert inputs.identity.fingerprint == again.identity.fingerprint
    assert inputs.identity.fingerprint != other.identity.fingerprint
    assert {i.partition(b'-')[0] for i in inputs.split.participating} == {
      b'client'
    }
    assert {i.partition(b'-')[0] for i in inputs.split.held_out} == {b'test'}
    whole = self._open(corpus, **settings, partition__held_out='whole')
    assert whole.split.held_out == [b'test']

  def test_dry_run_prints_the_label_skew(self, corpus, capsys):
    arguments = small_image_runs.overrides(
      corpus,
      data__corpus='mnist',
      partition__scheme='latent_distributions',
      partition__num_clients=10,
      client_splits__held_out_fraction=None,
      evaluation__num_clients=0,
    )
    arguments = ['--config', small_image_runs.CONFIG, '--dry_run', *arguments]
    assert main(['train', *arguments]) == 0
    printed = capsys.readouterr().out
    assert re.search(
      r'^Label skew of 10 clients \(EMD in L1\): \d\.\d\d\.$',
      printed,
      re.MULTILINE,
    )

  def test_too_large_cohort(self, corpus):
    with pytest.raises(
      UserError,
      match='`--config.cohorts.cohort_size` is 5, but only 4 participating '
      'clients exist in .*. Lower cohort_size, or hold out a smaller',
    ):
      self._open(corpus, cohorts__cohort_size=5)

  def test_images_of_another_size(self, tmp_path):
    corpus = small_image_runs.write_corpus(tmp_path, side=20)
    with pytest.raises(
      UserError,
      match="^Corpus 'mnist_by_writer' must have images of 28 x 28 x 1 in 10 "
      'classes, but in .* they are of 20 x 20 x 1 in 10 classes. Check which',
    ):
      self._open(corpus)


def test_plan_names_what_it_takes():
  with pytest.raises(
    UserError,
    match="^A plan requires a transformer, but `config.model.preset` is 'emnist"
    "_cnn'. `fedfish train --dry_run` says what its rounds send.$",
  ):
    plan_round(_config(), timing=False)


def test_dry_run_counts_images(capsys):
  arguments = ['--config', small_image_runs.CONFIG, '--dry_run']
  # The corpus is not there.
  assert main(['train', *arguments]) == 2
  printed = ' '.join(capsys.readouterr().out.split())
  assert 'Model parameters 1,199,882 in 8 tensors' in printed
  # 32 clients x 100 images x 4 local epochs
  assert 'Images per round, at most 12,800 (4 local epochs)' in printed


def test_settings_of_a_partition_reach_it():
  config = _config(**_PARTITION, seeds__partition_seed=7)
  partition = config.partition.build(partition_seed=config.seeds.partition_seed)
  assert (partition.scheme, partition.num_clients) == (
    'per_client_sampling',
    100,
  )
  assert (partition.parameters, partition.seed) == ((('alpha', 0.1),), 7)
  assert config_lib.PartitionConfig().build(partition_seed=7) is None

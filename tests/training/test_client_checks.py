"""Corpora and clients that a config asks for, and what is refused."""

import pathlib

import planned_configs
import pytest
import small_image_runs
import small_runs

from tff_fedfish.config import load as config_loading
from tff_fedfish.data.client_splits import ClientSplit
from tff_fedfish.data.images.image_corpora import IMAGE_CORPORA
from tff_fedfish.errors import UserError
from tff_fedfish.methods import Column, registry
from tff_fedfish.training import check, cohort_checks

_IMAGES = {
  'data__corpus': 'cifar10',
  'partition__scheme': 'per_client_sampling',
  'partition__num_clients': 100,
  'partition__alpha': 0.1,
}


def _config(**settings):
  return planned_configs.shipped('mnist_by_writer', **settings)


# Opening a folder of one's own images is tested in test_image_folder_runs.py.
@pytest.mark.parametrize('name', sorted({*IMAGE_CORPORA} - {'image_folder'}))
def test_facts_agree_with_what_opens(name, tmp_path):
  # What may come with a partition, or without, gets as far as the files.
  corpus = IMAGE_CORPORA[name]
  kinds = [_IMAGES] * (corpus.clients != 'own')
  kinds += [{}] * (corpus.clients != 'partition')
  for settings in kinds:
    config = _config(
      data__directory=tmp_path, **settings | {'data__corpus': name}
    )
    with pytest.raises(UserError, match='is not there'):
      check.check_run(config)


class TestImages:
  @pytest.fixture(scope='class')
  def corpus(self, tmp_path_factory):
    return small_image_runs.write_corpus(tmp_path_factory.mktemp('mnist'))

  def _open(self, corpus, **settings):
    settings = (
      dict(evaluation__num_clients=0, cohorts__cohort_size=1) | settings
    )
    return check.check_run(_config(data__directory=corpus, **settings))

  def test_own_split(self, corpus):
    inputs = self._open(corpus)
    writers = [f'writer-{n:04}'.encode() for n in (11, 12, 13, 14)]
    assert inputs.split.participating == writers
    writers = [f'writer-{n:04}'.encode() for n in (71, 72, 73)]
    assert inputs.split.held_out == writers
    assert inputs.tokenizer is None
    assert inputs.identity.fingerprint == inputs.corpus.fingerprint

  def test_fraction_is_of_the_clients_for_training(self, corpus):
    own = self._open(corpus).split
    split = self._open(corpus, client_splits__held_out_fraction=0.5).split
    together = sorted(split.participating + split.held_out)
    assert together == own.participating

  def test_partition_is_a_function_of_its_seed(self, corpus):
    # The four files of MNIST are those of Fashion-MNIST.
    settings = _IMAGES | dict(
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


def _split(num_clients):
  ids = [f'client-{n:04}'.encode() for n in range(num_clients)]
  return ClientSplit(participating=ids, held_out=[])


@pytest.mark.parametrize('cohort_size', [None, 8])
def test_no_clients_to_train_on(cohort_size):
  config = planned_configs.shipped('demo', cohorts__cohort_size=cohort_size)
  with pytest.raises(
    UserError,
    match='must have clients to train on, but has none that is not held out. '
    'Lower `--config.client_splits.held_out_fraction`.',
  ):
    cohort_checks.require_cohort(config, _split(0))


@pytest.mark.parametrize(('num_others', 'num_validation'), [(0, 3), (3, 0)])
def test_validation_clients_and_others(num_others, num_validation):
  config = planned_configs.shipped(
    'demo', client_splits__validation_clients_fraction=0.5
  )
  split = ClientSplit([b'a'], [b'b'] * num_others, [b'c'] * num_validation)
  words = (
    '`--config.client_splits.validation_clients_fraction` is 0.5, which leaves '
    f'{num_validation} validation clients and {num_others} others'
  )
  with pytest.raises(UserError, match=words):
    cohort_checks.require_held_out_clients(config, split)


class TestDownloads:
  """Models that a client is sent, and the clients that there are."""

  def _require(self, num_clients, name='fed_fomo', **settings):
    config = planned_configs.shipped('demo', algorithm__name=name, **settings)
    cohort_checks.require_downloads(config, _split(num_clients))

  def test_no_more_than_other_clients(self):
    self._require(4, algorithm__num_downloads=3)
    with pytest.raises(
      UserError,
      match='^`--config.algorithm.num_downloads` is 3, but a client can be '
      'sent models of only 2 other participating clients of .*. Lower num_dow',
    ):
      self._require(3, algorithm__num_downloads=3)

  def test_a_number_for_every_client(self):
    self._require(4096)
    with pytest.raises(
      UserError,
      match="^algorithm.name 'fed_fomo' takes at most 4096 participating "
      'clients, as each keeps a number for every other, but .* has 4097. ',
    ):
      self._require(4097)

  def test_other_methods_send_none(self):
    for name in ('fed_avg', 'local_only'):
      self._require(1, name)


class TestSweeps:
  """Checks several configs; equal inputs are checked once."""

  @staticmethod
  def _problems(inputs, *several_settings):
    return check.problems_of(
      config_loading.load_config(
        small_runs.CONFIG, small_runs.overrides(*inputs, **settings)
      )
      for settings in several_settings
    )

  def test_each_problem_once(self, small_inputs):
    settings = dict(cohorts__cohort_size=50, model__vocabulary_size=300)
    problems = self._problems(
      small_inputs, settings, settings | dict(algorithm__name='fed_avg')
    )
    assert len(problems) == 2
    assert 'cohort_size` is 50, but only ' in problems[0]
    assert 'The model has 300 token ids' in problems[1]

  def test_what_methods_send(self, small_inputs):
    # All that differs is the method.
    (problem,) = self._problems(
      small_inputs,
      dict(algorithm__name='fed_avg'),
      dict(algorithm__name='fed_fomo', algorithm__num_downloads=50),
    )
    assert problem.startswith('`--config.algorithm.num_downloads` is 50, but ')

  def test_methods_of_ones_own(self, small_inputs, monkeypatch):
    monkeypatch.syspath_prepend(pathlib.Path(__file__).parents[1])
    own = registry.find('own_methods.kept_model')
    # All that differs is the method.
    monkeypatch.setattr(
      own, 'columns', lambda self, config: (Column('train/loss', ('a',)),)
    )
    (problem,) = self._problems(
      small_inputs,
      dict(algorithm__name='fed_avg'),
      dict(algorithm__name='own_methods.kept_model'),
    )
    assert "metrics.csv has another 'train/loss'" in problem

  def test_own_models_are_not_scored_on_held_out_clients(self, small_inputs):
    assert not self._problems(
      small_inputs,
      # No client has four sequences.
      dict(data__sequence_length=2000, algorithm__name='local_only'),
    )

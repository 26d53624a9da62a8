"""Merged clients, cohorts of all clients, rounds of some steps: settings."""

import planned_configs
import pytest
import small_runs

from tff_fedfish.cli.main import main
from tff_fedfish.config import loading as config_loading
from tff_fedfish.config_fields import ConfigError
from tff_fedfish.planning import client_steps

_MERGE = dict(partition__scheme='merge', partition__num_clients=4)
_STEPS = dict(
  client_work__num_local_steps=50,
  client_work__num_local_epochs=1,
  client_work__max_sequences_per_client=None,
)
_IMAGES = dict(partition__num_clients=4, data__corpus='cifar10')


@pytest.mark.parametrize(
  ('base', 'settings', 'problems'),
  [
    (
      'demo',
      dict(partition__scheme='merge'),
      ['`config.partition.num_clients` is required with a `scheme`'],
    ),
    (
      'demo',
      _MERGE | dict(partition__alpha=1, partition__held_out='whole'),
      [
        "`config.partition.held_out` is not read by the scheme 'merge', found "
        "'whole'; leave it out",
        "`config.partition.alpha` is not read by the scheme 'merge', found "
        '1.0; leave it out',
      ],
    ),
    (
      'demo',
      dict(partition__scheme='latent_distributions', partition__num_clients=4),
      [
        "`config.partition.scheme` must be left out or 'merge' with corpus "
        "'grouped_text', which has clients of its own, found "
        "'latent_distributions'"
      ],
    ),
    (
      'mnist_by_writer',
      _MERGE,
      [
        "`config.partition.scheme` 'merge' requires a corpus of text, found "
        "corpus 'mnist_by_writer'"
      ],
    ),
    (
      'mnist_by_writer',
      _MERGE | _IMAGES,
      [
        "`config.partition.scheme` 'merge' requires a corpus of text, found "
        "corpus 'cifar10'"
      ],
    ),
    (
      'demo',
      dict(client_work__num_local_steps=0),
      [
        '`config.client_work.num_local_steps` must be at least 1 and below '
        '10000000, found 0'
      ],
    ),
    (
      'demo',
      dict(client_work__num_local_steps=10**20),
      [
        '`config.client_work.num_local_steps` must be at least 1 and below '
        '10000000, found 100000000000000000000'
      ],
    ),
    (
      'demo',
      _STEPS
      | dict(
        client_work__num_local_steps=10**6, client_work__local_batch_size=101
      ),
      [
        '`config.client_work.num_local_steps` times local_batch_size must be '
        'at most 100000000 sequences, found 1000000 times 101'
      ],
    ),
    (
      'demo',
      dict(client_work__num_local_steps=5, client_work__num_local_epochs=2),
      [
        '`config.client_work.num_local_epochs` must be 1 with num_local_steps, '
        'which says how many sequences a round takes, found 2',
        '`config.client_work.max_sequences_per_client` must be None with '
        'num_local_steps, which says how many sequences a round takes, found 8',
      ],
    ),
    (
      'demo',
      _STEPS | dict(data__client_batches='full_only'),
      [
        "`config.data.client_batches` must be 'ragged' with num_local_steps, "
        "whose batches are full anyway, found 'full_only'"
      ],
    ),
    (
      'demo',
      _MERGE | dict(data__sampling='documents'),
      [
        "`config.data.sampling` must be 'blocks' with "
        "`config.partition.scheme` 'merge', found 'documents'"
      ],
    ),
    (
      'demo',
      _STEPS | dict(data__sampling='documents'),
      [
        "`config.data.sampling` must be 'blocks' with num_local_steps, which "
        "goes through all blocks in passes, found 'documents'"
      ],
    ),
    (
      'demo',
      dict(
        data__client_batches='repeat_full',
        client_work__max_sequences_per_client=None,
      ),
      [
        '`config.client_work.max_sequences_per_client` must be at least '
        "local_batch_size, 4, with `config.data.client_batches` 'repeat_full', "
        'found None'
      ],
    ),
    (
      'demo',
      dict(
        data__client_batches='full_only',
        client_work__max_sequences_per_client=3,
      ),
      [
        '`config.client_work.max_sequences_per_client` must be at least '
        "local_batch_size, 4, with `config.data.client_batches` 'full_only', "
        'found 3'
      ],
    ),
    (
      'demo',
      _STEPS | dict(algorithm__name='fed_sgd'),
      [
        '`config.client_work.num_local_steps` must be None with algorithm.name '
        "'fed_sgd', whose clients take no local steps, found 50"
      ],
    ),
  ],
)
def test_what_does_not_go_together(base, settings, problems):
  with pytest.raises(ConfigError) as error:
    planned_configs.shipped(base, **settings)
  assert list(error.value.problems) == problems


def test_problems_of_several_sections_at_once():
  with pytest.raises(ConfigError) as error:
    planned_configs.shipped(
      'mnist_by_writer', client_work__num_local_steps=5, **_MERGE
    )
  assert [problem.split('`')[1] for problem in error.value.problems] == [
    'config.partition.scheme',
    'config.client_work.num_local_epochs',
    'config.client_work.max_sequences_per_client',
  ]


def test_cohort_of_all_clients():
  config = planned_configs.shipped('demo', cohorts__cohort_size=None)
  assert config.cohort_size is None
  # Of a cohort of unknown size there may be fewer parts.
  assert config.num_partial_sums == 1
  ray = planned_configs.shipped(
    'demo', cohorts__cohort_size=None, engine__kind='ray'
  )
  assert ray.num_partial_sums == 8
  merged = planned_configs.shipped(
    'demo', cohorts__cohort_size=None, engine__kind='ray', **_MERGE
  )
  assert (merged.cohort_size, merged.num_partial_sums) == (4, 4)
  assert planned_configs.shipped('demo', **_MERGE).cohort_size == 8


def test_cohort_of_all_clients_of_a_partition():
  settings = dict(
    partition__num_clients=5, cohorts__cohort_size=None, engine__kind='ray'
  )
  config = planned_configs.shipped('mnist_personal', **settings)
  assert (config.cohort_size, config.num_partial_sums) == (5, 5)
  per_client = client_steps.max_tokens_per_client(config)
  assert client_steps.max_tokens_per_round(config) == 5 * per_client


def test_sequences_of_a_round():
  work = planned_configs.shipped('demo', **_STEPS).client_work
  # 50 batches of 4.
  assert (work.max_rows, work.max_batch_rows) == (200, 4)
  uncapped = planned_configs.shipped(
    'demo', client_work__max_sequences_per_client=None
  ).client_work
  assert (uncapped.max_rows, uncapped.max_batch_rows) == (None, 4)
  capped = planned_configs.shipped(
    'demo', client_work__max_sequences_per_client=3
  ).client_work
  assert (capped.max_rows, capped.max_batch_rows) == (3, 3)


def test_config_json_gives_the_config_again():
  config = planned_configs.shipped(
    'demo', cohorts__cohort_size=None, **_MERGE, **_STEPS
  )
  values = config_loading.to_json_dict(config)
  assert values['client_work']['num_local_steps'] == 50
  assert config_loading.from_json_dict(values, 'config.json') == config


def test_older_config_json_has_no_steps():
  values = config_loading.to_json_dict(planned_configs.shipped('demo'))
  del values['client_work']['num_local_steps']
  config = config_loading.from_json_dict(values, 'config.json')
  assert config == planned_configs.shipped('demo')


class TestDryRun:
  def _printed(self, inputs, capsys, **settings):
    arguments = small_runs.overrides(*inputs, **settings)
    arguments = ['--config', small_runs.CONFIG, '--dry_run', *arguments]
    assert main(['train', *arguments]) == 0
    return ' '.join(capsys.readouterr().out.split())

  def test_merged_clients(self, small_tokens, capsys):
    printed = self._printed(
      small_tokens,
      capsys,
      partition__scheme='merge',
      partition__num_clients=2,
      cohorts__cohort_size=None,
      **_STEPS,
    )
    assert 'Clients per round 2 ' in printed
    # 2 clients * 50 batches of 4 * 8 targets.
    assert 'Tokens per round, at most 3,200 (1 local epochs)' in printed

  def test_what_the_corpus_says_is_not_guessed(self, small_inputs, capsys):
    printed = self._printed(small_inputs, capsys, cohorts__cohort_size=None)
    assert 'Clients per round all that are not held out ' in printed
    # 6 sequences of 8 targets, 2 epochs.
    assert 'Tokens per client and round, at most 96 (2 local' in printed
    assert 'Communication per client and round 2 up, 1 down' in printed
    printed = self._printed(
      small_inputs, capsys, client_work__max_sequences_per_client=None
    )
    assert 'Tokens per round, at most all that there are ' in printed

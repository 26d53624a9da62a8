"""Settings that DP-SGD in the client does not go with."""

import dataclasses

import planned_configs
import pytest

from tff_fedfish.config import loading as config_loading
from tff_fedfish.config_fields import ConfigError
from tff_fedfish.errors import UserError
from tff_fedfish.methods import fed_avg
from tff_fedfish.run import columns

_ON = dict(algorithm__name='fed_avg', local_privacy__clip_norm=1.0)
_STEPS = dict(
  client_work__num_local_steps=5,
  client_work__num_local_epochs=1,
  client_work__max_sequences_per_client=None,
)


@pytest.mark.parametrize(
  ('settings', 'problem'),
  [
    (
      {'local_privacy__clip_norm': 0, 'local_privacy__noise_multiplier': 1},
      '`config.local_privacy.noise_multiplier` is read with clip_norm above 0 '
      'only, found 1.0; leave it out',
    ),
    (
      {'local_privacy__delta': 1.0},
      '`config.local_privacy.delta` must be finite and above 0 and below 1, '
      'found 1.0',
    ),
    (
      {'client_work__micro_batch_size': 2},
      '`config.client_work.micro_batch_size` must be None with local_privacy, '
      'which takes one row at a time, found 2',
    ),
    (
      {'client_work__max_sequences_per_client': 3},
      '`config.client_work.max_sequences_per_client` must be at least '
      'local_batch_size, 4, with local_privacy, which trains on full batches '
      'only, found 3',
    ),
    (
      {'data__sampling': 'documents'},
      "`config.data.sampling` must be 'blocks' with local_privacy, whose unit "
      "is a row that is the same in every round, found 'documents'",
    ),
    (
      {'data__client_batches': 'repeat_full'},
      "`config.data.client_batches` must be 'ragged' or 'full_only' with "
      "local_privacy, as a batch could hold a row twice, found 'repeat_full'",
    ),
    (
      {
        'data__client_batches': 'full_only',
        'local_privacy__sampling': 'poisson',
      },
      "`config.data.client_batches` must be 'ragged' with local_privacy, whose "
      "sampling 'poisson' makes its own batches, found 'full_only'",
    ),
    (
      _STEPS,
      '`config.client_work.num_local_steps` must be None with local_privacy, '
      "as a batch could hold a row twice with sampling 'shuffled' (set "
      "`local_privacy.sampling` to 'poisson'), found 5",
    ),
    (
      {'algorithm__name': 'fed_prox', 'algorithm__adaptation': 'fl4health'},
      "`config.algorithm.adaptation` must be 'none' with local_privacy, as it "
      "reads training losses, which have no noise, found 'fl4health'",
    ),
    (
      {'algorithm__name': 'fed_fish'},
      "`config.algorithm.fisher_estimator` must be 'last_epoch' with "
      "local_privacy, as others read data without noise, found 'extra_pass'",
    ),
  ],
)
def test_refused_in_one_line(settings, problem):
  with pytest.raises(ConfigError) as error:
    planned_configs.shipped('demo', **_ON | settings)
  assert error.value.problems == (problem,)


@pytest.mark.parametrize('name', ['fed_fisher', 'reg_mean', 'ot_fusion'])
def test_one_shot_methods_are_refused(name):
  settings = {'algorithm__name': name, 'local_privacy__clip_norm': 1.0}
  with pytest.raises(ConfigError) as error:
    planned_configs.shipped('fashion_mnist_one_shot', **settings)
  assert (
    '`config.local_privacy.clip_norm` must be 0.0 with algorithm.name '
    f'{name!r}, found 1.0'
  ) in error.value.problems


def test_fed_fish_without_fishers_is_fed_avg():
  settings = _ON | {'algorithm__name': 'fed_fish'}
  planned_configs.shipped('demo', **settings, algorithm__fisher_power=0.0)


def test_steps_are_drawn_with_poisson_sampling():
  config = planned_configs.shipped(
    'demo', **_ON, **_STEPS, local_privacy__sampling='poisson'
  )
  # Batches have no marks: no row comes before another in a stream.
  assert not config.marks_repeats and not config.drops_last_batch


def build_without(
  model,
  *,
  client_optimizer,
  server_optimizer,
  num_local_epochs,
  client_weighting,
):
  """Stands for the builder of a user's method."""


def test_a_builder_that_does_not_know_of_it_is_refused():
  method = dataclasses.replace(
    fed_avg.METHOD,
    builder=f'{__name__}:build_without',
  )
  plain = planned_configs.shipped('demo', algorithm__name='fed_avg')
  method.require_builder(plain)
  with pytest.raises(UserError, match='local_privacy.*unexpected keyword'):
    method.require_builder(planned_configs.shipped('demo', **_ON))


def test_columns():
  plain = planned_configs.shipped('demo', **_ON)
  assert plain.drops_last_batch
  names = set(columns.metric_names(plain))
  noised = planned_configs.shipped(
    'demo', **_ON, local_privacy__noise_multiplier=1.0
  )
  added = set(columns.metric_names(noised)) - names
  assert added == {'privacy/epsilon_mean', 'privacy/epsilon_max'}


def test_an_earlier_config_json_has_it_off():
  config = planned_configs.shipped('demo')
  values = config_loading.to_json_dict(config)
  del values['local_privacy']
  assert config_loading.from_json_dict(values, 'config.json') == config

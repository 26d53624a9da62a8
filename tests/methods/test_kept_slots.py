"""What clients of a method keep, as its declaration and settings say."""

import planned_configs
import pytest

from tff_fedfish.config_fields import ConfigError
from tff_fedfish.methods.method import Slot
from tff_fedfish.planning.client_states import states_on_disk

_ONE_MODEL = {
  'algorithm__name': 'scaffold',
  'algorithm__exchange': 'one_model',
  'client_work__num_local_epochs': 1,
  'client_work__num_local_steps': 3,
  'client_work__max_sequences_per_client': None,
  'cohorts__cohort_size': None,
  'server__optimizer': 'sgd',
  'server__learning_rate': 1.0,
}


@pytest.mark.parametrize(
  ('settings', 'slots'),
  [
    ({'algorithm__name': 'fed_avg'}, []),
    ({'algorithm__name': 'moon'}, [('previous_model', 1)]),
    ({'algorithm__name': 'scaffold'}, [('control_variate', 1)]),
    (_ONE_MODEL, [('correction', 1), ('last_local', 1)]),
    (
      {
        'algorithm__name': 'moon',
        'client_work__optimizer': 'adamw',
        'client_work__keeps_optimizer_state': True,
      },
      [('previous_model', 1), ('optimizer', 2)],
    ),
    (
      {
        'algorithm__name': 'fed_avg',
        'client_work__momentum': 0.9,
        'client_work__keeps_optimizer_state': True,
      },
      [('optimizer', 1)],
    ),
  ],
)
def test_slots(settings, slots):
  config = planned_configs.by_hand(**settings)
  assert list(config.kept_slots) == [Slot(*slot) for slot in slots]


def _problems(**settings):
  with pytest.raises(ConfigError) as caught:
    planned_configs.by_hand(**settings)
  return str(caught.value)


def test_sgd_without_momentum_has_nothing_to_keep():
  assert (
    '`config.client_work.keeps_optimizer_state` must be false with optimizer '
    "'sgd' without momentum, which has no moments, found true"
  ) in _problems(client_work__keeps_optimizer_state=True)


def test_fed_sgd_has_no_optimizer():
  problems = _problems(
    algorithm__name='fed_sgd',
    client_work__num_local_epochs=1,
    client_work__momentum=0.9,
    client_work__keeps_optimizer_state=True,
  )
  assert '`config.client_work.keeps_optimizer_state` must be False' in problems


@pytest.mark.parametrize(
  ('setting', 'value', 'wanted'),
  [
    ('client_work__optimizer', 'adamw', "'sgd'"),
    ('client_work__momentum', 0.9, '0.0'),
    ('client_work__max_gradient_norm', 2.0, 'None'),
  ],
)
def test_scaffold_takes_plain_sgd(setting, value, wanted):
  problems = _problems(algorithm__name='scaffold', **{setting: value})
  path = setting.replace('__', '.')
  assert (
    f"`config.{path}` must be {wanted} with algorithm.name 'scaffold', found "
    f'{value!r}'
  ) in problems


@pytest.mark.parametrize(
  ('setting', 'value', 'wanted'),
  [
    ('client_work__warmup_rounds', 3, '0'),
    ('client_work__max_delta_norm', 2.0, 'None'),
    ('cohorts__cohort_size', 4, 'None'),
    ('server__optimizer', 'adam', "'sgd'"),
    ('server__learning_rate', 0.5, '1.0'),
    ('server__momentum', 0.9, '0.0'),
  ],
)
def test_one_model_takes_the_mean_of_all(setting, value, wanted):
  problems = _problems(**_ONE_MODEL | {setting: value})
  path = setting.replace('__', '.')
  assert (
    f"`config.{path}` must be {wanted} with algorithm.exchange 'one_model', "
    f'found {value!r}'
  ) in problems


def test_one_model_takes_equally_many_steps():
  settings = {
    'client_work__num_local_steps': None,
    'client_work__max_sequences_per_client': 8,
  }
  assert (
    '`config.client_work.num_local_steps` is required with algorithm.exchange '
    "'one_model'"
  ) in _problems(**_ONE_MODEL | settings)


class TestStatesOnDisk:
  """Of a model of N weights, 4 bytes each."""

  def _states(self, num_clients=None, **settings):
    settings = {
      'algorithm__name': 'moon',
      'cohorts__cohort_size': 20,
      'training__num_rounds': 2,
    } | settings
    config = planned_configs.by_hand(**settings)
    return states_on_disk(config, num_clients)

  def test_methods_that_keep_nothing(self):
    assert self._states(algorithm__name='fed_avg') is None

  def test_by_hand(self):
    # 100 (1 - (1 - 20 / 100)^2) = 36 clients, and 2 rounds of 20.
    found = self._states(100)
    assert found.num_clients == pytest.approx(36)
    assert not found.is_bound
    assert found.total_bytes == pytest.approx(76 * found.client_bytes, abs=1)
    half = self._states(100, client_states__dtype='bfloat16')
    assert half.client_bytes == found.client_bytes / 2
    assert str(found).startswith('about ')
    assert str(found).endswith(' and two rounds')

  def test_an_unknown_number_of_clients(self):
    found = self._states()
    assert (found.num_clients, found.is_bound) == (40, True)
    assert str(found).startswith('at most ')

  def test_all_clients(self):
    found = self._states(7, cohorts__cohort_size=None)
    assert found.num_clients == 7
    assert found.total_bytes == 21 * found.client_bytes

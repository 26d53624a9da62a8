"""Settings of optimizers that do not go together, in words."""

import pytest

from tff_fedfish.config.schema import ClientWorkConfig, ServerConfig
from tff_fedfish.config_fields import ConfigError


def _build(section, **settings):
  if section == 'server':
    return ServerConfig(**dict(learning_rate=0.1) | settings)
  return ClientWorkConfig(
    **dict(learning_rate=0.1, num_local_epochs=1) | settings
  )


def _problems(section, **settings):
  with pytest.raises(ConfigError) as error:
    _build(section, **settings)
  return error.value.problems


@pytest.mark.parametrize('section', ['client_work', 'server'])
@pytest.mark.parametrize(
  ('settings', 'name', 'words'),
  [
    (dict(learning_rate=-0.1), 'learning_rate', 'must be finite and above 0'),
    (dict(momentum=1.0), 'momentum', 'must be finite and at least 0 and below'),
    (dict(beta_1=1.0), 'beta_1', 'must be finite and at least 0 and below 1'),
    (dict(beta_2=-0.1), 'beta_2', 'must be finite and at least 0 and below 1'),
    (dict(epsilon=0), 'epsilon', 'must be finite and above 0, found 0.0'),
    (dict(weight_decay=-1), 'weight_decay', 'must be finite and at least 0, f'),
    (
      dict(max_gradient_norm=0),
      'max_gradient_norm',
      'must be finite and above',
    ),
    (
      dict(learning_rate_schedule='linear'),
      'learning_rate_schedule',
      "must be one of constant, cosine, exponential, found 'linear'",
    ),
    (dict(warmup_rounds=-1), 'warmup_rounds', 'must be at least 0, found -1'),
    (dict(schedule_rounds=0), 'schedule_rounds', 'must be at least 1, found 0'),
    (
      dict(final_fraction=1.5),
      'final_fraction',
      'must be finite and at least 0 and at most 1, found 1.5',
    ),
  ],
)
def test_out_of_bounds(section, settings, name, words):
  settings = (
    dict(
      optimizer='adamw',
      learning_rate_schedule='cosine',
      schedule_rounds=9,
    )
    | settings
  )
  if name == 'momentum':
    settings['optimizer'] = 'sgd'
  (problem,) = _problems(section, **settings)
  assert problem.startswith(f'`config.{section}.{name}` {words}')


@pytest.mark.parametrize(
  ('section', 'settings', 'problem'),
  [
    (
      'client_work',
      dict(nesterov=True),
      '`config.client_work.momentum` must be above 0 with nesterov true, found '
      '0.0',
    ),
    (
      'server',
      dict(optimizer='sgd', nesterov=True),
      '`config.server.momentum` must be above 0 with nesterov true, found 0.0',
    ),
    (
      'client_work',
      dict(weight_decay=0.1),
      "`config.client_work.weight_decay` is read with optimizer 'adamw' only, "
      'found 0.1; leave it out',
    ),
    (
      'client_work',
      dict(beta_2=0.99),
      "`config.client_work.beta_2` is read with optimizer 'adamw' only, found "
      '0.99; leave it out',
    ),
    (
      'client_work',
      dict(optimizer='adamw', momentum=0.9),
      "`config.client_work.momentum` is read with optimizer 'sgd' only, found "
      '0.9; leave it out',
    ),
    (
      'server',
      dict(momentum=0.9),
      "`config.server.momentum` is read with optimizer 'sgd' only, found 0.9; "
      'leave it out',
    ),
    (
      'server',
      dict(optimizer='sgd', beta_1=0.5),
      "`config.server.beta_1` is read with optimizer 'adam', 'adamw' or 'yogi' "
      'only, found 0.5; leave it out',
    ),
    (
      'server',
      dict(optimizer='adagrad', beta_1=0.5),
      "`config.server.beta_1` is read with optimizer 'adam', 'adamw' or 'yogi' "
      'only, found 0.5; leave it out',
    ),
    (
      'server',
      dict(optimizer='yogi', bias_correction=True),
      "`config.server.bias_correction` is read with optimizer 'adam' only, "
      'found True; leave it out',
    ),
    (
      'server',
      dict(optimizer='adagrad', bias_correction=False),
      "`config.server.bias_correction` is read with optimizer 'adam' only, "
      'found False; leave it out',
    ),
    (
      'client_work',
      dict(learning_rate_schedule='cosine'),
      '`config.client_work.schedule_rounds` is required with '
      "learning_rate_schedule 'cosine'",
    ),
    (
      'server',
      dict(learning_rate_schedule='exponential', schedule_rounds=5),
      '`config.server.final_fraction` is required with learning_rate_schedule '
      "'exponential'",
    ),
    (
      'server',
      dict(
        learning_rate_schedule='exponential',
        schedule_rounds=5,
        final_fraction=0,
      ),
      '`config.server.final_fraction` must be above 0 with '
      "learning_rate_schedule 'exponential', found 0.0",
    ),
    (
      'client_work',
      dict(final_fraction=0.1),
      '`config.client_work.final_fraction` is read with learning_rate_schedule '
      "'cosine' or 'exponential' only, found 0.1; leave it out",
    ),
    (
      'server',
      dict(schedule_rounds=3, warmup_rounds=2),
      '`config.server.schedule_rounds` is read with learning_rate_schedule '
      "'cosine' or 'exponential' only, found 3; leave it out",
    ),
  ],
)
def test_settings_that_do_not_go_together(section, settings, problem):
  assert _problems(section, **settings) == (problem,)


def test_all_problems_at_once():
  problems = _problems(
    'client_work',
    learning_rate=-1,
    nesterov=True,
    beta_1=1.0,
    learning_rate_schedule='exponential',
  )
  assert [problem.split('`')[1] for problem in problems] == [
    'config.client_work.beta_1',
    'config.client_work.learning_rate',
    'config.client_work.beta_1',
    'config.client_work.momentum',
    'config.client_work.schedule_rounds',
    'config.client_work.final_fraction',
  ]


def test_unknown_optimizer_is_one_problem():
  (problem,) = _problems('server', optimizer='lamb', momentum=0.9)
  assert problem == (
    '`config.server.optimizer` must be one of adam, sgd, adagrad, adamw, yogi, '
    "found 'lamb'"
  )


@pytest.mark.parametrize(
  ('section', 'settings'),
  [
    ('client_work', dict(momentum=0.9, nesterov=True, max_gradient_norm=1)),
    ('client_work', dict(optimizer='adamw', weight_decay=0.1, beta_2=0.99)),
    ('server', dict(optimizer='adagrad', epsilon=1e-3)),
    ('server', dict(bias_correction=False)),
    ('server', dict(optimizer='yogi', beta_1=0)),
    ('server', dict(learning_rate_schedule='cosine', schedule_rounds=5)),
    ('server', dict(warmup_rounds=5)),
  ],
)
def test_settings_that_go_together(section, settings):
  built = _build(section, **settings)
  assert {name: getattr(built, name) for name in settings} == settings


def test_decay_is_0_by_default():
  assert _build('client_work', optimizer='adamw').weight_decay == 0
  assert _build('server', optimizer='adamw').weight_decay == 0

"""Rows for validation and tests, and methods with models of clients' own."""

import planned_configs
import pytest

from tff_fedfish.config import loading as config_loading
from tff_fedfish.config_fields import ConfigError
from tff_fedfish.data.client_splits import ClientSplit
from tff_fedfish.errors import UserError
from tff_fedfish.run import client_data

_SPLITS = 'config.client_splits'
_FOMO, _LOCAL = (
  dict(algorithm__name='fed_fomo'),
  dict(algorithm__name='local_only'),
)


def _problems(base, **settings):
  with pytest.raises(ConfigError) as error:
    planned_configs.shipped(base, **settings)
  return list(error.value.problems)


@pytest.mark.parametrize(
  ('base', 'settings', 'fractions'),
  [
    # Without models of clients' own all rows are trained on.
    ('demo', {}, (0.0, 0.0)),
    ('demo', dict(client_splits__test_fraction=0.25), (0.0, 0.25)),
    ('demo', _LOCAL, (0.0, 0.2)),
    ('demo', _FOMO, (0.2, 0.2)),
    ('demo', _FOMO | dict(client_splits__validation_fraction=0.1), (0.1, 0.2)),
    # A client is tested on its twin.
    ('mnist_personal', {}, (0.2, 0.0)),
    (
      'mnist_personal',
      _LOCAL | dict(client_splits__validation_fraction=None),
      (0.0, 0.0),
    ),
    ('mnist_personal', dict(partition__held_out='whole'), (0.2, 0.2)),
  ],
)
def test_fractions_of_rows(base, settings, fractions):
  assert planned_configs.shipped(base, **settings).row_fractions == fractions


_BOTH = dict(
  client_splits__validation_fraction=0.5, client_splits__test_fraction=0.5
)


@pytest.mark.parametrize(
  ('base', 'settings', 'problems'),
  [
    (
      'demo',
      _BOTH,
      [
        f'`{_SPLITS}.validation_fraction` and `{_SPLITS}.test_fraction` must '
        'be below 1 together, found 0.5 and 0.5'
      ],
    ),
    (
      'demo',
      _LOCAL | dict(data__sampling='documents'),
      [
        "`config.data.sampling` must be 'blocks' where clients keep rows for "
        "validation or tests, found 'documents'"
      ],
    ),
    (
      'mnist_personal',
      dict(client_splits__test_fraction=0.1),
      [
        f'`{_SPLITS}.test_fraction` must be 0 with '
        "`config.partition.held_out` 'matching', whose clients are tested on, "
        'found 0.1'
      ],
    ),
    (
      'demo',
      _LOCAL | dict(client_splits__test_fraction=0.0),
      [
        f'`{_SPLITS}.test_fraction` must be above 0 with algorithm.name '
        "'local_only', found 0.0"
      ],
    ),
    (
      'demo',
      _FOMO | dict(client_splits__validation_fraction=0.0),
      [
        f'`{_SPLITS}.validation_fraction` must be above 0 with algorithm.name '
        "'fed_fomo', found 0.0"
      ],
    ),
    (
      'demo',
      dict(client_splits__shuffles_targets=True),
      [
        f'`{_SPLITS}.shuffles_targets` must be false where clients have no '
        f'test rows, found true; set `--{_SPLITS}.test_fraction`'
      ],
    ),
    (
      'demo',
      _LOCAL
      | dict(
        client_work__max_delta_norm=1.0,
        evaluation__barrier_every_num_rounds=2,
      ),
      [
        '`config.client_work.max_delta_norm` must be None with algorithm.name '
        "'local_only', found 1.0",
        '`config.evaluation.barrier_every_num_rounds` must be 0 with '
        "algorithm.name 'local_only', found 2",
      ],
    ),
    (
      'demo',
      _FOMO
      | dict(
        client_work__optimizer='adamw',
        client_work__keeps_optimizer_state=True,
        evaluation__barrier_every_num_rounds=2,
      ),
      [
        '`config.evaluation.barrier_every_num_rounds` must be 0 with '
        "algorithm.name 'fed_fomo', found 2",
        '`config.client_work.keeps_optimizer_state` must be False with '
        "algorithm.name 'fed_fomo', found True",
      ],
    ),
    (
      'demo',
      _FOMO | dict(algorithm__num_downloads=0, algorithm__epsilon=1.5),
      [
        '`config.algorithm.num_downloads` must be at least 1 and below 4096, '
        'found 0',
        '`config.algorithm.epsilon` must be finite and at least 0 and at most '
        '1, found 1.5',
      ],
    ),
  ],
)
def test_problems(base, settings, problems):
  assert _problems(base, **settings) == problems


def test_nobody_needs_to_be_held_out():
  settings = _FOMO | dict(client_splits__held_out_fraction=0.0)
  assert planned_configs.shipped('demo', **settings).evaluation.num_clients


def test_traffic():
  settings = dict(algorithm__num_downloads=3)
  config = planned_configs.shipped('mnist_personal', **settings)
  assert config.method.traffic(config) == (1, 3)
  config = planned_configs.shipped('mnist_personal', **_LOCAL)
  assert config.method.traffic(config) == (0, 0)


class TestDownloads:
  """Models that a client is sent, and the clients that there are."""

  @staticmethod
  def _split(num_clients):
    ids = [f'client-{n:04}'.encode() for n in range(num_clients)]
    return ClientSplit(participating=ids, held_out=[])

  def _require(self, num_clients, **settings):
    config = planned_configs.shipped('demo', **_FOMO | settings)
    client_data.require_downloads(config, self._split(num_clients))

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
      config = planned_configs.shipped('demo', algorithm__name=name)
      client_data.require_downloads(config, self._split(1))


def test_configs_of_methods_are_found():
  # Only fed_fomo reads what it adds.
  with pytest.raises(
    ConfigError, match='is not read by fed_avg, but by fed_fo'
  ):
    config_loading.load_config(
      'demo',
      ['--config.algorithm.name=fed_avg', '--config.algorithm.epsilon=1.0'],
    )

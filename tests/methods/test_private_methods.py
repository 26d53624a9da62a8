"""DP-SGD and the declarations of methods."""

import planned_configs

from tff_fedfish.run import columns

_ON = dict(algorithm__name='fed_avg', local_privacy__clip_norm=1.0)


def test_columns_of_epsilon():
  plain = planned_configs.shipped('demo', **_ON)
  noised = planned_configs.shipped(
    'demo', **_ON, local_privacy__noise_multiplier=1.0
  )
  added = {*columns.metric_names(noised)}
  added -= {*columns.metric_names(plain)}
  assert added == {'privacy/epsilon_mean', 'privacy/epsilon_max'}

"""DP-SGD and the declarations of methods."""

import dataclasses

import planned_configs
import pytest

from tff_fedfish.errors import UserError
from tff_fedfish.methods import fed_avg
from tff_fedfish.run import columns

_ON = dict(algorithm__name='fed_avg', local_privacy__clip_norm=1.0)


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
    fed_avg.METHOD, builder=f'{__name__}:build_without'
  )
  plain = planned_configs.shipped('demo', algorithm__name='fed_avg')
  method.require_builder(plain)
  with pytest.raises(UserError, match='local_privacy.*unexpected keyword'):
    method.require_builder(planned_configs.shipped('demo', **_ON))


def test_columns_of_epsilon():
  plain = planned_configs.shipped('demo', **_ON)
  noised = planned_configs.shipped(
    'demo', **_ON, local_privacy__noise_multiplier=1.0
  )
  added = {*columns.metric_names(noised)}
  added -= {*columns.metric_names(plain)}
  assert added == {'privacy/epsilon_mean', 'privacy/epsilon_max'}

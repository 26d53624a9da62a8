"""Configs that differ only where a resumed run may share what was built."""

import dataclasses

import planned_configs
import pytest

from tff_fedfish.methods import registry
from tff_fedfish.run import learning_setup


@pytest.fixture
def build():
  """A kept function that returns a new object for every config it is given."""
  return learning_setup.keep_last(lambda config: [config])


def test_a_resumed_run_shares_what_the_first_part_built(build):
  first = planned_configs.by_hand(training__num_rounds=2)
  more = planned_configs.by_hand(
    training__num_rounds=4, checkpoints__keep_last=3, data__directory='moved'
  )
  assert more != first
  assert build(more) is build(first)


@pytest.mark.parametrize(
  'changed',
  [
    dict(client_work__learning_rate=0.7),
    dict(client_work__num_local_epochs=7),
    dict(seeds__model_seed=7),
    dict(engine__xla=True),
  ],
)
def test_other_settings_are_built(build, changed):
  config = planned_configs.by_hand()
  built = build(config)
  assert build(planned_configs.by_hand(**changed)) is not built


@pytest.mark.parametrize(('max_kept', 'is_kept'), [(1, False), (2, True)])
def test_so_many_are_kept(build, monkeypatch, max_kept, is_kept):
  monkeypatch.setattr(learning_setup, 'MAX_KEPT', max_kept)
  one, two = (
    planned_configs.by_hand(seeds__model_seed=seed) for seed in (1, 2)
  )
  built = build(one)
  build(two)
  assert (build(one) is built) == is_kept


def test_a_method_may_be_given_what_a_resumed_run_may_change(
  build, monkeypatch
):
  configs = [planned_configs.by_hand(training__num_rounds=n) for n in (2, 4)]
  method = dataclasses.replace(
    configs[0].method,
    arguments=lambda config: {'num_rounds': config.training.num_rounds},
  )
  monkeypatch.setattr(registry, 'find', lambda name: method)
  first, more = map(build, configs)
  assert first is not more

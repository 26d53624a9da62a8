"""Configs share what is built if nothing that it is built from differs."""

import dataclasses

import planned_configs
import pytest

from tff_fedfish.methods import registry
from tff_fedfish.run import learning_setup


@pytest.fixture
def build():
  """A kept function that returns a new object for every config it is given."""
  return learning_setup.keep_last(learning_setup.inputs_of_process)(
    lambda config, **facts: [config]
  )


def test_a_resumed_run_shares_what_the_first_part_built(build):
  first = planned_configs.by_hand(training__num_rounds=2)
  more = planned_configs.by_hand(
    training__num_rounds=4, checkpoints__keep_last=3, data__directory='moved'
  )
  assert more != first
  assert build(more) is build(first)


def test_settings_of_no_graph_are_not_read(build):
  built = build(planned_configs.by_hand(), num_clients=5)
  other = planned_configs.by_hand(
    cohorts__cohort_size=2,
    client_work__max_sequences_per_client=3,
    evaluation__num_clients=1,
    seeds__cohort_seed=7,
    engine__num_partial_sums=2,
  )
  # FedFish does not depend on how many clients there are.
  assert build(other) is built


def test_a_method_that_takes_the_number_of_clients_is_built_for_it(build):
  scaffold = planned_configs.by_hand(algorithm__name='scaffold')
  assert build(scaffold, num_clients=5) is not build(scaffold, num_clients=6)


@pytest.mark.parametrize(
  'changed',
  [
    dict(client_work__learning_rate=0.7),
    dict(client_work__num_local_epochs=7),
    dict(server__learning_rate=0.7),
    dict(seeds__model_seed=7),
    dict(engine__xla=True),
    dict(model__num_layers=2),
    dict(data__sequence_length=5),
    dict(algorithm__name='fed_avg'),
    dict(algorithm__relative_floor=0.5),
    dict(algorithm__client_weighting='uniform'),
    dict(
      algorithm__fisher_estimator='last_epoch', local_privacy__clip_norm=0.5
    ),
  ],
)
def test_other_settings_are_built(build, changed):
  config = planned_configs.by_hand()
  built = build(config)
  assert build(planned_configs.by_hand(**changed)) is not built


def test_a_model_is_shared_by_methods_unless_one_makes_its_own(monkeypatch):
  build = learning_setup.keep_last(learning_setup.inputs_of_model)(
    lambda config: [config]
  )
  configs = [
    planned_configs.by_hand(algorithm__name=name)
    for name in ('fed_avg', 'fed_prox')
  ]
  first, other = map(build, configs)
  assert first is other
  own = dataclasses.replace(configs[0].method, model='own:model')
  monkeypatch.setattr(registry, 'find', lambda name: own)
  one, longer = (planned_configs.by_hand(seeds__cohort_seed=n) for n in (1, 2))
  assert build(one) is not first
  assert build(one) is not build(longer)


@pytest.mark.parametrize(('max_kept', 'is_kept'), [(1, False), (2, True)])
def test_so_many_are_kept(build, monkeypatch, max_kept, is_kept):
  monkeypatch.setattr(learning_setup, 'MAX_KEPT', max_kept)
  one, two = (
    planned_configs.by_hand(seeds__model_seed=seed) for seed in (1, 2)
  )
  built = build(one)
  build(two)
  assert (build(one) is built) == is_kept


def test_what_was_used_last_is_kept(build, monkeypatch):
  monkeypatch.setattr(learning_setup, 'MAX_KEPT', 2)
  one, two, three = (
    planned_configs.by_hand(seeds__model_seed=seed) for seed in (1, 2, 3)
  )
  built, other = build(one), build(two)
  build(one)
  build(three)
  assert build(one) is built
  assert build(two) is not other


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

"""Configs share what is built if nothing that a graph depends on differs."""

import types

import numpy as np
import planned_configs
import pytest

from tff_fedfish.errors import UserError
from tff_fedfish.methods import registry
from tff_fedfish.rounds.privacy import LocalPrivacy
from tff_fedfish.run import build
from tff_fedfish.runtime.in_process_context import set_in_process_context


@pytest.fixture
def kept():
  """A kept function that returns a new object for every config it is given."""
  return build.keep_built(lambda config, **facts: [config])


def test_a_resumed_run_and_its_evaluation_share_what_was_built(kept):
  first = kept(planned_configs.by_hand(), num_clients=5)
  other = planned_configs.by_hand(
    training__num_rounds=4,
    checkpoints__keep_last=3,
    data__directory='moved',
    cohorts__cohort_size=2,
    evaluation__num_clients=1,
    seeds__cohort_seed=7,
    engine__num_partial_sums=2,
  )
  # FedFish does not depend on how many clients there are.
  assert kept(other) is first


@pytest.mark.parametrize(
  'settings',
  [
    dict(algorithm__name='fed_prox'),
    dict(client_work__learning_rate=0.01),
    dict(client_work__local_batch_size=3),
    dict(server__learning_rate=0.5),
    dict(seeds__model_seed=7),
    dict(data__sequence_length=24),
    dict(engine__xla=True),
    dict(evaluation__batch_size=3),
    dict(local_privacy__clip_norm=0.5, algorithm__name='fed_avg'),
  ],
)
def test_graphs_that_differ_are_not_shared(kept, settings):
  first = kept(planned_configs.by_hand())
  assert kept(planned_configs.by_hand(**settings)) is not first


@pytest.mark.parametrize('name', registry.BUILT_IN)
def test_a_config_that_is_read_again_is_the_same(kept, name):
  example = registry.BUILT_IN[name].example
  first, again = (
    planned_configs.shipped(example, algorithm__name=name) for _ in range(2)
  )
  last = first.training.num_rounds
  assert kept(first.in_round(last)) is kept(again.in_round(last))
  if first.phases:
    assert kept(first.in_round(0)) is not kept(first.in_round(last))


def test_a_method_that_takes_the_number_of_clients_is_built_for_it(kept):
  scaffold = planned_configs.by_hand(algorithm__name='scaffold')
  assert kept(scaffold, num_clients=5) is not kept(scaffold, num_clients=6)


def test_nothing_is_kept_with_a_method_of_ones_own(kept):
  config = planned_configs.by_hand(algorithm__name='own_methods.drawn_start')
  assert kept(config) is not kept(config)


def _linear(**settings):
  """Returns the config of a model that takes no time to build."""
  return planned_configs.shipped(
    'mnist_by_writer', model__preset='linear', **settings
  )


def test_the_start_of_a_run_of_ones_own_method_has_no_history():
  set_in_process_context()
  starts = []
  for num_rounds in (2, 4):
    config = _linear(
      algorithm__name='own_methods.drawn_start',
      training__num_rounds=num_rounds,
    )
    process = build.build_learning_process(config)
    weights = process.get_model_weights(process.initialize())
    starts.append(weights.trainable[0])
  # Halves of the same numbers: no second draw, no division by 2.
  np.testing.assert_array_equal(starts[0], 2 * starts[1])


def test_the_one_used_longest_ago_is_forgotten(kept, monkeypatch):
  monkeypatch.setattr(build, 'MAX_KEPT', 2)
  one, two, three = (
    planned_configs.by_hand(seeds__model_seed=seed) for seed in (1, 2, 3)
  )
  first, second = kept(one), kept(two)
  kept(one)
  kept(three)
  assert kept(one) is first
  assert kept(two) is not second


def test_what_a_config_sets_reaches_the_method():
  work = dict(
    num_local_epochs=3,
    max_delta_norm=1.0,
    num_local_steps=None,
    micro_batch_size=None,
    keeps_optimizer_state=True,
  )
  config = _linear(
    algorithm__name='fed_avg',
    client_work__momentum=0.9,
    aggregation__bits=8,
    local_privacy__clip_norm=0.5,
    local_privacy__noise_multiplier=2.0,
    **{f'client_work__{name}': value for name, value in work.items()},
  )
  size = config.client_work.local_batch_size
  found = build._training_keywords(config)
  privacy = LocalPrivacy(0.5, 2.0, size, config.local_privacy.draws_batches)
  assert found == {**work, 'local_privacy': privacy, 'delta_bits': 8}
  work = dict(num_local_epochs=1, num_local_steps=4, micro_batch_size=2)
  config = planned_configs.shipped(
    'demo',
    client_work__max_sequences_per_client=None,
    **{f'client_work__{name}': value for name, value in work.items()},
  )
  found = build._training_keywords(config)
  assert found.items() >= {**work, 'delta_bits': 32}.items()
  assert 'local_privacy' not in found


def test_a_process_that_gives_no_models():
  config = planned_configs.by_hand()
  build.require_trained_models(
    config, types.SimpleNamespace(trained_models=None)
  )
  with pytest.raises(UserError, match='requires a process with `trained_mod'):
    build.require_trained_models(config, types.SimpleNamespace())

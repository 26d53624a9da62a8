"""Configs share what is built if nothing that it is built from differs."""

import copy
import dataclasses
import re
import typing

import numpy as np
import planned_configs
import pytest

from tff_fedfish.evaluation import client_evaluator
from tff_fedfish.fields import Section
from tff_fedfish.methods import method, registry
from tff_fedfish.run import learning_setup
from tff_fedfish.runtime.in_process_context import set_in_process_context

_BUILDS = {
  learning_setup.build_model: learning_setup.inputs_of_model,
  learning_setup.build_learning_process: learning_setup.inputs_of_process,
  client_evaluator.build_evaluator: client_evaluator.inputs_of_evaluator,
}
# Settings that a build reads and that may differ, of a corpus, method or phase.
_NOT_NEEDED = {
  # The sizes that it stands for are compared.
  'grouped_text': {'model.preset'},
  # The server chooses downloads outside the process.
  'fed_fomo': {
    *('algorithm.epsilon', 'algorithm.epsilon_decay'),
    'algorithm.num_downloads',
  },
  # Read with the number of features; the process of this phase sums features.
  'features': {'algorithm.max_gram_rows'},
}
_STEPS = dict(
  client_work__num_local_steps=3,
  client_work__num_local_epochs=1,
  client_work__max_sequences_per_client=None,
)
# Settings with which builds read others than with each method's example.
_VARIANTS = {
  'steps': _STEPS,
  'private': dict(algorithm__name='fed_avg', local_privacy__clip_norm=0.5),
  'adamw-yogi': dict(client_work__optimizer='adamw', server__optimizer='yogi'),
  'nesterov': dict(
    server__optimizer='sgd', server__momentum=0.5, server__nesterov=True
  ),
  'reddi': dict(server__bias_correction=False, client_work__momentum=0.5),
}


def _configs(name):
  """Returns the configs of a method or variant, of each phase."""
  if name in _VARIANTS:
    config = planned_configs.by_hand(**_VARIANTS[name])
  else:
    example = registry.BUILT_IN[name].example
    config = planned_configs.shipped(example, algorithm__name=name)
  return [config.in_round(p.first_round) for p in config.phases] or [config]


def _others(field, value):
  """Returns other values of a setting, not all of which may be allowed."""
  choices = typing.get_args(field.type)
  if isinstance(value, bool):
    choices = (not value,)
  elif isinstance(value, str) and not choices:
    choices = (value + 'x',)
  elif typing.get_origin(field.type) is not typing.Literal:
    choices = ((value or 0) + 1, 1, *[None] * (type(None) in choices))
  return [choice for choice in choices if choice != value]


def _with(config, setting, value):
  """Returns the config with a value that was not checked."""
  section, _, name = setting.partition('.')
  part, changed = copy.copy(getattr(config, section)), copy.copy(config)
  object.__setattr__(part, name, value)
  object.__setattr__(changed, section, part)
  return changed


def _is_compared(inputs, config, setting):
  """Says whether some other value of a setting gives other inputs."""
  section, _, name = setting.partition('.')
  part = getattr(config, section)
  for value in _others(part.__dataclass_fields__[name], getattr(part, name)):
    try:
      found = repr(inputs(_with(config, setting, value)))
    except Exception as error:
      # It reads the setting, and asks for another value.
      found = error
    if found != repr(inputs(config)):
      return True
  return False


@pytest.mark.parametrize('name', [*registry.BUILT_IN, *_VARIANTS])
def test_settings_that_a_build_reads_are_compared(monkeypatch, name):
  reads = set()

  def record(part, name):
    if name in type(part).__dataclass_fields__:
      reads.add(f'{type(part).section}.{name}')
    return object.__getattribute__(part, name)

  # A builder is given no config, and would trace for seconds.
  monkeypatch.setattr(method, 'load', lambda path: lambda model, **rest: None)
  build_model = learning_setup.build_model.__wrapped__
  monkeypatch.setattr(learning_setup, 'build_model', build_model)
  for config in _configs(name):
    kinds = {config.data.corpus, config.algorithm.name}
    kinds.add(config.phase and config.phase.name)
    may_differ = set().union(*(_NOT_NEEDED.get(kind, ()) for kind in kinds))
    for build, inputs in _BUILDS.items():
      reads.clear()
      with monkeypatch.context() as patch:
        patch.setattr(Section, '__getattribute__', record)
        build.__wrapped__(config)
      assert {'data.corpus', 'seeds.model_seed'} < reads
      missing = {s for s in reads if not _is_compared(inputs, config, s)}
      assert missing == reads & may_differ, build
      # Not the address of an object, nor a part of an array.
      assert not re.search(r' at 0x|\.\.\.', repr(inputs(config)))


@pytest.fixture
def build():
  """A kept function that returns a new object for every config it is given."""
  return learning_setup.keep_built(learning_setup.inputs_of_process)(
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


def test_an_evaluator_reads_the_optimizer_of_the_clients_work_only():
  build = learning_setup.keep_built(client_evaluator.inputs_of_evaluator)(
    lambda config: [config]
  )
  first, other, slower = (
    planned_configs.by_hand(**settings)
    for settings in (
      {},
      dict(client_work__num_local_epochs=7, client_work__max_delta_norm=0.5),
      dict(client_work__learning_rate=0.01),
    )
  )
  assert build(first) is build(other)
  assert build(first) is not build(slower)


def test_a_method_that_takes_the_number_of_clients_is_built_for_it(build):
  scaffold = planned_configs.by_hand(algorithm__name='scaffold')
  assert build(scaffold, num_clients=5) is not build(scaffold, num_clients=6)


@pytest.mark.parametrize('part', ['builder', 'model'])
def test_what_other_functions_of_a_method_build(build, monkeypatch, part):
  config, built = planned_configs.by_hand(algorithm__name='fed_avg'), []
  for path in ('module:one', 'module:other'):
    found = dataclasses.replace(registry.BUILT_IN['fed_avg'], **{part: path})
    monkeypatch.setattr(registry, 'find', lambda name, found=found: found)
    built.append(build(config))
  assert built[0] is not built[1]


def test_a_model_is_shared_by_methods():
  build = learning_setup.keep_built(learning_setup.inputs_of_model)(
    lambda config: [config]
  )
  one, other = (
    build(planned_configs.by_hand(algorithm__name=name))
    for name in ('fed_avg', 'fed_prox')
  )
  assert one is other


def test_nothing_is_kept_with_a_method_of_ones_own(build):
  config = planned_configs.by_hand(algorithm__name='own_methods.drawn_start')
  assert build(config) is not build(config)


def test_the_start_of_a_run_of_ones_own_method_has_no_history():
  set_in_process_context()
  starts = []
  for num_rounds in (2, 4):
    config = planned_configs.by_hand(
      algorithm__name='own_methods.drawn_start',
      training__num_rounds=num_rounds,
    )
    process = learning_setup.build_learning_process(config)
    weights = process.get_model_weights(process.initialize())
    starts.append(weights.trainable[0])
  # Halves of the same numbers: no second draw, no division by 2.
  np.testing.assert_array_equal(starts[0], 2 * starts[1])


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

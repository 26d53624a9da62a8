"""Learning rates of rounds, in runs that stop and go on."""

import linear_models
import numpy as np
import planned_configs
import pytest
import small_runs

from tff_fedfish import build_fed_avg
from tff_fedfish.evaluation import plan
from tff_fedfish.evaluation.options import EvaluationOptions
from tff_fedfish.run import (
  build,
  checkpoints,
  columns,
  model_state,
  run_directory,
  tables,
)
from tff_fedfish.runtime.in_process_context import set_in_process_context

# Rates by round: clients 0.01, 0.02, then half way from 0.02 to 0.002, 0.002;
# the server 0.5, 0.25, 0.125, 0.125 of 1e-3.
_SCHEDULES = {
  'algorithm__name': 'fed_avg',
  'evaluation__num_clients': 0,
  'client_work__optimizer': 'adamw',
  'client_work__learning_rate': 0.02,
  'client_work__weight_decay': 0.1,
  'client_work__max_gradient_norm': 1.0,
  'client_work__learning_rate_schedule': 'cosine',
  'client_work__warmup_rounds': 2,
  'client_work__schedule_rounds': 2,
  'client_work__final_fraction': 0.1,
  'server__learning_rate': 1e-3,
  'server__learning_rate_schedule': 'exponential',
  'server__schedule_rounds': 3,
  'server__final_fraction': 0.125,
}
_CLIENT_RATES = (0.01, 0.02, 0.011, 0.002)
_SERVER_RATES = (5e-4, 2.5e-4, 1.25e-4, 1.25e-4)
_CLIENT_COLUMN = 'train/client_learning_rate'
_SERVER_COLUMN = 'train/server_learning_rate'


@pytest.fixture(name='scheduled', scope='module')
def _scheduled(small_inputs, tmp_path_factory):
  """An uninterrupted run of four rounds. Tests must not change it."""
  workdir = tmp_path_factory.mktemp('scheduled') / 'run'
  assert small_runs.train(small_inputs, workdir, **_SCHEDULES) == 0
  return workdir


def _state(run, round_num):
  path = run / 'checkpoints' / f'round_{round_num:08d}'
  return checkpoints.load_checkpoint(path).tensors


@pytest.mark.slow
def test_columns_say_the_rates(scheduled):
  rows = tables.read_metrics(scheduled / 'metrics.csv')
  assert rows[0][_CLIENT_COLUMN] is None
  found = [row[_CLIENT_COLUMN] for row in rows[1:]]
  assert found == pytest.approx(_CLIENT_RATES)
  found = [row[_SERVER_COLUMN] for row in rows[1:]]
  assert found == pytest.approx(_SERVER_RATES)


@pytest.mark.slow
def test_state_holds_the_rates_of_its_round(scheduled):
  for round_num in range(1, 5):
    state = _state(scheduled, round_num)
    config = run_directory.read_config(scheduled)
    rates = columns.rates_by_column(config, round_num)
    assert state['client_work/learning_rate'] == np.float32(
      rates[_CLIENT_COLUMN]
    )
    assert state['finalizer/learning_rate'] == pytest.approx(
      _SERVER_RATES[round_num - 1]
    )
    assert state['finalizer/step'] == round_num


@pytest.mark.slow
def test_more_rounds_on_resume_equal_an_uninterrupted_run(
  scheduled, small_inputs, tmp_path
):
  run = tmp_path / 'run'
  for num_rounds in (2, 4):
    settings = _SCHEDULES | {'training__num_rounds': num_rounds}
    assert small_runs.train(small_inputs, run, **settings) == 0
  for round_num in range(5):
    found, expected = (_state(path, round_num) for path in (run, scheduled))
    assert list(found) == list(expected)
    for name, tensor in expected.items():
      np.testing.assert_array_equal(found[name], tensor, name)
  metrics, expected = (p / 'metrics.csv' for p in (run, scheduled))
  assert metrics.read_bytes() == expected.read_bytes()


@pytest.mark.parametrize('of_checkpoint', [False, True])
def test_only_rates_that_vary_are_set(of_checkpoint):
  set_in_process_context()
  process = build_fed_avg(
    linear_models.linear_model(2),
    client_optimizer=linear_models.sgd(7.0),
    server_optimizer=linear_models.adam(8.0),
  )
  state = process.initialize()
  if of_checkpoint:
    state_type = process.initialize.type_signature.result
    tensors = model_state.to_tensors(state, state_type)
    state = model_state.from_tensors(tensors, state_type, 'round 1')
  config = planned_configs.by_hand(
    client_work__learning_rate=0.2, client_work__warmup_rounds=4
  )
  after = build.with_rates(process, state, config, 1)
  hparams = process.get_hparams(after)
  # 0.2 / 4, whatever the state held.
  assert float(hparams['client_work']['learning_rate']) == pytest.approx(0.05)
  assert float(hparams['finalizer']['learning_rate']) == 8.0
  before = process.get_hparams(state)
  assert float(before['client_work']['learning_rate']) == 7.0
  weights = (process.get_model_weights(s).trainable for s in (after, state))
  for one, other in zip(*weights, strict=True):
    np.testing.assert_array_equal(one, other)


def test_constant_rates_leave_the_state_alone():
  config, state = planned_configs.by_hand(), object()
  assert build.with_rates(None, state, config, 3) is state
  assert columns.rates_by_column(config, 3) == {}
  assert not [name for name in columns.metric_names(config) if 'rate' in name]


@pytest.mark.parametrize(('given', 'rate'), [(None, 0.02), (0.5, 0.5)])
def test_personalization_takes_the_base_rate(
  scheduled, small_inputs, given, rate
):
  corpus, _ = small_inputs
  # The rate of round 4 was 0.002.
  checkpoint = scheduled / 'checkpoints' / 'round_00000004'
  options = EvaluationOptions(learning_rate=given)
  planned = plan.plan_evaluation(checkpoint, corpus, None, options)
  assert planned.learning_rate == rate

"""Steps, traffic and time of a round by hand, and how a plan shows them.

`planned_configs.by_hand` has 180 weights (W = 720 bytes), 3 clients, 7 rounds.
"""

import dataclasses
import itertools
import pathlib
import subprocess
import sys

import planned_configs
import pytest

from tff_fedfish.errors import UserError
from tff_fedfish.methods.parts import Traffic
from tff_fedfish.planning import client_steps, memory, step_time
from tff_fedfish.planning import plan as plan_lib
from tff_fedfish.planning.communication import Communication, of_cohorts

_FED_AVG = {'algorithm__name': 'fed_avg'}


def _plan(**settings):
  config = planned_configs.by_hand(**settings)
  return plan_lib.plan_round(config, timing=False)


@pytest.mark.parametrize(
  ('settings', 'expected'),
  [
    # 5 sequences in batches of 2: 3 a pass, 2 passes and one after training.
    ({}, (5, 6, 3)),
    (_FED_AVG, (5, 6, 2)),
    ({'algorithm__fisher_estimator': 'last_epoch'}, (5, 6, 2)),
    # Full batches only: 4 of the 5 sequences.
    ({'data__client_batches': 'repeat_full'}, (4, 4, 3)),
    # A batch larger than the cap holds what there is.
    ({'client_work__local_batch_size': 9}, (5, 2, 3)),
  ],
)
def test_steps_by_hand(settings, expected):
  steps = client_steps.client_steps(planned_configs.by_hand(**settings))
  assert steps == client_steps.ClientSteps(*expected)


def test_steps_without_passes():
  config = planned_configs.by_hand(
    client_work__num_local_steps=7,
    client_work__num_local_epochs=1,
    client_work__max_sequences_per_client=None,
  )
  # 7 batches of 2, and the Fisher pass.
  steps = client_steps.client_steps(config)
  assert steps == client_steps.ClientSteps(14, 7, 2)
  # 3 clients * 14 sequences * 4 tokens.
  assert client_steps.max_tokens_per_round(config) == 168


@pytest.mark.parametrize(
  'name', ['cohorts__cohort_size', 'client_work__max_sequences_per_client']
)
def test_tokens_that_only_the_corpus_says(name):
  config = planned_configs.by_hand(**{name: None})
  assert client_steps.max_tokens_per_round(config) is None


@pytest.mark.parametrize(
  ('settings', 'models'),
  [
    ({'fisher_power': 0.5}, 2),
    # w delta, too.
    ({'plain_mean_fraction': 0.5}, 3),
    ({'fisher_power': 0.0}, 1),
    ({'plain_mean_fraction': 1.0}, 1),
    # The embedding, 15 of the 180 weights, once; the other 165 twice.
    ({'plain_mean_tensors': 'logits'}, (15 + 165 * 2) / 180),
    (
      {'plain_mean_tensors': 'logits', 'plain_mean_fraction': 0.5},
      (15 + 165 * 3) / 180,
    ),
    ({'plain_mean_tensors': 'logits', 'fisher_power': 0.0}, 1),
  ],
)
def test_sums_of_a_mixed_mean(settings, models):
  settings = {f'algorithm__{name}': value for name, value in settings.items()}
  config = planned_configs.by_hand(**settings)
  assert config.method.traffic(config).uplink == pytest.approx(models)
  assert _plan(**settings).round_sent.uplink_bytes == round(3 * models * 720)
  columns = [column.name for column in config.method.columns(config)]
  assert bool(columns) == (models != 1)
  assert memory.models_summed(config) == pytest.approx(models)


@pytest.mark.parametrize('granularity', ['input', 'output', 'tensor'])
def test_coarse_fisher_weights_cost_one_model(granularity):
  config = planned_configs.shipped(
    'stack_overflow_350m', algorithm__fisher_granularity=granularity
  )
  plan = plan_lib.plan_round(config, timing=False)
  one_model = 4 * plan.cohort_size * plan.num_weights
  assert one_model < plan.round_sent.uplink_bytes <= 1.01 * one_model


def test_communication_by_hand():
  # 3 rounds: 6 models up, 3 down; 5 clients x 7 weights x 4 bytes = 140.
  sent = of_cohorts(Traffic(6, 3), cohort_size=5, num_weights=7)
  assert sent == Communication(6, 9, 840, 1260)
  assert sent.downlink_bytes == 420
  # 3 x 0.25 up, 3 x 1 down; 3.75 x 2 x 10 x 4 bytes = 300.
  sent = of_cohorts(Traffic(0.75, 3), cohort_size=2, num_weights=10)
  assert sent == Communication(0.75, 3.75, 60, 300)
  # Floats only where they are not whole.
  sent = of_cohorts(Traffic(4 * 0.25, 4), cohort_size=2, num_weights=10)
  assert (sent.uplink_units, type(sent.uplink_units)) == (1, int)


@pytest.mark.parametrize(
  ('settings', 'round_seconds'),
  [
    # A client: 6 steps of 2 s, and a pass over 5 rows in batches of 2.
    ({}, 3 * 8.5 * 2.0),
    (_FED_AVG, 3 * 6 * 2.0),
    ({'algorithm__fisher_estimator': 'last_epoch'}, 3 * 6 * 2.0),
    # Workers share one machine, or are machines: 3 clients, 2 at a time.
    ({'engine__kind': 'ray', 'engine__num_workers': 2}, 51.0),
    (
      {
        'engine__kind': 'ray',
        'engine__num_workers': 2,
        'engine__ray_address': 'auto',
      },
      34.0,
    ),
    # 8 parts of 24 clients in two turns of 7 workers: 2 x 3 clients.
    (
      {
        'engine__kind': 'ray',
        'engine__num_workers': 7,
        'engine__num_partial_sums': 8,
        'engine__ray_address': 'auto',
        'cohorts__cohort_size': 24,
      },
      6 * 8.5 * 2.0,
    ),
  ],
)
def test_time_by_hand(settings, round_seconds):
  time = step_time.round_time(planned_configs.by_hand(**settings), 2.0)
  assert time == step_time.RoundTime(2.0, round_seconds)


@pytest.mark.parametrize(
  ('settings', 'timed', 'seconds'),
  [
    # The median of 3 has no noise: 7 + 2 * 10 + 2.
    ({'model__num_layers': 10}, [(1, 2), (4, 2)], 29.0),
    (_FED_AVG, [(1, 2)], 7 + 2 + 2),
    # Rows of DP-SGD one by one: two of 7 + 2 + 1.
    (_FED_AVG | {'local_privacy__clip_norm': 1.0}, [(1, 1)], 20),
  ],
)
def test_steps_are_extrapolated(settings, timed, seconds, monkeypatch):
  made = []

  def step_timer(config, num_layers, batch_size):
    made.append((num_layers, batch_size))
    noise = itertools.cycle([2.0, -3.0, 0.0])
    return lambda: 7 + 2 * num_layers + batch_size + next(noise)

  monkeypatch.setattr(step_time, '_step_timer', step_timer)
  config = planned_configs.by_hand(**settings)
  assert step_time.step_seconds(config, num_repeats=3) == pytest.approx(seconds)
  assert made == timed


@pytest.mark.slow
def test_real_steps(monkeypatch):
  monkeypatch.setattr(step_time, '_NUM_STEPS', 60)
  config = planned_configs.by_hand(
    algorithm__name='own_methods.noisy_mean',
    client_work__local_batch_size=4,
    model__width=4,
  )
  assert 0 < step_time.step_seconds(config, num_repeats=2) < 1


def test_merged_clients_all_take_part(tmp_path):
  plan = _plan(
    # That of the demo may be there.
    data__directory=str(tmp_path / 'absent'),
    cohorts__cohort_size=None,
    partition__scheme='merge',
    partition__num_clients=4,
  )
  assert plan.cohort_size == 4
  # 4 clients * 5 sequences * 4 tokens * 2 epochs.
  assert plan.tokens_per_round == 160


def test_a_cohort_of_unknown_size_is_planned_per_client(capsys):
  plan, one = _plan(cohorts__cohort_size=None), _plan(cohorts__cohort_size=1)
  assert plan == dataclasses.replace(one, cohort_size=None)
  plan_lib.print_plan(plan)
  assert 'A round per client, at most; the corpus' in capsys.readouterr().out


def test_sequences_without_a_bound_are_refused():
  with pytest.raises(UserError, match='^A plan requires a bound on the seq'):
    _plan(client_work__max_sequences_per_client=None)


def test_what_is_printed(capsys):
  plan = _plan(
    engine__kind='ray', engine__num_workers=2, data__directory='absent'
  )
  # Weights and Adam's two moments.
  assert plan.checkpoint_bytes == 3 * 720
  time = step_time.RoundTime(2.0, 51.0)
  plan_lib.print_plan(dataclasses.replace(plan, time=time), tflops=1e-6)
  lines = [' '.join(x.split()) for x in capsys.readouterr().out.splitlines()]
  assert lines[:4] == [
    'A round of 3 clients, at most:',
    'Weights 180 in 16 tensors',
    'Tokens 120',
    'Steps of a client 6; 3 passes over 5 sequences',
  ]
  # 108,720 + 54,360 + 11,520: see test_flops.
  assert lines[4] == (
    'Operations 175 kFLOP: 62.3% local training, 31.1% after training, 6.6% '
    'updates'
  )
  # Seven times that.
  assert lines[5] == 'Operations of the run 1.22 MFLOP in 7 rounds'
  assert lines[6:10] == [
    # 3 clients * 2 models * 720; 7 rounds.
    'Uplink 4.22 KiB; 29.5 KiB in 7 rounds',
    'Downlink 2.11 KiB; 14.8 KiB in 7 rounds',
    'Checkpoint 2.11 KiB',
    'Tokenized corpus the corpus is not here; 2 bytes per token',
  ]
  assert lines[10].startswith('Peak memory of the driver 892 MiB, most of it ')
  assert lines[11].startswith('Peak memory of each worker 892 MiB, most of it ')
  # In the merge, and of a client: see test_memory.
  assert [each.gpu_bytes for each in plan.memory] == [8640, 8288]
  assert lines[12:] == [
    # Three processes of 935 MB; 16,928 bytes.
    'Peak memory of the machine 2.61 GiB, the driver and 2 workers (with GPUs '
    'the driver and a worker share the first: 16.5 KiB)',
    'Time of a local step 2 s',
    'Time of a round 51 s; 5 min 57 s in 7 rounds (2 tokens/s)',
    # 174,600 operations, a million a second.
    'Time at 1e-06 TFLOP/s 175 ms; 1.22 s in 7 rounds',
  ]


def test_every_preset_is_planned_without_tensorflow():
  program = (
    'import sys\n'
    "sys.path.insert(0, 'tests')\n"
    'import planned_configs\n'
    'from models.transformer_config import PRESETS\n'
    'from tff_fedfish.planning.plan import plan_round, print_plan\n'
    'for preset in PRESETS:\n'
    "  config = planned_configs.shipped('small_c4', model__preset=preset)\n"
    '  print_plan(plan_round(config, timing=False))\n'
    "assert 'tensorflow' not in sys.modules\n"
  )
  out = subprocess.run(
    [sys.executable, '-c', program],
    cwd=pathlib.Path(__file__).parents[2],
    check=True,
    capture_output=True,
    text=True,
    timeout=300,
  ).stdout
  assert ' 335,210,496 in 16' in out and ' 1,526,966,400 in 16' in out
  assert out.count('Peak memory of ') == 4

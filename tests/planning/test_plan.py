"""A plan adds up its parts; its tables show them."""

import dataclasses
import json
import subprocess
import sys

import planned_configs
import pytest

from tff_fedfish.errors import UserError
from tff_fedfish.planning import plan as plan_lib
from tff_fedfish.planning import plan_tables, step_time


@pytest.mark.parametrize(
  ('settings', 'round_seconds'),
  [
    # A client: 6 steps of 2 s, and a pass over 5 rows in batches of 2.
    ({}, 3 * 8.5 * 2.0),
    ({'algorithm__name': 'fed_avg'}, 3 * 6 * 2.0),
    ({'algorithm__fisher_estimator': 'last_epoch'}, 3 * 6 * 2.0),
    ({'algorithm__fisher_estimator': 'example_sq'}, 3 * 8.5 * 2.0),
  ],
)
def test_time_by_hand(settings, round_seconds):
  time = step_time.round_time(planned_configs.by_hand(**settings), 2.0)
  assert time.local_step_seconds == 2.0
  assert time.round_seconds == round_seconds
  assert time.run_seconds == 7 * round_seconds
  assert time.measured_layers == (1,)


@pytest.mark.parametrize(
  ('engine', 'round_seconds'),
  [
    # 3 parts on 2 workers: 2 turns of a client of 17 s each, at half the
    # machine's speed.
    ({'num_workers': 2}, 68.0),
    # As many machines.
    ({'num_workers': 2, 'ray_address': 'auto'}, 34.0),
    # One worker, or one for each client of the one machine.
    ({'num_workers': 1}, 51.0),
    ({'num_workers': 3}, 51.0),
  ],
)
def test_workers_by_hand(engine, round_seconds):
  settings = {f'engine__{name}': value for name, value in engine.items()}
  config = planned_configs.by_hand(engine__kind='ray', **settings)
  assert step_time.round_time(config, 2.0).round_seconds == round_seconds


def _plan(**settings):
  config = planned_configs.by_hand(**settings)
  plan = plan_lib.plan_round(config, timing=False)
  return dataclasses.replace(plan, time=step_time.round_time(config, 2.0))


def test_plan_is_json_and_complete():
  plan = _plan()
  values = json.loads(json.dumps(plan.to_json_dict()))
  assert values['num_weights'] == 180
  assert values['num_tensors'] == 16
  assert values['tokens_per_round'] == 120
  assert values['flops']['server'] == 13 * 180
  assert values['memory'][0]['peak_bytes'] == plan.memory[0].peak_bytes
  assert values['traffic']['round_uplink_bytes'] == 4320
  assert values['time']['round_seconds'] == 51.0


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
  plan = _plan(cohorts__cohort_size=None)
  one = _plan(cohorts__cohort_size=1)
  assert plan.cohort_size is None
  assert plan.flops == one.flops
  assert plan.time == one.time
  assert plan.traffic == one.traffic
  plan_tables.print_plan(plan)
  assert 'Round per client, at most; the corpus' in capsys.readouterr().out


def test_sequences_without_a_bound_are_refused():
  with pytest.raises(
    UserError,
    match='^A plan requires a bound on the sequences of a client, but `config.'
    'client_work.max_sequences_per_client` and num_local_steps are both None. '
    'Give one of them.$',
  ):
    _plan(client_work__max_sequences_per_client=None)


def test_tables_show_exact_numbers_beside_units(capsys):
  plan_tables.print_plan(_plan(engine__kind='ray'))
  out = capsys.readouterr().out
  for words in (
    'Round of 3 clients, at most',
    'Peak memory of the driver: ',
    'Peak memory of each worker: ',
    ' bytes), most of it process 892 MiB, activations ',
    '4.22 KiB',
    '4,320 bytes',
    'from workers, a round (3 partial sums)',
    '6 N D, for comparison',
    'timed with 1 layers, ',
    '51 s',
    '5 min 57 s',
    '2 tokens/s',
  ):
    assert words in out, words


def test_every_preset_is_planned_without_tensorflow():
  program = (
    'import sys\n'
    "sys.path.insert(0, 'tests')\n"
    'import planned_configs\n'
    'from models.transformer_config import PRESETS\n'
    'from tff_fedfish.planning import plan, plan_tables\n'
    'for preset in PRESETS:\n'
    "  config = planned_configs.shipped('small_c4', model__preset=preset)\n"
    '  found = plan.plan_round(config, timing=False)\n'
    '  plan_tables.print_plan(found)\n'
    '  print(preset, found.num_weights)\n'
    "assert 'tensorflow' not in sys.modules\n"
  )
  done = subprocess.run(
    [sys.executable, '-c', program],
    check=True,
    capture_output=True,
    text=True,
    timeout=300,
  )
  lines = done.stdout.splitlines()
  assert {'350m 335210496', '1.5b 1526966400'} <= set(lines)
  assert sum(line.startswith('Peak memory of ') for line in lines) == 4

"""A cap on clients' rows is said at the start, at the end and on the page."""

import planned_configs
import small_runs

from tff_fedfish.planning import client_steps
from tff_fedfish.reporting import findings, loading, notes
from tff_fedfish.run import tables


def test_the_fraction_of_text_that_a_run_reads(small_inputs, tmp_path, capsys):
  run = tmp_path / 'run'
  settings = dict(
    client_work__max_sequences_per_client=1,
    cohorts__cohort_size=8,
    training__num_rounds=1,
    evaluation__num_clients=0,
  )
  assert small_runs.train(small_inputs, run, **settings) == 0
  err = capsys.readouterr().err
  row = tables.read_metrics(run / 'metrics.csv')[1]
  # Two local epochs on one sequence of each of 8 clients.
  assert row['train/num_sequences'] == 2 * 8
  fraction = 8 / (8 + row['train/num_dropped_sequences'])
  clause = (
    f"clients' text read per round: {100 * fraction:.2g} % "
    '(`client_work.max_sequences_per_client` is 1)'
  )
  # All clients of the only round are in the sample.
  assert f'fedfish: note: estimate of {clause}.\n' in err
  assert f'fedfish: note: {clause}.\n' in err
  found = notes.notes(findings.read_findings(loading.load_runs([run])))
  assert any(f': {clause}.' in note for note in found), found


def test_less_than_a_percent_is_not_said():
  config = planned_configs.by_hand()
  assert client_steps.cap_line(config, 991, 9) == ''
  assert client_steps.cap_line(config, 989, 11).startswith(
    "clients' text read per round: 99 %"
  )

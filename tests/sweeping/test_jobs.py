"""One run with its evaluations: what is left of it, and how far it is."""

import pathlib

import planned_configs
import pytest

from tff_fedfish import files
from tff_fedfish.config import load as config_loading
from tff_fedfish.sweeping.jobs import Job


def _job(directory: pathlib.Path, **changes) -> Job:
  run = directory / 'run'
  values = dict(
    name='x',
    run=run,
    num_rounds=3,
    train=['train'],
    evaluations={
      run / 'evaluations' / name: ['evaluate', name] for name in ('a', 'b')
    },
    log=directory / 'logs' / 'x.log',
  )
  return Job(**values | changes)


def _write_metrics(job, text):
  job.run.mkdir(exist_ok=True)
  (job.run / 'metrics.csv').write_text(text)


def _finish(job):
  (job.run / 'checkpoints' / f'round_{job.num_rounds:08d}').mkdir(parents=True)
  for output in job.evaluations:
    output.mkdir(parents=True)


def test_what_is_left(tmp_path):
  job = _job(tmp_path)
  assert job.pending_commands() == [
    ['train'],
    ['evaluate', 'a'],
    ['evaluate', 'b'],
  ]
  (job.run / 'evaluations' / 'a').mkdir(parents=True)
  assert job.pending_commands() == [['train'], ['evaluate', 'b']]


def test_done_is_trained_and_evaluated(tmp_path):
  job = _job(tmp_path)
  assert not job.is_done()
  _finish(job)
  assert job.is_done()
  (job.run / 'evaluations' / 'b').rmdir()
  assert not job.is_done()
  (job.run / 'evaluations' / 'b').mkdir()
  (job.run / 'checkpoints' / 'round_00000003').rename(
    job.run / 'checkpoints' / 'round_00000002'
  )
  assert not job.is_done()


def test_a_run_of_another_config_is_not_done(tmp_path):
  config = planned_configs.by_hand()
  job = _job(tmp_path, config=config)
  _finish(job)
  # No config.json at all.
  assert not job.is_done()
  path = job.run / 'config.json'
  files.write_json(path, config_loading.to_json_dict(config))
  assert job.is_done()
  other = planned_configs.by_hand(client_work__learning_rate=0.7)
  files.write_json(path, config_loading.to_json_dict(other))
  assert not job.is_done()


def test_rounds_and_loss_of_a_run(tmp_path):
  job = _job(tmp_path)
  assert job.rounds_and_loss() == (0, None)
  header = 'round,train/loss,held_out/loss\n'
  _write_metrics(job, header + '0,,9.5\n')
  assert job.rounds_and_loss() == (0, None)
  _write_metrics(job, header + '0,,9.5\n1,7.25,\n2,6.5,8.0\n3,5')
  # The last line is still being written.
  assert job.rounds_and_loss() == (2, 6.5)
  _write_metrics(job, header + '0,,9.5\n1,,\n')
  assert job.rounds_and_loss() == (1, None)


@pytest.mark.parametrize(
  ('text', 'line'),
  [('one\ntwo\n\n', 'two'), ('', ''), (None, '')],
)
def test_failure_has_the_last_line(tmp_path, text, line):
  job = _job(tmp_path)
  if text is not None:
    job.log.parent.mkdir()
    job.log.write_text(text)
  assert job.failure(2) == (
    f'fedfish: error: the run x ended with exit code 2: {line} (all of its '
    f'output: {job.log})'
  )

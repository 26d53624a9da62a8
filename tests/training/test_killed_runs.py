"""Runs that are killed again and again end as if nobody had touched them.

SIGKILL leaves a process no moment to tidy up. Every run here is the real
command in its own process, with rounds of some 50 ms, so that kills land in
rounds, between the files of the metrics, and in checkpoints.
"""

import collections
import concurrent.futures
import random

import pytest
import small_runs
from run_killer import Killer, Moment

from tff_fedfish.run import checkpoints, tables

_NUM_ROUNDS = 12
# FedAvg without scores, as its graphs are built fastest.
_SETTINGS = {
  'algorithm__name': 'fed_avg',
  'client_work__num_local_epochs': 1,
  'evaluation__num_clients': 0,
  'training__num_rounds': _NUM_ROUNDS,
  'checkpoints__every_num_rounds': 2,
  'checkpoints__keep_last': 2,
}


def _assert_no_half_checkpoint(workdir):
  for round_num in checkpoints.list_rounds(workdir / 'checkpoints'):
    name = f'checkpoints/round_{round_num:08d}'
    assert checkpoints.load_checkpoint(workdir / name).round_num == round_num


def _assert_same_end(workdir, undisturbed):
  name = 'metrics.csv'
  assert len(tables.read_metrics(workdir / name)) == _NUM_ROUNDS + 1
  assert (workdir / name).read_bytes() == (undisturbed / name).read_bytes()
  found, expected = (
    checkpoints.load_checkpoint(checkpoints.resolve_checkpoint(run))
    for run in (workdir, undisturbed)
  )
  assert found.round_num == expected.round_num == _NUM_ROUNDS
  assert found.contents == expected.contents
  assert list(found.tensors) == list(expected.tensors)
  for name, tensor in expected.tensors.items():
    assert found.tensors[name].dtype == tensor.dtype, name
    assert found.tensors[name].shape == tensor.shape, name
    assert found.tensors[name].tobytes() == tensor.tobytes(), name


@pytest.fixture(scope='module')
def undisturbed(small_inputs, tmp_path_factory):
  """The run that nobody kills."""
  workdir = tmp_path_factory.mktemp('killed_runs') / 'undisturbed'
  assert small_runs.train(small_inputs, workdir, **_SETTINGS) == 0
  return workdir


@pytest.mark.slow
def test_run_killed_twice(small_inputs, undisturbed, tmp_path):
  workdir = tmp_path / 'run'
  killer = Killer(small_inputs, workdir, _SETTINGS)
  for moment in (Moment(0, 'metrics', 0), Moment(2, 'checkpoint', 0)):
    assert killer.start_and_kill(moment) in ('round', 'metrics', 'checkpoint')
    _assert_no_half_checkpoint(workdir)
  assert small_runs.train(small_inputs, workdir, **_SETTINGS) == 0
  _assert_same_end(workdir, undisturbed)


def _kill_many_times(inputs, undisturbed, directory, moments):
  """Kills runs at these moments, a new run whenever one has ended.

  Returns:
    How many processes were killed in which phase, and the runs that ended.
  """
  num_killed, num_runs = collections.Counter(), 1
  moments = list(moments)
  while True:
    workdir = directory / f'run{num_runs}'
    killer = Killer(inputs, workdir, _SETTINGS)
    phase = 'start'
    while phase is not None and moments:
      phase = killer.start_and_kill(moments[0])
      _assert_no_half_checkpoint(workdir)
      if phase is not None:
        num_killed[phase] += 1
        print(f'{workdir}: {moments.pop(0)} hit {phase!r}', flush=True)
    if not moments:
      killer.run_to_end()
    _assert_same_end(workdir, undisturbed)
    if not moments:
      return num_killed, num_runs
    num_runs += 1


@pytest.mark.slow
def test_runs_killed_thirty_times(small_inputs, undisturbed, tmp_path):
  generator = random.Random(20)
  moments = []
  for phase, number in {
    'start': 4,
    'round': 12,
    'metrics': 7,
    'checkpoint': 7,
  }.items():
    # To import takes seconds, a round some 50 ms.
    longest = 15.0 if phase == 'start' else 0.1
    moments += [
      Moment(generator.randrange(4), phase, generator.uniform(0.0, longest))
      for _ in range(number)
    ]
  generator.shuffle(moments)
  directories = [tmp_path / 'one', tmp_path / 'other']
  for directory in directories:
    directory.mkdir()
  # Two at a time: a process spends most of its life in starting.
  with concurrent.futures.ThreadPoolExecutor(2) as executor:
    results = list(
      executor.map(
        lambda i: _kill_many_times(
          small_inputs, undisturbed, directories[i], moments[i::2]
        ),
        range(2),
      )
    )
  num_killed = results[0][0] + results[1][0]
  print(f'killed: {dict(num_killed)}; runs: {[runs for _, runs in results]}')
  assert num_killed.total() == 30
  assert num_killed['round'] > 0
  assert num_killed['metrics'] > 0

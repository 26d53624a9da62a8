"""Runs whose clients keep tensors, killed ten times for each method.

As in test_killed_runs.py: SIGKILL, the real command in its own process. Of each
ten, three come while files of a round's states are written, three between the
rename of the states and the row of metrics.csv, three between that and the
checkpoint of the round, each seen by a file that has appeared.
"""

import collections

import pytest
import small_runs
from run_killer import Killer, Moment
from stateful_runs import assert_same_run

_NUM_ROUNDS = 14
_SHARED = {
  'client_work__num_local_epochs': 1,
  'evaluation__num_clients': 0,
  'evaluation__every_num_rounds': 0,
  'training__num_rounds': _NUM_ROUNDS,
  'checkpoints__every_num_rounds': 2,
  'checkpoints__keep_last': 2,
}
_METHODS = {
  'scaffold': {'algorithm__name': 'scaffold'},
  'moon': {'algorithm__name': 'moon'},
  'fed_fomo': {
    'algorithm__name': 'fed_fomo',
    'algorithm__num_downloads': 2,
    # Others' models, and the rows on which they are validated, are read again.
    'evaluation__num_clients': 2,
  },
  'adamw': {
    'algorithm__name': 'fed_avg',
    'client_work__optimizer': 'adamw',
    'client_work__learning_rate': 0.01,
    'client_work__keeps_optimizer_state': True,
  },
}
_MOMENTS = [
  *(Moment(n, 'states', 0) for n in (1, 0, 2)),
  *(Moment(n, 'committed', 0) for n in (0, 2, 1)),
  *(Moment(n, 'logged', 0) for n in (1, 0, 2)),
  Moment(1, 'round', 0.05),
]


@pytest.mark.slow
@pytest.mark.parametrize('method', _METHODS)
def test_killed_ten_times(method, small_inputs, tmp_path):
  settings = _SHARED | _METHODS[method]
  undisturbed = tmp_path / 'undisturbed'
  assert small_runs.train(small_inputs, undisturbed, **settings) == 0
  num_killed, num_runs, moments = collections.Counter(), 1, list(_MOMENTS)
  while moments:
    run = tmp_path / f'run{num_runs}'
    killer, phase = Killer(small_inputs, run, settings), 'start'
    while phase is not None and moments:
      phase = killer.start_and_kill(moments[0])
      if phase is not None:
        print(f'{method}: {moments.pop(0)} hit {phase!r}', flush=True)
        num_killed[phase] += 1
    killer.run_to_end()
    assert_same_run(run, undisturbed)
    assert not list((run / 'client_states').glob('.*'))
    num_runs += 1
  print(f'{method}: {dict(num_killed)} in {num_runs - 1} runs')
  assert num_killed.total() == 10
  for phase in ('states', 'committed', 'logged'):
    assert num_killed[phase] >= 2

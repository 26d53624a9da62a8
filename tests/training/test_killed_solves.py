"""One-shot runs that are killed while clients train, or the server solves.

As in test_killed_states.py: SIGKILL, the real command in its own process. Each
moment is seen by a file: while uploads of a round are written; between their
rename and the row of metrics.csv, which is the solve; between the row and the
checkpoint of the round, when uploads are removed.
"""

import pytest
import small_runs
from run_killer import Killer, Moment
from stateful_runs import assert_same_run

_SHARED = {
  'client_work__num_local_epochs': 1,
  'algorithm__num_validation_rows': 20,
  'server__optimizer': 'sgd',
  'server__learning_rate': 1.0,
  'training__num_rounds': 2,
  'evaluation__every_num_rounds': 1,
  'checkpoints__every_num_rounds': 1,
}
_PHASES = ('states', 'committed', 'logged')


@pytest.mark.slow
@pytest.mark.parametrize(
  ('settings', 'num_kills'),
  [
    # A solve takes seconds.
    (
      dict(
        algorithm__name='fed_fisher',
        algorithm__curvature='diagonal',
        algorithm__num_solver_steps=2000,
      ),
      6,
    ),
    (dict(algorithm__name='fisher_merge'), 3),
  ],
  ids=['fed_fisher', 'fisher_merge'],
)
def test_killed_in_every_phase(settings, num_kills, small_inputs, tmp_path):
  settings = _SHARED | settings
  undisturbed, run = tmp_path / 'undisturbed', tmp_path / 'run'
  assert small_runs.train(small_inputs, undisturbed, **settings) == 0
  killer = Killer(small_inputs, run, settings, written='uploads')
  moments = [Moment(n, phase, 0) for n in (0, 1) for phase in _PHASES]
  for moment in moments[:num_kills]:
    killer.kill_in(moment)
  killer.run_to_end()
  assert_same_run(run, undisturbed)
  assert not list((run / 'uploads').iterdir())

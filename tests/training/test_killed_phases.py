"""TCT is killed in each of its phases, and ends with the same bytes.

As in test_killed_states.py: SIGKILL, the real command in its own process. Each
moment is seen by a file: while features or client states are written; between
their rename and the row of their round; between a row and its checkpoint. Bases
of so few rows are written too fast to be seen.
"""

import pytest
import small_image_runs
from run_killer import Killer, Moment
from stateful_runs import assert_same_run

# Rounds 1 and 2 are FedAvg, round 3 computes features, 4 and 5 are convex.
_SETTINGS = dict(
  algorithm__name='tct',
  algorithm__num_bootstrap_rounds=2,
  algorithm__num_convex_steps=50,
  algorithm__convex_learning_rate=1e-4,
  cohorts__cohort_size=None,
  model__preset='lenet',
  server__optimizer='sgd',
  server__learning_rate=1.0,
  training__num_rounds=5,
  checkpoints__every_num_rounds=1,
)
# Rows of metrics.csv to wait for, from where the process before was killed.
_MOMENTS = (
  ('client_states', Moment(0, 'logged', 0)),
  ('features', Moment(1, 'states', 0)),
  ('features', Moment(0, 'committed', 0)),
  ('client_states', Moment(1, 'states', 0)),
  ('client_states', Moment(0, 'committed', 0)),
  ('client_states', Moment(0, 'logged', 0)),
)


@pytest.mark.slow
def test_killed_in_every_phase(small_images, tmp_path):
  undisturbed, run = tmp_path / 'undisturbed', tmp_path / 'run'
  assert small_image_runs.train(small_images, undisturbed, **_SETTINGS) == 0
  inputs = (small_images,)
  for written, moment in _MOMENTS:
    killer = Killer(
      inputs, run, _SETTINGS, written=written, runs=small_image_runs
    )
    killer.kill_in(moment)
  killer.run_to_end()
  assert_same_run(run, undisturbed)
  for name in ('features', 'feature_bases'):
    found, wanted = (
      {p.relative_to(of): p.read_bytes() for p in of.glob(f'{name}/*/*')}
      for of in (run, undisturbed)
    )
    assert found == wanted

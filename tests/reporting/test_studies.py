"""Methods, studies and budgets of local epochs."""

import pytest
from report_runs import write_run, write_sweep

from tff_fedfish.reporting import keys, match, studies
from tff_fedfish.reporting.loading import load_runs


@pytest.mark.parametrize(
  'name, value, is_method',
  [
    ('client_work.optimizer', 'adamw', True),
    ('client_work.warmup_rounds', 1, True),
    ('server.learning_rate', 0.5, True),
    ('algorithm.relative_floor', 0.5, True),
    ('client_work.local_batch_size', 2, False),
  ],
)
def test_what_makes_a_method(tmp_path, name, value, is_method):
  one, other = load_runs(
    [
      write_run(tmp_path / 'a'),
      write_run(tmp_path / 'b', settings={name: value}),
    ]
  )
  assert (keys.method_key(one) != keys.method_key(other)) == is_method
  assert (keys.setting_key(one) == keys.setting_key(other)) == is_method


def test_learning_rates_of_each_number_of_local_epochs(tmp_path):
  def lines(*shapes):
    runs = [
      write_run(
        tmp_path / f'{epochs}_{rate}',
        num_local_epochs=epochs,
        settings={'server.learning_rate': rate},
      )
      for epochs, rate in shapes
    ]
    return list(studies.methods(match.find_arms(load_runs(runs))))

  # Chosen for each E by a search: one method.
  assert lines((1, 0.1), (4, 0.2)) == ['FedFish']
  assert lines((2, 0.1), (2, 0.2)) == [
    'FedFish (server learning rate 0.1)',
    'FedFish (server learning rate 0.2)',
  ]


def test_budgets_of_local_epochs(tmp_path):
  shapes = ((1, 8), (4, 8), (4, 2), (2, 5))
  gains = {('fed_avg', epochs, rounds): 1 for epochs, rounds in shapes}
  arms = match.find_arms(load_runs(write_sweep(tmp_path, gains, num_seeds=1)))
  [study] = studies.studies(arms).values()
  assert {
    name: [(arm.num_local_epochs, arm.num_rounds) for arm in members]
    for name, members in studies.budgets(study).items()
  } == {
    '8 rounds': [(1, 8), (4, 8)],
    # 1 x 8 and 4 x 2; 2 x 5 is alone.
    '8 local epochs in all': [(1, 8), (4, 2)],
  }

"""The examples in docs/examples run and show what they say."""

import csv
import pathlib
import re
import runpy

import numpy as np
import pytest

_ROOT = pathlib.Path(__file__).parents[1]
_EXAMPLES = _ROOT / 'docs' / 'examples'


def _names(example):
  """Returns what a script defines, without running it."""
  return runpy.run_path(str(_EXAMPLES / f'{example}.py'))


@pytest.mark.slow
def test_fed_fish_by_hand(capsys):
  runpy.run_path(str(_EXAMPLES / 'fed_fish_by_hand.py'), run_name='__main__')
  printed = capsys.readouterr().out
  (difference,) = re.findall(r'round by hand: (\S+)', printed)
  assert float(difference) < 1e-6
  losses = [float(x) for x in re.findall(r'loss (\S+) nats', printed)]
  assert len(losses) == 4
  assert losses == sorted(losses, reverse=True)


@pytest.mark.slow
def test_fed_fish_on_one_function(capsys, tmp_path):
  _names('fed_fish_on_one_function')['main'](tmp_path / 'picture.png')
  assert (tmp_path / 'picture.png').read_bytes().startswith(b'\x89PNG')
  printed = capsys.readouterr().out
  page = _names('fed_fish_on_one_function')['__doc__']
  for support in ('full', 'partial', 'no'):
    (row,) = re.findall(rf'^ +\| {support} overlap \|.*', page, re.MULTILINE)
    fed_avg, fed_fish, *_, constant = row.strip('| ').split(' | ')[1:]
    for method, expected in (
      ('FedAvg', fed_avg),
      ('FedFish', fed_fish),
      ('constant', constant),
    ):
      (found,) = re.findall(rf'{support} overlap, {method}: (\S+)', printed)
      # Rounding in training differs by machine.
      assert float(found) == pytest.approx(float(expected), abs=0.03)


class TestWeightingsInOneRound:
  """One round of one cohort, its clients weighed in several ways."""

  def _compare(self, directory, output, *options, **settings):
    """Runs the script; returns its rows by weighting."""
    settings = {'data.directory': directory, **settings}
    _names('weightings_in_one_round')['main'](
      [
        *('--config', str(_ROOT / 'configs' / 'mnist_by_writer.py')),
        *('--output', str(output), '--seeds', '1', *options),
        *(f'--config.{name}={value}' for name, value in settings.items()),
      ]
    )
    with output.open(newline='') as file:
      return {row['weighting']: row for row in csv.DictReader(file)}

  def test_means_by_hand(self):
    names = _names('weightings_in_one_round')
    cohort = names['Cohort'](
      weights=np.array([[1.0], [3.0]]),
      deltas=np.array([[1.0, 2.0], [5.0, 6.0]]),
      diagonals=np.array([[1.0, 0.0], [1.0, 2.0]]),
      sizes=np.array([1, 1]),
      relative_floor=0.0,
    )
    means = {w.name: cohort.mean(w) for w in names['WEIGHTINGS']}
    # (1 + 15) / 4 and (2 + 18) / 4.
    np.testing.assert_allclose(means['plain mean'], [4, 5])
    # Only client 2 knows the second weight.
    np.testing.assert_allclose(means['FedFish'], [4, 6])
    # By the diagonals (1, 2) and (1, 0).
    np.testing.assert_allclose(means["FedFish, another's F"], [4, 2])
    np.testing.assert_allclose(means['FedFish, plain length'], [4, 5])
    # Half of 5 and half of 6.
    np.testing.assert_allclose(means['mix'], [4, 5.5])
    # 1 / (1/16 + 9/16) = 1.6 clients, and 1 client.
    plain, fish, *_ = names['WEIGHTINGS']
    assert cohort.effective_clients(plain) == pytest.approx(1.6)
    assert cohort.effective_clients(fish) == pytest.approx((1.6 + 1) / 2)
    # A step of 4 is best, or one of 1/4.
    assert names['best_step'](lambda step: abs(step - 4.5)) == 4
    assert names['best_step'](lambda step: abs(step - 0.2)) == 0.25

  @pytest.mark.slow
  def test_small_images(self, small_images, tmp_path, capsys):
    settings = {
      'cohorts.cohort_size': 4,
      'client_work.num_local_epochs': 1,
      'client_work.learning_rate': 0.1,
      'algorithm.fisher_granularity': 'input',
      'algorithm.fisher_mix': 0.5,
      'aggregation.bits': 4,
    }
    rows = self._compare(
      *(small_images, tmp_path / 'rows.csv', '--num_clients', '1', '1'),
      **settings,
    )
    assert len(rows) == 7
    coarse = rows['as configured']
    assert 0 < float(coarse['cosine']) < 1
    plain, fish = rows['plain mean'], rows['FedFish']
    assert float(plain['norm_ratio']) == pytest.approx(1)
    assert 0 < float(fish['cosine']) < 1
    assert 1 < float(fish['effective_clients']) < 4
    fewest, most = (float(r['effective_clients']) for r in (fish, plain))
    assert fewest < float(coarse['effective_clients']) < most
    difference = float(fish['best_loss']) - float(plain['best_loss'])
    assert re.search(
      rf'FedFish +\S+ +{re.escape(f"{difference:+.4f}")}',
      capsys.readouterr().out,
    )

  @pytest.mark.slow
  def test_a_cohort_of_the_committed_table(self, shared_data, tmp_path):
    rows = self._compare(
      *(shared_data('mnist_by_writer'), tmp_path / 'rows.csv'),
      *('--num_clients', '32', '96', '--max_rows', '20'),
      **{'cohorts.cohort_size': 8, 'client_work.num_local_epochs': 16},
    )
    wanted = {'seeds.cohort_seed': '1', 'client_work.learning_rate': '0.001'}
    wanted |= {'local_epochs': '16', 'fisher_normalization': 'none'}
    path = _ROOT / 'docs' / 'results' / 'mnist_laboratory' / 'laboratory.csv'
    with path.open(newline='') as file:
      committed = {
        (
          *(float(row[n]) for n in ('fisher_power', 'plain_mean_fraction')),
          *(row[n] for n in ('fisher_of', 'step_length')),
        ): row
        for row in csv.DictReader(file)
        if wanted.items() <= row.items()
      }
    for weighting in _names('weightings_in_one_round')['WEIGHTINGS']:
      length = 'plain_mean' if weighting.has_plain_length else 'own'
      settings = (weighting.fisher_power, weighting.plain_mean_fraction)
      expected = committed[*settings, weighting.fisher_of, length]
      row = rows[weighting.name]
      for name, tolerance in (
        *(('start_loss', 1e-5), ('loss', 1e-5), ('best_step', 0)),
        # After a step of 16: rounding in training differs by machine.
        *(('best_loss', 1e-3), ('cosine', 1e-4), ('norm_ratio', 1e-3)),
        *(('split_half_cosine', 1e-3), ('effective_clients', 1e-2)),
      ):
        assert float(row[name]) == pytest.approx(
          float(expected[name]), abs=tolerance
        ), (weighting.name, name)

"""Runs that differ in seeds only, pooled by hand."""

import json

import pytest

from tff_fedfish.reporting import (
  loading,
  match,
  repetitions,
  tables,
  words,
)
from tff_fedfish.reporting.runs import HELD_OUT, Subject

_BOTH = {('fed_avg', 4, 2): 1.0, ('fed_fish', 4, 2): 2.0}


@pytest.fixture(scope='module')
def pooled(tmp_path_factory, write_sweep):
  """FedAvg and FedFish, three seeds each; read only."""
  directories = write_sweep(tmp_path_factory.mktemp('sweep'), _BOTH)
  return repetitions.pool_repetitions(loading.load_runs(directories))


def test_means_and_intervals_by_hand(pooled):
  average, fish = pooled
  assert [average.label, fish.label] == ['FedAvg, E = 4', 'FedFish, E = 4']
  assert (average.num_seeds, fish.num_seeds) == (3, 3)
  evaluation = average.held_out()
  loss = evaluation.scores[0.0, 'loss']
  # 8 - 1 - (0, 0.1, 0.2): 7.0, 6.9, 6.8 with both clients.
  assert loss.mean == pytest.approx(6.9)
  assert [mean for _, mean in loss.seed_means] == pytest.approx([7, 6.9, 6.8])
  # All of one seed, the extreme, is drawn in 1 of 27 resamples: 3.7 %.
  assert (loss.ci_low, loss.ci_high) == pytest.approx((6.8, 7.0))
  # Accuracies are (10 - loss) / 100.
  accuracy = evaluation.scores[0.5, 'accuracy']
  assert accuracy.mean == pytest.approx(0.041)
  assert evaluation.num_seeds == 3
  assert list(evaluation.clients_at(0.5)['loss_after']) == pytest.approx(
    [5.9, 5.9]
  )


def test_unknown_tokens_are_the_mean_of_seeds_that_all_have_them(
  tmp_path, write_run, write_evaluation
):
  directories = []
  for seed, fraction in ((1, 0.25), (2, 0.75)):
    run = write_run(tmp_path / str(seed), settings={'seeds.shuffle_seed': seed})
    facts = {'unknown_token_fraction': fraction}
    write_evaluation(run, 'e', facts=facts)
    write_evaluation(
      run, 't', kind='transfer', facts=facts if seed == 1 else {}
    )
    directories.append(run)
  [pooled] = repetitions.pool_repetitions(loading.load_runs(directories))
  assert pooled.held_out().unknown_tokens == 0.5
  transfer = Subject('transfer', 'debian_descriptions')
  assert pooled.evaluation(transfer).unknown_tokens is None


def test_metrics_are_means_in_common_rounds(tmp_path, write_run):
  runs = loading.load_runs(
    [
      write_run(
        tmp_path / str(seed),
        held_out_losses=losses,
        num_rounds=9,
        settings={'seeds.cohort_seed': seed},
      )
      for seed, losses in ((1, (8.0, 7.0, None)), (2, (7.0, 6.0, 5.0, 4.0)))
    ]
  )
  [pooled] = repetitions.pool_repetitions(runs)
  # Round 2 has no score of seed 1, round 3 no row: neither has a mean.
  assert pooled.series('round', 'held_out/loss') == [(0, 7.5), (1, 6.5)]
  assert pooled.last_round == 2
  assert pooled.last('communication/uplink_units') == 2.0


def test_only_clients_of_all_seeds_count(tmp_path, write_run, write_evaluation):
  directories = []
  for seed, clients in ((1, ('a', 'b')), (2, ('b', 'c'))):
    run = write_run(tmp_path / str(seed), settings={'seeds.shuffle_seed': seed})
    write_evaluation(
      run, 'e', client_ids=clients, losses={0.0: (5.0 + seed, 6.0 + seed)}
    )
    directories.append(run)
  [pooled] = repetitions.pool_repetitions(loading.load_runs(directories))
  evaluation = pooled.held_out()
  # b alone: 7 and 7.
  assert evaluation.scores[0.0, 'loss'].mean == 7.0
  assert list(evaluation.clients['client_id']) == [b'b']
  assert evaluation.num_left_out_clients == 2


def test_a_run_from_before_a_setting_is_a_repetition(tmp_path, write_run):
  directories = [
    write_run(tmp_path / str(seed), settings={'seeds.model_seed': seed})
    for seed in (1, 2, 3)
  ]
  for directory, value in zip(
    directories, ('none', 'tensor_mean'), strict=False
  ):
    path = directory / 'config.json'
    config = json.loads(path.read_text())
    config['algorithm']['fisher_normalization'] = value
    path.write_text(json.dumps(config))
  pooled = repetitions.pool_repetitions(loading.load_runs(directories))
  # The third has no such setting: its default, as the first.
  assert sorted(run.num_seeds for run in pooled) == [1, 2]


def test_an_evaluation_that_some_seeds_have(
  tmp_path, write_run, write_evaluation
):
  directories = [
    write_run(tmp_path / str(seed), settings={'seeds.model_seed': seed})
    for seed in (1, 2, 3)
  ]
  for directory, effective in zip(directories, (2.0, 2.5), strict=False):
    write_evaluation(
      directory,
      'e',
      barriers=((4.0, 4.5, 0.2, 0.1),),
      effective_clients=effective,
    )
  write_evaluation(
    directories[2], 'e', personalization={'epochs': 9}, losses={0.0: (9.0,) * 4}
  )
  [pooled] = repetitions.pool_repetitions(loading.load_runs(directories))
  # Other fine-tuning is another measurement.
  assert [e.num_seeds for e in pooled.evaluations] == [2, 1]
  assert pooled.evaluations[0].barrier['loss'].mean == 0.5
  assert len(pooled.evaluations[0].barrier_clients) == 0
  assert pooled.evaluations[0].effective_clients.mean == 2.25
  assert pooled.evaluations[1].effective_clients is None


def test_most_seeds_come_before_the_latest_round(
  tmp_path, write_run, write_evaluation
):
  directories = []
  for seed in (1, 2):
    run = write_run(tmp_path / str(seed), settings={'seeds.model_seed': seed})
    write_evaluation(run, 'e', round_num=1, losses={0.0: (6.0 + seed,) * 4})
    directories.append(run)
  write_evaluation(directories[0], 'z', round_num=2, losses={0.0: (1.0,) * 4})
  [pooled] = repetitions.pool_repetitions(loading.load_runs(directories))
  # (7 + 8) / 2 of both seeds, not 1 of the first alone.
  assert pooled.held_out().scores[0.0, 'loss'].mean == 7.5
  last = pooled.evaluation(HELD_OUT, 2)
  assert last.num_seeds == 1
  assert words.interval_sample([last]) == 'clients'
  assert words.interval_sample([pooled.held_out()]) == (
    'clients and 2 seeds, crossed'
  )


def test_fractions_that_all_seeds_have(tmp_path, write_run, write_evaluation):
  directories = []
  for seed, losses, clients in (
    (1, {0.0: (5.0,) * 2, 0.5: (4.0,) * 2}, ('a', 'b')),
    (2, {0.0: (6.0,) * 2, 0.25: (4.0,) * 2}, ('b', 'c')),
  ):
    run = write_run(tmp_path / str(seed), settings={'seeds.model_seed': seed})
    write_evaluation(run, 'e', client_ids=clients, losses=losses)
    write_evaluation(
      run,
      'plays',
      kind='transfer',
      corpus='plays',
      client_ids=(str(seed),),
      losses={0.0: (5.0,)},
    )
    directories.append(run)
  [pooled] = repetitions.pool_repetitions(loading.load_runs(directories))
  assert pooled.held_out().fractions == [0.0]
  assert pooled.held_out().scores[0.0, 'loss'].mean == 5.5
  # No client is common: no score, and both clients are counted.
  assert pooled.evaluation(Subject('transfer', 'plays')).scores == {}
  assert (
    pooled.evaluation(Subject('transfer', 'plays')).num_left_out_clients == 2
  )


def test_labels_name_what_else_differs(tmp_path, write_sweep):
  directories = write_sweep(
    tmp_path,
    {('fed_avg', 4, 2): 1, ('fed_fish', 4, 2): 1, ('fed_fish', 4, 3): 1},
    num_seeds=2,
  )
  pooled = repetitions.pool_repetitions(loading.load_runs(directories))
  assert [run.label for run in pooled] == [
    'FedAvg, E = 4',
    'FedFish, E = 4, rounds = 2',
    'FedFish, E = 4, rounds = 3',
  ]


def test_without_repetitions_runs_stay_as_they_are(pair, tmp_path, write_run):
  runs = loading.load_runs(pair)
  assert repetitions.pool_repetitions(runs) == runs
  # Equal seeds, too: a copy, not a repetition.
  copies = loading.load_runs(
    [write_run(tmp_path / 'a'), write_run(tmp_path / 'b')]
  )
  assert repetitions.pool_repetitions(copies) == copies


def test_the_clients_split_is_no_seed_of_repetitions(tmp_path, write_run):
  runs = loading.load_runs(
    [
      write_run(tmp_path / str(s), settings={'seeds.split_seed': s})
      for s in (1, 2)
    ]
  )
  # Other clients are held out: nothing to take a mean over.
  assert repetitions.pool_repetitions(runs) == runs


def test_main_table_of_means(pooled):
  columns = {column.key: column for column in tables.build_main_table(pooled)}
  cells = columns['held_out/loss/0'].cells
  assert [cell.text for cell in cells] == ['6.900', '5.900']
  assert cells[0].interval_text == '6.800 to 7.000'


def test_learning_rates_of_each_number_of_local_epochs(tmp_path, write_run):
  def run(name, epochs, rate):
    return write_run(
      tmp_path / name,
      num_local_epochs=epochs,
      settings={'server.learning_rate': rate},
    )

  runs = loading.load_runs([run('a', 1, 0.1), run('b', 4, 0.2)])
  # Chosen for each E by a search: one method.
  assert list(match.methods(runs)) == ['FedFish']
  runs = loading.load_runs([run('c', 1, 0.1), run('d', 1, 0.2)])
  assert list(match.methods(runs)) == [
    'FedFish (server learning rate 0.1)',
    'FedFish (server learning rate 0.2)',
  ]


def test_seeds_that_diverged_are_counted(tmp_path, write_run):
  runs = [
    write_run(
      tmp_path / str(seed),
      num_rounds=9,
      settings={
        'seeds.cohort_seed': seed,
        'training.max_non_finite_rounds': limit,
      },
    )
    for seed, limit in ((1, 2), (2, 3), (3, 0), (4, None))
  ]
  for directory in runs:
    # Both rounds: one client, and its update is not finite.
    text = (directory / 'metrics.csv').read_text()
    header, first, *rest = text.splitlines()
    lines = [f'{header},train/num_clients', f'{first},']
    lines += [line.replace(',0,', ',1,', 1) + ',1' for line in rest]
    (directory / 'metrics.csv').write_text('\n'.join(lines) + '\n')
  loaded = loading.load_runs(runs)
  assert [run.num_diverged for run in loaded] == [1, 0, 0, 0]
  assert loaded[0].label == 'FedFish, E = 1 (1) (diverged)'
  [pooled] = repetitions.pool_repetitions(loaded)
  assert pooled.label == 'FedFish, E = 1 (1 of 4 diverged)'
  with_limit = loading.load_runs(runs[:1])
  assert with_limit[0].label == 'FedFish, E = 1 (diverged)'


def test_evaluations_of_other_fractions_are_all_kept(
  tmp_path, write_run, write_evaluation
):
  runs = []
  for seed in (1, 2):
    run = write_run(tmp_path / f'{seed}', settings={'seeds.model_seed': seed})
    write_evaluation(run, 'a', losses=dict.fromkeys((0.0, 0.5), (5.0,) * 4))
    write_evaluation(run, 'b', losses={0.0: (5.0,) * 4})
    runs.append(run)
  [pooled] = repetitions.pool_repetitions(loading.load_runs(runs))
  assert [(e.fractions, e.num_seeds) for e in pooled.evaluations] == [
    ([0.0, 0.5], 2),
    ([0.0], 2),
  ]

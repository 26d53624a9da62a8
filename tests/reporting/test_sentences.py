"""The first sentences of the page, word for word."""

import pytest
from report_runs import write_evaluation, write_run, write_sweep

from tff_fedfish.reporting import headline, loading, notes, scores, tables


def _read(directories):
  return scores.read_scores(loading.load_runs(directories))


def test_an_undecided_pair(pair):
  table = _read(pair)
  assert headline.headline(table) == (
    'The order is undecided: the mean loss of FedFish is lower than that of '
    'FedAvg by 0.250 nats per token on held-out clients (95 % interval 0.000 '
    'to 0.500; 4 clients, 1 seed), for an uplink of 4 against 2 models.'
  )
  assert headline.personalization(table) == (
    'After personalization on 50 % of each client’s data the order is '
    'undecided: the mean loss of FedFish is lower than that of FedAvg by 0.250 '
    '(95 % interval −0.250 to 0.750). Personalization hurts 0 % of the clients '
    'with FedFish and 25 % of the clients with FedAvg.'
  )


def test_equal_losses(tmp_path):
  runs = []
  for algorithm in ('fed_avg', 'fed_fish'):
    runs.append(write_run(tmp_path / algorithm, algorithm=algorithm))
    write_evaluation(runs[-1], 'e', losses={0.0: (6.0, 5.0)}, client_ids='ab')
  assert headline.headline(_read(runs)).startswith(
    'The order is undecided: the mean loss of FedFish minus that of FedAvg is '
    '0.000 nats per token on held-out clients (95 % interval 0.000 to 0.000;'
  )


def test_variants_of_the_baseline(tmp_path):
  runs = []
  for rate in (0.05, 0.1):
    for algorithm in ('fed_avg', 'fed_fish'):
      runs.append(
        write_run(
          tmp_path / f'{algorithm}{rate}',
          algorithm=algorithm,
          settings={'client_work.learning_rate': rate},
        )
      )
      losses = {0.0: (6.0 - rate - (algorithm == 'fed_fish'),) * 2}
      write_evaluation(runs[-1], 'e', losses=losses, client_ids='ab')
  assert '. Of 4 comparisons with FedAvg: ' in headline.headline(_read(runs))


def test_several_settings(tmp_path):
  gains = {
    (method, epochs, 2): epochs + gain
    for method, gain in (('fed_avg', 0.5), ('fed_fish', 0.0))
    for epochs in (1, 4)
  }
  table = _read(write_sweep(tmp_path, gains))
  # Traffic is in the order of the sentence: FedFish sends twice as much.
  assert headline.headline(table) == (
    'The loss of FedAvg is lower than that of FedFish by 0.500 nats per token '
    'on held-out clients with E = 4 (95 % interval 0.500 to 0.500; 2 clients, '
    '3 seeds), for an uplink of 2 against 4 models. Of 2 comparisons with '
    'FedAvg: FedAvg lower in 2; their lowest loss is with E = 4.'
  )
  assert headline.personalization(table).startswith(
    'With E = 4 and personalization on 50 % of each client’s data the order '
    'stays: '
    'the loss of FedAvg is lower than that of FedFish by 0.500 '
  )


def test_comparisons_with_the_baseline_lead(tmp_path):
  def write(width, algorithm, epochs, loss, **options):
    settings = {'model.width': width}
    if algorithm == 'fed_prox':
      settings['algorithm.mu'] = 0.1
    runs.append(
      write_run(
        tmp_path / f'{len(runs)}',
        algorithm=algorithm,
        num_local_epochs=epochs,
        settings=settings,
      )
    )
    write_evaluation(runs[-1], 'e', losses={0.0: (loss,) * 4}, **options)

  runs = []
  write(128, 'fed_avg', 1, 7.0)
  write(128, 'fed_fish', 1, 6.5)
  # Lower, but without the baseline.
  write(128, 'fed_prox', 8, 4.0)
  write(128, 'fed_fish', 8, 3.0)
  assert headline.headline(_read(runs)) == (
    'The loss of FedFish is lower than that of FedAvg by 0.500 nats per token '
    'on held-out clients with E = 1 (95 % interval 0.500 to 0.500; 4 clients, '
    '1 seed), for an uplink of 2 models.'
  )
  # Losses on shorter sequences have no order with the others.
  shorter = {'personalization': {'sequence_length': 64}}
  write(64, 'fed_avg', 1, 7.5, **shorter)
  write(64, 'fed_fish', 1, 7.6, **shorter)
  assert headline.headline(_read(runs)).endswith(
    ' models. Of 2 comparisons with FedAvg: FedFish lower in 1, FedAvg lower '
    'in 1.'
  )


def _write_methods(root, **evaluations):
  """Writes FedAvg and FedFish, which wins by 1 nat in each evaluation."""
  runs = []
  for algorithm, gain in (('fed_avg', 0.0), ('fed_fish', 1.0)):
    # Rounds 0 to 4.
    losses = (8.0,) * 5
    runs.append(
      write_run(root / algorithm, algorithm=algorithm, held_out_losses=losses)
    )
    for name, (round_num, *losses) in evaluations.items():
      write_evaluation(
        runs[-1],
        name,
        round_num=round_num,
        losses={
          fraction: (loss - gain,) * 4
          for fraction, loss in zip((0.0, 0.5), losses, strict=False)
        },
      )
  return runs


def test_clients_hurt_are_those_of_the_compared_evaluations(tmp_path):
  runs = _write_methods(tmp_path, a=(1, 7.0, 8.0), e=(2, 6.0, 5.0))
  # Another one, of FedFish only, hurts all clients.
  losses = {0.0: (9.0,) * 4, 0.5: (12.0,) * 4}
  write_evaluation(runs[1], 'z', losses=losses, personalization={'epochs': 40})
  table = _read(runs)
  assert headline.headline(table).startswith(
    'The loss of FedFish is lower than that of FedAvg by 1.000 nats per token '
    'on held-out clients after round 2 (95 % interval 1.000 to 1.000; '
  )
  assert headline.personalization(table) == (
    'After personalization on 50 % of each client’s data the order stays: the '
    'loss of FedFish is lower than that of FedAvg by 1.000 (95 % interval '
    '1.000 to 1.000). Personalization hurts 0 % of the clients with FedFish '
    'and 0 % of the clients with FedAvg.'
  )
  [comparison] = tables.comparison_tables(table)
  assert comparison.rows[0][6].text == '0 % / 0 %'
  # What is compared is on the page, and `a` on a curve.
  assert not [note for note in notes.notes(table) if 'not shown' in note]


def test_personalization_of_another_round_is_another_answer(tmp_path):
  runs = _write_methods(tmp_path, later=(4, 6.0), e=(2, 7.0, 5.0))
  table = _read(runs)
  assert 'after round' not in headline.headline(table)
  assert headline.personalization(table) == ''
  [comparison] = tables.comparison_tables(table)
  assert [cell.text for cell in comparison.rows[0][5:7]] == ['–', '–']


@pytest.mark.parametrize(
  'options, end',
  [
    ({'num_local_epochs': 2}, 'differs in E'),
    (
      {
        'settings': {
          'model.width': 64,
          'cohorts.cohort_size': 4,
          'client_work.optimizer': 'adamw',
          'client_work.local_batch_size': 2,
        },
        'num_rounds': 15,
      },
      'differs in client_work.local_batch_size, cohorts.cohort_size, '
      'model.width and 2 more settings',
    ),
  ],
)
def test_a_run_that_is_not_compared(pair, tmp_path, options, end):
  options = {'num_local_epochs': 8} | options
  mine = write_run(tmp_path / 'mine', **options)
  # Lower than all, but of no comparison.
  write_evaluation(mine, 'e', losses={0.0: (1.0,) * 4})
  table = _read([*pair, mine])
  assert headline.headline(table).startswith('The order is undecided')
  [note] = [n for n in notes.notes(table) if 'not compared' in n]
  assert f'{note} '.endswith(f' is not compared: it {end}. ')


def test_arms_of_one_study_have_a_lowest_loss(tmp_path):
  # Each after its last round.
  gains = {('fed_avg', epochs, 6 - epochs): epochs for epochs in (1, 4)}
  assert headline.headline(_read(write_sweep(tmp_path, gains))) == (
    'The mean loss of FedAvg, E = 4 on held-out clients is the lowest: 3.900 '
    'nats per token (95 % interval 3.800 to 4.000; 2 clients, 3 seeds), for an '
    'uplink of 2 models.'
  )


def test_one_run(tmp_path):
  run = write_run(tmp_path / 'run')
  assert headline.headline(_read([run])) == (
    '1 run without an evaluation: `fedfish evaluate` makes one.'
  )
  write_evaluation(run, 'e')
  table = _read([run])
  assert headline.headline(table) == (
    'The mean loss of FedFish, E = 1 on held-out clients is 6.000 nats per '
    'token (95 % interval 5.750 to 6.250; 4 clients, 1 seed), for an uplink of '
    '2 models.'
  )
  assert headline.personalization(table) == ''
  assert notes.notes(table) == []


def test_one_run_on_another_corpus(tmp_path):
  run = write_run(tmp_path / 'run')
  write_evaluation(run, 'e', kind='transfer', corpus='plays')
  assert headline.headline(_read([run])).startswith(
    'The mean loss of FedFish, E = 1 on clients of plays is 6.000 '
  )


def test_the_sentence_is_of_the_latest_evaluation(tmp_path):
  run = write_run(tmp_path / 'run', units_per_round=3)
  write_evaluation(run, 'early', round_num=0, losses={0.0: (9.0,) * 4})
  write_evaluation(run, 'e', round_num=1, losses={0.25: (5.0,) * 4})
  assert headline.headline(_read([run])) == (
    'The mean loss of FedFish, E = 1 on held-out clients after round 1 and '
    'personalization on 25 % is 5.000 nats per token (95 % interval 4.750 to '
    '5.250; 4 clients, 1 seed), for an uplink of 3 models.'
  )


@pytest.mark.parametrize(
  'width, options',
  [
    pytest.param(64, {}, id='study'),
    pytest.param(128, {'round_num': 1}, id='round'),
    pytest.param(128, {'personalization': {'sequence_length': 64}}, id='rows'),
    pytest.param(128, {'losses': {0.0: (6.0,) * 4}}, id='tie'),
  ],
)
def test_losses_without_an_order(tmp_path, width, options):
  runs = [write_run(tmp_path / 'a')]
  settings = {'model.width': width}
  runs.append(write_run(tmp_path / 'b', num_local_epochs=8, settings=settings))
  write_evaluation(runs[0], 'e', losses={0.0: (6.0,) * 4})
  losses = {0.0: (5.0,) * 4}
  write_evaluation(runs[1], 'e', **({'losses': losses} | options))
  assert headline.headline(_read(runs)) == (
    'None of 2 runs is compared: no two differ in the method only and were '
    'evaluated alike.'
  )


def test_own_test_rows(tmp_path):
  runs = []
  for algorithm, loss in (('fed_avg', 6.0), ('local_only', 4.0)):
    run = write_run(tmp_path / algorithm, algorithm=algorithm)
    write_evaluation(run, 'own', kind='own_test', losses={0.0: (loss,) * 4})
    runs.append(run)
  assert headline.headline(_read(runs)).startswith(
    'The loss of Local models is lower than that of FedAvg by 2.000 nats per '
    'token on own test rows ('
  )

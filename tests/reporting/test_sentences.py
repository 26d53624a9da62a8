"""The first sentences of the page and its caveats, word for word."""

import pytest

from tff_fedfish.reporting import headline, loading, notes, scores


def _read(directories):
  return scores.read_scores(loading.load_runs(directories))


def _notes(directories):
  return notes.notes(_read(directories))


def test_an_undecided_pair(pair):
  table = _read(pair)
  assert headline.headline(table) == (
    'The order is undecided: the loss of FedFish minus that of FedAvg is '
    '−0.250 nats per token on held-out clients (95 % interval −0.500 to '
    '+0.000; 4 clients, 1 seed), for an uplink of 4 against 2 models.'
  )
  assert headline.personalization(table) == (
    'After personalization on 50 % of each client’s data the order is '
    'undecided: the loss of FedFish minus that of FedAvg is −0.250 (95 % '
    'interval −0.750 to +0.250). Personalization hurts 0 % of the clients with '
    'FedFish and 25 % of the clients with FedAvg.'
  )


def test_several_settings(tmp_path, write_sweep):
  gains = {
    (method, epochs, 2): epochs + gain
    for method, gain in (('fed_avg', 0.5), ('fed_fish', 0.0))
    for epochs in (1, 4)
  }
  table = _read(write_sweep(tmp_path, gains))
  # Traffic is in the order of the sentence: FedFish sends twice as much.
  assert headline.headline(table) == (
    'FedAvg has a lower loss than FedFish by 0.500 nats per token on held-out '
    'clients with E = 4 (95 % interval 0.500 to 0.500; 2 clients, 3 seeds), '
    'for an uplink of 2 against 4 models. It is the comparison with the lowest '
    'loss; of all 2: FedAvg lower in 2.'
  )
  assert headline.personalization(table).startswith(
    'After personalization on 50 % of each client’s data the order stays: '
    'FedAvg has a lower loss than FedFish by 0.500 '
  )


@pytest.mark.parametrize(
  'options, end',
  [
    ({'num_local_epochs': 2}, 'differs in E'),
    (
      {'settings': {'model.width': 64, 'client_work.optimizer': 'adamw'}},
      'differs in model.width and client_work.optimizer',
    ),
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
def test_a_run_that_is_not_compared(
  pair, tmp_path, write_run, write_evaluation, options, end
):
  options = {'num_local_epochs': 8} | options
  mine = write_run(tmp_path / 'mine', **options)
  # Lower than all, but of no comparison.
  write_evaluation(mine, 'e', losses={0.0: (1.0,) * 4})
  table = _read([*pair, mine])
  assert headline.headline(table).startswith('The order is undecided')
  [note] = [n for n in notes.notes(table) if 'not compared' in n]
  assert f'{note} '.endswith(f' is not compared: it {end}. ')


def test_arms_of_one_study_have_a_lowest_loss(tmp_path, write_sweep):
  gains = {('fed_avg', epochs, 2): epochs for epochs in (1, 4)}
  assert headline.headline(_read(write_sweep(tmp_path, gains))) == (
    'FedAvg, E = 4 has the lowest mean loss on held-out clients: 3.900 nats '
    'per token (95 % interval 3.800 to 4.000; 2 clients, 3 seeds), for an '
    'uplink of 2 models.'
  )


def test_one_run(tmp_path, write_run, write_evaluation):
  run = write_run(tmp_path / 'run')
  assert headline.headline(_read([run])) == (
    '1 run without an evaluation: `fedfish evaluate` makes one.'
  )
  write_evaluation(run, 'e')
  table = _read([run])
  assert headline.headline(table) == (
    'FedFish, E = 1 has a mean loss on held-out clients: 6.000 nats per token '
    '(95 % interval 5.750 to 6.250; 4 clients, 1 seed), for an uplink of 2 '
    'models.'
  )
  assert headline.personalization(table) == ''
  assert notes.notes(table) == []


def test_traffic_is_that_of_the_evaluated_round(
  tmp_path, write_run, write_evaluation
):
  run = write_run(tmp_path / 'run', units_per_round=3)
  write_evaluation(run, 'e', round_num=1)
  sentence = headline.headline(_read([run]))
  assert sentence.endswith(', for an uplink of 3 models.')


def test_runs_of_different_studies_have_no_lowest_loss(
  tmp_path, write_run, write_evaluation
):
  runs = [
    write_run(tmp_path / str(width), settings={'model.width': width})
    for width in (64, 128)
  ]
  for run in runs:
    write_evaluation(run, 'e')
  assert headline.headline(_read(runs)) == (
    'None of 2 runs is compared: no two differ in the method only and were '
    'evaluated alike.'
  )


def test_own_test_rows(tmp_path, write_run, write_evaluation):
  runs = []
  for algorithm, loss in (('fed_avg', 6.0), ('local_only', 4.0)):
    run = write_run(tmp_path / algorithm, algorithm=algorithm)
    write_evaluation(run, 'own', kind='own_test', losses={0.0: (loss,) * 4})
    runs.append(run)
  assert headline.headline(_read(runs)).startswith(
    'Local models has a lower loss than FedAvg by 2.000 nats per token on own '
    'test rows ('
  )


def test_notes_of_a_troubled_run(tmp_path, write_run, write_evaluation):
  run = write_run(tmp_path / 'run', num_rounds=9)
  text = (run / 'metrics.csv').read_text()
  # Column 3 counts non-finite clients: 2 in round 1, 1 in round 2.
  text = text.replace('\n1,8.0,0,', '\n1,8.0,2,')
  (run / 'metrics.csv').write_text(text.replace('\n2,7.0,0,', '\n2,7.0,1,'))
  skipped = {'skipped_clients': {'too_few_documents': 7, 'none': 0}}
  write_evaluation(run, 'early', round_num=0)
  write_evaluation(run, 'first', round_num=1)
  write_evaluation(run, 'later', round_num=1, facts=skipped)
  write_evaluation(run, 'searched', kind='own_validation')
  unknown = {'unknown_token_fraction': 0.9871}
  write_evaluation(run, 'russian', kind='transfer', corpus='r', facts=unknown)
  losses = {0.0: (5.0,) * 4, 0.5: (4.0, 9.0, 9.0, 9.0)}
  write_evaluation(run, 'hurt', kind='transfer', corpus='h', losses=losses)
  label = 'FedFish, E = 1: '
  assert _notes([run]) == [
    label + '2 of 9 rounds so far.',
    label + '3 clients with non-finite results counted with weight 0 in '
    'training.',
    label + 'evaluation first is not shown: only one per checkpoint and corpus '
    'is. Shown: later.',
    label + 'evaluation later is of round 1, not of the last round.',
    label + 'evaluation later left out clients: 7 (too few documents).',
    label + 'evaluation russian has 98.71 % unknown tokens: the vocabulary '
    'cannot express this text, so scores on it say little.',
    label + 'evaluation searched is of clients or rows of the training and is '
    'not shown.',
    label + 'personalization on 50 % hurt 75 % of the clients of h.',
  ]


def test_what_holds_for_several_runs_is_said_once(tmp_path, write_run):
  runs = [
    write_run(tmp_path / 'a', num_rounds=9),
    write_run(tmp_path / 'b', num_rounds=9, num_local_epochs=8),
  ]
  # Without an evaluation there is no interval to speak of.
  assert _notes(runs) == ['All runs: 2 of 9 rounds so far.']
  runs.append(write_run(tmp_path / 'c', algorithm='fed_avg'))
  assert _notes(runs)[0] == (
    'FedFish, E = 1 and FedFish, E = 8: 2 of 9 rounds so far.'
  )


def test_what_a_mean_over_seeds_lacks(tmp_path, write_run, write_evaluation):
  runs = []
  for seed, clients in ((1, ('a', 'b')), (2, ('b', 'c')), (3, ())):
    run = write_run(tmp_path / str(seed), settings={'seeds.model_seed': seed})
    if clients:
      write_evaluation(run, 'e', client_ids=clients, losses={0.0: (5.0,) * 2})
    runs.append(run)
  # Of a, b and c both seeds have b.
  assert _notes(runs) == [
    'FedFish, E = 1: evaluation e is of 2 of 3 seeds.',
    'FedFish, E = 1: evaluation e left out 2 clients that not every seed has.',
    'Without an evaluation on held-out clients: FedFish, E = 1 (3).',
    'Runs that differ only in their seeds are averaged. With few seeds their '
    'intervals are too narrow.',
  ]


def test_runs_that_were_not_measured_alike(
  tmp_path, write_run, write_evaluation
):
  runs = [
    write_run(tmp_path / 'a'),
    write_run(
      tmp_path / 'b',
      held_out_losses=(8.0, 7.0),
      settings={'data.directory': 'corpora/other'},
    ),
  ]
  write_evaluation(runs[0], 'e', personalization={'learning_rate': 0.1})
  write_evaluation(
    runs[1],
    'e',
    round_num=1,
    client_ids=('a',),
    losses={0.0: (5.0,)},
    personalization={'learning_rate': 1.0},
  )
  assert _notes(runs) == [
    'The runs were not measured on the same data: they differ in '
    "data.directory ('corpora/debian' / 'corpora/other').",
    'The runs have different numbers of rounds (1, 2).',
    'The evaluations on held-out clients differ in clients (4 / 1), '
    'learning_rate (0.1 / 1.0); only equal ones are compared.',
    'Intervals are over the clients of one run each; other seeds may rank the '
    'runs differently.',
  ]


def test_nothing_is_called_significant(pair):
  table = _read(pair)
  sentences = [headline.headline(table), headline.personalization(table)]
  words = ' '.join(sentences + notes.notes(table))
  assert 'significan' not in words

"""Caveats of the page, word for word; see test_rules.py, too."""

import shlex
import shutil

import pytest
from report_runs import (
  read_report,
  write_evaluation,
  write_methods,
  write_run,
  write_scored,
)

from tff_fedfish.config import load as config_loading
from tff_fedfish.reporting import headline, notes

_NO_HELD_OUT = {'evaluation.num_clients': 0}
_NO_HELD_OUT |= {'client_splits.held_out_fraction': 0}


def _notes(directories):
  return notes.notes(read_report(directories))


def test_notes_of_a_troubled_run(tmp_path):
  run = write_run(tmp_path / 'run', num_rounds=9)
  text = (run / 'metrics.csv').read_text()
  # Column 3 counts non-finite clients: 2 in round 1, 1 in round 2.
  text = text.replace('\n1,8.0,0,', '\n1,8.0,2,')
  (run / 'metrics.csv').write_text(text.replace('\n2,7.0,0,', '\n2,7.0,1,'))
  skipped = {'skipped_clients': {'too_few_documents': 7, 'none': 0}}
  write_evaluation(run, 'early', round_num=0)
  # Of equal ones the newest is shown.
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
    label + 'evaluation first on held-out clients is not shown: another '
    'one is.',
    label + 'evaluation later is of round 1, not of the last round.',
    label + 'evaluation later left out clients: 7 (too few documents).',
    label + 'evaluation russian has 98.71 % unknown tokens: the vocabulary '
    'cannot express this text, so scores on it say little.',
    label + 'evaluation searched is of clients or rows of the training and is '
    'not shown.',
    label + 'personalization on 50 % hurt 75 % of the clients of h.',
  ]


def test_a_run_whose_patience_ends_with_its_last_round(tmp_path):
  losses, stops = (8.0, 7.0, 7.5), {'training.patience': 1}
  options = {'held_out_losses': losses, 'settings': stops}
  assert _notes([write_run(tmp_path / 'over', **options)]) == []
  run = write_run(tmp_path / 'early', num_rounds=9, **options)
  assert _notes([run]) == ['FedFish, E = 1: stopped early after round 2 of 9.']


def test_an_evaluation_without_clients(tmp_path):
  run = write_scored(tmp_path / 'run', {0.0: ()})
  findings = read_report([run])
  assert notes.notes(findings) == []
  assert headline.sentences(findings) == [
    '1 run without a score on held-out clients.'
  ]


def test_copies_and_many_runs_that_are_not_compared(tmp_path):
  runs = [write_scored(tmp_path / 'fish', 6.0)]
  runs.append(shutil.copytree(runs[0], tmp_path / 'copy'))
  assert _notes(runs) == [
    'FedFish, E = 1 (copy) is not compared: it is a copy of FedFish, E = 1 '
    '(fish).'
  ]
  for width in (16, 32, 48, 64, 80):
    settings = {'model.width': width}
    runs.append(write_run(tmp_path / str(width), settings=settings))
  assert 'Also not compared: 1 run.' in _notes(runs)
  seed = {'seeds.model_seed': 7, 'model.width': 80}
  runs.append(write_run(tmp_path / 'seed', settings=seed))
  assert 'Also not compared: 2 runs.' in _notes(runs)


def test_what_holds_for_several_runs_is_said_once(tmp_path):
  runs = [
    write_run(tmp_path / str(epochs), num_rounds=9, num_local_epochs=epochs)
    for epochs in (1, 8)
  ]
  assert _notes(runs)[0] == 'All runs: 2 of 9 rounds so far.'
  runs.append(write_run(tmp_path / 'c', algorithm='fed_avg'))
  some = 'FedFish, E = 1 and FedFish, E = 8: 2 of 9 rounds so far.'
  assert _notes(runs)[0] == some


def test_what_a_mean_over_seeds_lacks(tmp_path):
  runs = write_methods(tmp_path, {'fed_fish': [5.0, 5.0]})
  runs.append(write_run(tmp_path / 'c', settings={'seeds.model_seed': 3}))
  # Of another round.
  write_evaluation(runs[-1], 'early', round_num=1, losses={0.0: (5.0,) * 4})
  assert _notes(runs) == [
    'FedFish, E = 1 (c): evaluation early on held-out clients is not shown: '
    'that of other seeds is.',
    'FedFish, E = 1: held-out clients were scored for 2 of 3 seeds.',
  ]


def test_scores_after_personalization_alone(tmp_path):
  losses = {'fed_avg': [{0.0: (6.0, 6.0), 0.5: (5.0, 5.0)}]}
  losses['fed_fish'] = [{0.5: (4.0, 4.0)}]
  found = _notes(write_methods(tmp_path, losses))
  assert found[-1] == (
    'Not scored on held-out clients without personalization: FedFish, E = 1.'
  )


def test_noise_that_seeds_share(tmp_path):
  private = {'local_privacy.clip_norm': 1.0}
  private['local_privacy.noise_multiplier'] = 1.0
  options = {'fed_prox': {'settings': private}}
  losses = dict.fromkeys(('fed_avg', 'fed_prox'), [6.0, 5.0, 4.0])
  assert _notes(write_methods(tmp_path, losses, **options)) == [
    'FedProx, E = 1: seeds share a seeds.privacy_seed, and so the noise.'
  ]


def test_models_fine_tuned_differently(tmp_path):
  runs = write_methods(
    tmp_path,
    dict.fromkeys(('fed_avg', 'fed_fish'), [{0.0: (6.0,), 0.5: (5.0,)}]),
    fed_avg={'evaluation': {'personalization': {'epochs': 4}}},
    fed_fish={'evaluation': {'personalization': {'epochs': 8}}},
  )
  assert (
    'After personalization FedFish and FedAvg are not compared on held-out '
    'clients: epochs (8 / 4) differ.'
  ) in _notes(runs)


def test_runs_of_other_data_and_rounds(tmp_path):
  settings = {'data.directory': 'corpora/other'}
  runs = [write_run(tmp_path / 'a')]
  runs.append(
    write_run(tmp_path / 'b', held_out_losses=(8.0, 7.0), settings=settings)
  )
  assert _notes(runs) == [
    'The runs were not trained on the same data: they differ in '
    'data.directory (corpora/debian / corpora/other).',
    'The runs have different numbers of rounds (1, 2).',
  ]


def _not_compared(tmp_path, ours):
  """Returns why a run is not compared, and the command, as a shell reads it.

  FedAvg was evaluated after round 2, on clients a and b.
  """
  runs = [write_scored(tmp_path / 'average', 6.0, algorithm='fed_avg'), ours]
  [note] = [note for note in _notes(runs) if 'is not compared' in note]
  reason, command, end = note.split('`')
  return reason.partition(': ')[2] + '...' + end, shlex.split(command)


def test_the_evaluation_that_would_make_runs_comparable(tmp_path):
  ours = write_run(tmp_path / 'fish')
  reason, command = _not_compared(tmp_path, ours)
  assert reason == 'FedFish, E = 1 was not evaluated. ... evaluates it alike.'
  assert command == [
    *('fedfish', 'evaluate', '--checkpoint', str(ours)),
    *('--data', 'corpora/debian', '--fractions', '0', '--max_clients', '2'),
    *('--max_sequences_per_client', 'all'),
    *('--output', f'{ours}/evaluations/e'),
  ]
  ids = ('a', 'x')
  write_evaluation(ours, 'mine', client_ids=ids, losses={0.0: (6.0,) * 2})
  shutil.rmtree(tmp_path / 'average')
  reason, again = _not_compared(tmp_path, ours)
  assert reason == (
    'it was evaluated differently: which clients, or which of their rows. ... '
    'evaluates it alike.'
  )
  assert again == command


def test_the_training_that_would_make_runs_comparable(tmp_path):
  early = {'evaluation': {'round_num': 1}, 'num_rounds': 2}
  curve = (8.0, 7.0)
  ours = write_scored(tmp_path / 'fish', 6.0, held_out_losses=curve, **early)
  reason, command = _not_compared(tmp_path, ours)
  assert reason == (
    'FedFish, E = 1 has 1 round, FedAvg, E = 1 was evaluated after 2. ... '
    'continues it.'
  )
  # It is planned for 2.
  assert command == ['fedfish', 'train', '--workdir', str(ours)]
  runs = [write_run(tmp_path / 'short'), tmp_path / 'average']
  shutil.rmtree(runs[1])
  late = {'evaluation': {'round_num': 9}, 'held_out_losses': (8.0,) * 10}
  write_scored(runs[1], 6.0, algorithm='fed_avg', **late)
  [_, command, _] = _notes(runs)[0].split('`')
  options = shlex.split(command)[4:]
  config = config_loading.load_config(runs[0] / 'config.json', options)
  assert config.training.num_rounds == 9


def test_no_command_for_a_model_that_is_not_there(tmp_path):
  early = {'evaluation': {'round_num': 2}, 'num_rounds': 9}
  late = {'evaluation': {'round_num': 9}, 'held_out_losses': (8.0,) * 10}
  stops = {'training.patience': 1}
  runs = [
    write_scored(
      tmp_path / 'fish',
      (6.0, 6.0, 6.0),
      settings=stops,
      held_out_losses=(8.0, 7.0, 7.5),
      **early,
    ),
    write_scored(
      tmp_path / 'average',
      6.0,
      algorithm='fed_avg',
      settings={'training.patience': 9},
      **late,
    ),
  ]
  assert _notes(runs)[0] == (
    'FedAvg, E = 1 is not compared: FedFish, E = 1 has 2 rounds, FedAvg, E = 1 '
    'was evaluated after 9.'
  )
  shutil.rmtree(runs[0])
  # In progress, without an evaluation.
  runs[0] = write_run(tmp_path / 'fish', num_rounds=12)
  # Its plan of 9 rounds, or more, stays as it is.
  assert f'`fedfish train --workdir {runs[0]}` continues it.' in _notes(runs)[0]


def test_losses_of_which_none_is_finite(tmp_path):
  losses = dict.fromkeys(('fed_avg', 'fed_fish'), [float('nan')])
  assert _notes(write_methods(tmp_path, losses))[0] == (
    'FedFish, E = 1 is not compared: no client has a finite loss on both sides.'
  )


def test_scores_of_different_clients_in_one_column(tmp_path):
  losses = {'fed_avg': [(6.0, 6.1, 6.2)] * 3, 'fed_fish': [(5.0, 5.1)] * 3}
  runs = write_methods(tmp_path, losses)
  # The comparison is of these, the column of FedAvg's three clients.
  for run in runs[:3]:
    ids, few = ('a', 'b'), {0.0: (1.0, 1.0)}
    write_evaluation(run, 'few', client_ids=ids, losses=few)
  assert _notes(runs) == [
    'Scores on held-out clients that are shown are not of one evaluation: they '
    'differ in clients (3 / 2).'
  ]


def test_scores_on_other_rows_have_no_number_of_clients(tmp_path):
  fish = write_scored(tmp_path / 'fish', 5.0)
  own = {'evaluation': {'kind': 'own_test'}, 'algorithm': 'local_only'}
  runs = [fish, write_scored(tmp_path / 'own', 5.0, **own)]
  assert 'clients ((not set) / 2)' in _notes(runs)[0]


@pytest.mark.parametrize(
  'ours, evaluation',
  [
    # Personal models are scored on own rows, and those must be there.
    ({'algorithm': 'local_only'}, {}),
    ({}, {'kind': 'own_test'}),
    ({'settings': _NO_HELD_OUT}, {}),
    (
      {'settings': {'data.sequence_length': 64}},
      {'personalization': {'sequence_length': 128}},
    ),
    # A round that is no longer there.
    ({}, {'round_num': 1}),
  ],
)
def test_no_command_for_what_cannot_be_measured(tmp_path, ours, evaluation):
  own = {'client_splits.test_fraction': 0.2}
  write_scored(tmp_path / 'a', 6.0, settings=own, evaluation=evaluation)
  run = write_run(tmp_path / 'b', **ours)
  (run / 'checkpoints/round_00000002').mkdir(parents=True)
  [first, *_] = _notes([tmp_path / 'a', run])
  assert first.endswith(' was not evaluated. It cannot be evaluated alike.')


def test_clients_that_one_side_lacks(tmp_path):
  own = {'settings': {'client_splits.test_fraction': 0.2}}
  own['evaluation'] = {'kind': 'own_test'}
  losses = {'fed_avg': [(6.0, 6.1, 9.0)] * 3, 'local_only': [(5.0, 5.1)] * 3}
  assert (
    '1 client of own test rows that only one of Local models and FedAvg was '
    'scored on is not compared.'
  ) in _notes(write_methods(tmp_path, losses, all=own))

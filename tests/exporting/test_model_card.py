"""The model card has facts of the run's files, and three paragraphs."""

import dataclasses
import json
import re
import shutil

import pandas as pd
import planned_configs
import pytest
import small_runs

from tff_fedfish.cli.main import main
from tff_fedfish.exporting import export, model_card
from tff_fedfish.exporting.trained_model import load_trained_model
from tff_fedfish.run import tables


def _card(checkpoint):
  return model_card.render(load_trained_model(checkpoint), ['safetensors'])


def _rows(card):
  """First cell of every line of a table -> the other one."""
  return dict(re.findall(r'^\| `(.*)` \| (.*) \|$', card, re.MULTILINE))


@pytest.fixture(scope='module')
def card(small_run):
  """The card of the last checkpoint."""
  return _card(small_run)


@pytest.fixture
def run(small_run, tmp_path):
  """A copy of the run, to be changed."""
  ignored = shutil.ignore_patterns('tensorboard', 'round_0000000[012]')
  return shutil.copytree(small_run, tmp_path / 'run', ignore=ignored)


def _change(run, **sections):
  """Changes sections of the run's config."""
  path = run / 'config.json'
  config = json.loads(path.read_text())
  for name, values in sections.items():
    config[name] = values if name == 'algorithm' else config[name] | values
  small_runs.write_config(run, config)


def test_headings(card):
  assert card.startswith('# Language model: FedFish, round 4\n')
  assert re.findall('^## (.*)$', card, re.MULTILINE) == [
    *('Model', 'Data', 'Rounds', 'Settings'),
    *('Scores', 'Privacy', 'Memorization', 'Licence'),
  ]


def test_model_data_and_rounds(card, small_run):
  rows = _rows(card)
  # 12 L D^2 + 13 L D + V D + S D + 2 D with L = 1, D = 16, V = 256, S = 8:
  # 3,072 + 208 + 4,096 + 128 + 32.
  assert rows['parameters'] == '7536'
  assert (rows['corpus'], rows['source']) == ('grouped12', 'c4')
  assert rows['grouped by'] == 'host'
  assert rows['vocabulary'] == 'wordpiece, 256 pieces'
  assert rows['round'] == '4 of 4'
  # 4 rounds of 3 clients.
  name = 'client-rounds (clients drawn, summed over rounds)'
  assert rows[name] == '12'
  metrics = tables.read_metrics(small_run / 'metrics.csv')
  total = sum(row['train/num_tokens'] for row in metrics[1:])
  assert rows['tokens trained on'] == str(total)


def test_settings_that_are_read(card, run):
  rows = _rows(card)
  assert rows['algorithm.name'] == 'fed_fish'
  assert rows['client_work.num_local_epochs'] == '2'
  assert rows['server.beta_1'] == '0.9'
  assert rows['cohorts.cohort_size'] == '3'
  assert rows['seeds.split_seed'] == '3'
  for name in ('privacy_seed', 'partition_seed'):
    assert f'seeds.{name}' not in rows
  assert 'local_privacy.clip_norm' not in rows
  _change(run, algorithm={'name': 'fed_avg'}, server={'optimizer': 'sgd'})
  rows = _rows(_card(run))
  assert rows['server.learning_rate'] == '0.001'
  assert not [name for name in rows if 'fisher_e' in name or 'beta' in name]


def _scores(card):
  """The section of scores: cells of each line of its table, and the rest."""
  section = card.split('## Scores')[1].split('## Privacy')[0]
  lines = [line for line in section.splitlines() if line]
  rows = [line[2:-2].split(' | ') for line in lines if line.startswith('|')]
  return rows[2:], ' '.join(lines[len(rows) :])


def test_scores_of_the_round(card, run, small_run):
  last = tables.read_metrics(small_run / 'metrics.csv')[-1]
  [[*words, loss, interval, accuracy]], _ = _scores(card)
  assert words == ['in training', 'grouped12', 'held_out', '1', '0%']
  assert (loss, interval) == (f'{last["held_out/loss"]:.4f}', '')
  assert accuracy == f'{last["held_out/accuracy"]:.2%}'
  assert 'train/loss' not in card
  # Held-out clients are scored at rounds 0, 2 and 4.
  card = _card(run / 'checkpoints' / 'round_00000003')
  assert _scores(card) == ([], 'Round 3 was not evaluated.')


def test_a_round_that_was_chosen_says_so(run):
  metrics = tables.read_metrics(run / 'metrics.csv')
  losses = {row['round']: row['held_out/loss'] for row in metrics}
  assert losses[4] == min(losses[r] for r in (0, 2, 4))
  assert _rows(_card(f'{run}@best'))['round'] == (
    '4 of 4; the best of 3 evaluated rounds, chosen on held-out clients'
  )
  assert _rows(_card(run))['round'] == '4 of 4'


def test_scores_that_are_not_finite(run):
  metrics = run / 'metrics.csv'
  loss = tables.read_metrics(metrics)[-1]['held_out/loss']
  metrics.write_text(metrics.read_text().replace(str(loss), 'nan'))
  [row], _ = _scores(_card(run))
  assert row[-3:] == ['not finite', '', 'not finite']


def test_evaluations_of_the_round(run, small_inputs):
  argv = ['evaluate', '--data', str(small_inputs[0]), '--fractions', '0,0.5']
  argv += ['--client_split', 'participating', '--checkpoint']
  output = run / 'evaluations'
  for name, round_num, rate in (
    ('last', 4, '0.1'),
    ('other', 3, '0.1'),
    ('steep', 4, '1e30'),
  ):
    checkpoint = run / 'checkpoints' / f'round_0000000{round_num}'
    names = [str(checkpoint), '--output', str(output / name)]
    assert main([*argv, *names, '--learning_rate', rate]) == 0
  clients = pd.read_csv(output / 'last' / 'per_client.csv')
  (_, before, after, _, diverged), caption = _scores(_card(run))
  for row, fraction in ((before, 0), (after, 0.5)):
    scored = clients[clients['fraction'] == fraction]
    assert row[:4] == ['last', 'grouped12', 'participating', str(len(scored))]
    assert row[5] == f'{scored["loss_after"].mean():.4f}'
    low, high = map(float, row[6].split(' to '))
    assert low < float(row[5]) < high
    assert row[7] == f'{scored["accuracy_after"].mean():.2%}'
  assert (before[4], after[4]) == ('0%', '50%, 4 epochs at rate 0.1')
  assert diverged[3] == f'0 of {len(scored)} finite'
  assert diverged[5:] == ['not finite', '', 'not finite']
  assert caption.startswith('Means over clients of one run: one seed.')


def test_only_the_run_is_read(run, tmp_path):
  """Neither a corpus that is gone nor a damaged evaluation stops an export."""
  evaluation = run / 'evaluations' / 'own'
  evaluation.mkdir(parents=True)
  (evaluation / 'summary.json').write_text('{"kind": ')
  link = tmp_path / 'link'
  link.symlink_to('gpt2')
  _change(
    run,
    data={'directory': '/nowhere/secret/forum'},
    training={'start_from': str(link)},
  )
  identity = json.loads((run / 'corpus.json').read_text())
  identity |= {'name': 'posts', 'part': 'train'}
  (run / 'corpus.json').write_text(json.dumps(identity))
  export.export(run, tmp_path / 'out', ['safetensors'])
  card = (tmp_path / 'out' / 'README.md').read_text()
  assert _scores(card)[1].endswith('Evaluation own could not be read.')
  rows = _rows(card)
  assert (rows['corpus'], rows['source']) == ('posts, train', 'posts')
  assert rows['trained from'] == 'gpt2'
  assert 'secret' not in card
  config = json.loads((tmp_path / 'out' / 'config.json').read_text())
  assert config['run']['training']['start_from'] == 'gpt2'


def test_privacy(card):
  assert (
    'The server took sums over the clients of 2 models each, formed in the '
    'clear, without secure aggregation. No noise was added: there is no '
    'formal guarantee'
  ) in card


@pytest.mark.parametrize(
  ('config', 'method', 'round_num', 'sent'),
  [
    (
      *('fashion_mnist_one_shot', 'fed_fisher', 1),
      'was sent what each client trained, with a summary (kfac) of each '
      "client's data, in the clear.",
    ),
    (
      *('fashion_mnist_one_shot', 'ot_fusion', 1),
      'was sent what each client trained, in the clear.',
    ),
    (
      *('fashion_mnist_tct', 'tct', 20),
      'took sums over the clients of one model each, formed in the clear',
    ),
    (
      *('fashion_mnist_tct', 'tct', 21),
      'took sums over the clients of their models, and in one round of '
      'features of their rows, formed in the clear',
    ),
  ],
)
def test_what_was_sent(config, method, round_num, sent, small_run):
  config = planned_configs.shipped(config, algorithm__name=method)
  model = dataclasses.replace(
    load_trained_model(small_run),
    config=config.in_round(round_num),
    shape=config.model_shape(),
  )
  assert f'The server {sent}' in model_card.render(model, [])


def test_privacy_of_dp_sgd(run):
  _change(
    run,
    local_privacy={'clip_norm': 0.5, 'noise_multiplier': 2.0},
    algorithm={'name': 'fed_fish', 'fisher_estimator': 'last_epoch'},
    seeds={'privacy_seed': 12345678},
    training={'start_from': 'gpt2'},
  )
  metrics = run / 'metrics.csv'
  head, *lines = metrics.read_text().splitlines()
  names = 'privacy/epsilon_mean,privacy/epsilon_max'
  lines = [f'{line},0.5,1.25' for line in lines]
  metrics.write_text('\n'.join([f'{head},{names}', *lines, '']))
  card = _card(run)
  assert 'epsilon is at most 1.25 at delta 1e-05.' in card
  assert 'Nor is the training of the model that the run began with.' in card
  assert 'batches were shuffled: it is not a guarantee.' in card
  assert _rows(card)['local_privacy.noise_multiplier'] == '2.0'
  assert '12345678' not in card


def test_noise_of_a_method_of_ones_own_is_not_known(run):
  _change(run, algorithm={'name': 'own_methods.noisy_mean'})
  card = _card(run)
  assert 'whether it adds noise is not known here.' in card
  assert 'No noise was added' not in card

"""The model card says what the run's files say, and what they do not."""

import dataclasses
import json
import re
import shutil
from unittest import mock

import planned_configs
import pytest
import small_runs

from tff_fedfish.data import client_splits
from tff_fedfish.errors import FailedError
from tff_fedfish.exporting import export, model_card
from tff_fedfish.exporting.trained_model import load_trained_model
from tff_fedfish.run import tables


def _card(checkpoint, formats=('safetensors',)):
  return model_card.gather(load_trained_model(checkpoint)).render(formats)


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
    *('Model', 'Data', 'Rounds', 'Method', 'Settings', 'Scores'),
    *('Privacy', 'Memorization', 'Licence'),
  ]
  assert 'does not record the licence of its data' in card
  assert not card.startswith('---')


def test_model_and_rounds(card, small_run):
  rows = _rows(card)
  # 12 L D^2 + 13 L D + V D + S D + 2 D with L = 1, D = 16, V = 256, S = 8:
  # 3,072 + 208 + 4,096 + 128 + 32.
  assert rows['parameters'] == '7536'
  assert rows['round'] == '4 of 4'
  # 4 rounds of 3 clients.
  assert rows['clients that took part'] == '12'
  metrics = tables.read_metrics(small_run / 'metrics.csv')
  total = sum(row['train/num_tokens'] for row in metrics[1:])
  assert rows['tokens or images trained on'] == str(total)


def test_settings(card):
  rows = _rows(card)
  assert rows['algorithm.name'] == 'fed_fish'
  assert rows['algorithm.fisher_estimator'] == 'extra_pass'
  assert rows['client_work.num_local_epochs'] == '2'
  assert rows['server.beta_1'] == '0.9'
  assert rows['cohorts.cohort_size'] == '3'
  assert rows['seeds.split_seed'] == '3'
  for name in ('partition_seed', 'privacy_seed'):
    assert f'seeds.{name}' not in rows


def test_settings_that_nothing_reads_are_left_out(run):
  _change(run, algorithm={'name': 'fed_avg'}, server={'optimizer': 'sgd'})
  changed = _card(run)
  assert changed.startswith('# Language model: FedAvg, round 4\n')
  rows = _rows(changed)
  assert rows['server.learning_rate'] == '0.001'
  assert not [name for name in rows if 'fisher_e' in name or 'beta' in name]


def test_the_corpus_as_its_manifest_has_it(card):
  held_out = sum(
    client_splits.split_position(b'host%d.org' % i, split_seed=3) < 0.3
    for i in range(12)
  )
  rows = _rows(card)
  assert (rows['source'], rows['grouped by']) == ('c4', 'host')
  # Host i of 12 has i % 5 + 1 documents: 2 x 15 + 1 + 2.
  assert rows['examples'] == '33'
  assert rows['clients for training'] == str(12 - held_out)
  assert rows['clients held out'] == str(held_out)
  assert rows['vocabulary'] == 'wordpiece, 256 pieces'


def test_a_part_is_named_by_its_corpus(run):
  identity = json.loads((run / 'corpus.json').read_text())
  identity |= {'name': 'forum', 'part': 'train'}
  (run / 'corpus.json').write_text(json.dumps(identity))
  assert _rows(_card(run))['corpus'] == 'forum, train'


def test_a_corpus_that_is_gone(run):
  _change(run, data={'directory': '/nowhere/secret/forum'})
  found = model_card.gather(load_trained_model(run))
  assert found.remark == 'it could not be read when this was written'
  card = found.render(['safetensors'])
  assert 'examples' not in _rows(card)
  # The name is enough.
  assert 'secret' not in card


def test_a_store_that_cannot_be_reached(run, monkeypatch):
  opened = mock.Mock(side_effect=FailedError('no credentials'))
  monkeypatch.setattr(model_card.client_data, 'open_corpus', opened)
  found = model_card.gather(load_trained_model(run))
  assert found.remark == 'it could not be read when this was written'


def test_damaged_tokens(run, tmp_path):
  (tmp_path / 'forum_tokens').mkdir()
  (tmp_path / 'forum_tokens' / 'token_store.json').write_text('{')
  _change(run, data={'directory': str(tmp_path / 'forum_tokens')})
  found = model_card.gather(load_trained_model(run))
  assert found.remark == 'it could not be read when this was written'
  assert found.tables['Data']['corpus'] == 'forum_tokens'


def test_another_corpus_in_its_place(run):
  path = run / 'checkpoints' / 'round_00000004' / 'manifest.json'
  small_runs.edit_manifest(path, corpus_fingerprint='of another one')
  found = model_card.gather(load_trained_model(run))
  assert found.remark.startswith('another corpus was in its place')


def test_scores_of_the_round(card, run, small_run):
  metrics = tables.read_metrics(small_run / 'metrics.csv')
  rows = _rows(card)
  assert float(rows['held_out/loss']) == metrics[-1]['held_out/loss']
  assert float(rows['train/loss']) == metrics[-1]['train/loss']
  # Held-out clients are scored at rounds 0, 2 and 4.
  rows = _rows(_card(run / 'checkpoints' / 'round_00000003'))
  assert rows['held-out clients were scored at round'] == '2'
  assert float(rows['held_out/loss']) == metrics[2]['held_out/loss']
  assert float(rows['train/loss']) == metrics[3]['train/loss']


def test_a_damaged_evaluation_does_not_stop_an_export(run, tmp_path):
  evaluation = run / 'evaluations' / 'own'
  evaluation.mkdir(parents=True)
  (evaluation / 'summary.json').write_text('{"kind": ')
  (evaluation / 'per_client.csv').write_text('client_id\n"')
  export.export(run, tmp_path / 'out', ['safetensors'])
  assert (tmp_path / 'out' / 'README.md').is_file()


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
  assert f'The server {sent}' in model_card.gather(model).render([])


def test_privacy_of_dp_sgd(run):
  _change(
    run,
    local_privacy={'clip_norm': 0.5, 'noise_multiplier': 2.0},
    algorithm={'name': 'fed_fish', 'fisher_estimator': 'last_epoch'},
    seeds={'privacy_seed': 12345678},
  )
  metrics = run / 'metrics.csv'
  head, *lines = metrics.read_text().splitlines()
  names = 'privacy/epsilon_mean,privacy/epsilon_max'
  lines = [f'{line},0.5,1.25' for line in lines]
  metrics.write_text('\n'.join([f'{head},{names}', *lines, '']))
  card = _card(run)
  assert 'epsilon is at most 1.25 at delta 1e-05.' in card
  assert 'batches were shuffled, so that it is not a guarantee.' in card
  assert _rows(card)['local_privacy.noise_multiplier'] == '2.0'
  assert '12345678' not in card


def test_noise_of_a_method_of_ones_own_is_not_known(run):
  _change(run, algorithm={'name': 'own_methods.noisy_mean'})
  card = _card(run)
  assert 'whether it adds noise is not known here.' in card
  assert 'No noise was added' not in card


def test_its_start_is_named_as_in_the_config(run, tmp_path):
  link = tmp_path / 'link'
  link.symlink_to('gpt2')
  _change(run, training={'start_from': str(link)})
  model = load_trained_model(run)
  card = model_card.gather(model).render(['safetensors'])
  assert _rows(card)['trained from'] == 'gpt2'
  assert export.json_config(model)['run']['training']['start_from'] == 'gpt2'


def test_header_for_the_hub(small_run):
  card = _card(small_run, ['huggingface'])
  assert card.startswith('---\nlibrary_name: transformers\n')
  assert '\n---\n\n# Language model' in card

"""`fedfish evaluate` from end to end, and its parts by hand."""

import json
import os
import re
import shutil
import signal

import grouping_jobs
import numpy as np
import planned_configs
import pytest
import small_runs

from models.model_shapes import weight_shapes
from tff_fedfish import corpora
from tff_fedfish.cli.main import main
from tff_fedfish.data import grouped_corpus
from tff_fedfish.errors import UserError
from tff_fedfish.evaluation import plan, results, statistics
from tff_fedfish.evaluation.clients import halve_client
from tff_fedfish.evaluation.evaluator import build_evaluator
from tff_fedfish.evaluation.options import EvaluationOptions
from tff_fedfish.evaluation.unfinished import UnfinishedRows
from tff_fedfish.run import (
  build,
  checkpoints,
  cohorts,
  model_state,
  run_directory,
  tables,
)
from tff_fedfish.run.row_source import row_source
from tff_fedfish.training import check

_STAGE = re.compile(r'(\w.*) \.\.\. \d+\.\d s')


def _evaluate(run, data, output, *flags) -> int:
  arguments = ['--checkpoint', str(run), '--data', str(data)]
  return main(['evaluate', *arguments, '--output', str(output), *flags])


@pytest.fixture(scope='module')
def evaluated(small_inputs, small_run, tmp_path_factory):
  output = tmp_path_factory.mktemp('evaluation') / 'held_out'
  flags = ['--barrier', '--max_clients', '3', '--personalization_epochs', '2']
  assert _evaluate(small_run, small_inputs[0], output, *flags) == 0
  return output


class TestHeldOut:
  def test_every_client_at_every_fraction(self, evaluated):
    evaluation = results.read_evaluation(evaluated)
    assert evaluation.summary.kind == 'held_out'
    assert evaluation.summary.checkpoint == {'round': 4}
    by_client = evaluation.clients.groupby('client_id')
    assert len(by_client) == evaluation.summary.num_clients <= 3
    for _, rows in by_client:
      none, quarter, half = rows.itertuples()
      assert (none.fraction, quarter.fraction, half.fraction) == (0, 0.25, 0.5)
      assert none.num_personalization_sequences == 0
      assert none.loss_after == none.loss_before
      # n = evaluation + the 50 % set; the 25 % set is floor(n / 4).
      num_tuned = half.num_personalization_sequences
      total = half.num_evaluation_sequences + num_tuned
      assert num_tuned == total // 2
      assert quarter.num_personalization_sequences == total // 4 > 0
      assert half.loss_after != half.loss_before
      # One evaluation half for all fractions.
      assert rows['loss_before'].nunique() == 1
      assert rows['accuracy_before'].nunique() == 1
    assert evaluation.summary.unknown_token_fraction == 0

  def test_barrier_is_global_minus_local_on_the_cohort(self, evaluated):
    evaluation = results.read_evaluation(evaluated)
    barriers = evaluation.barriers
    assert len(barriers) == 3  # The cohort, none of it empty.
    gaps = barriers['global_loss'] - barriers['local_loss']
    measured = statistics.barrier_scores(barriers)
    assert measured.loss.mean == pytest.approx(gaps.mean())
    # Each client fits its own data better than the server's model does.
    assert gaps.min() > 0
    scored = set(evaluation.clients['client_id'])
    assert scored.isdisjoint(barriers['client_id'])

  def test_barrier_replays_the_round_that_training_ran(
    self, small_inputs, small_run, tmp_path, monkeypatch, capsys
  ):
    rounds_of_rates, with_rates = [], build.with_rates

    def record(process, state, config, round_num):
      rounds_of_rates.append(round_num)
      return with_rates(process, state, config, round_num)

    monkeypatch.setattr(build, 'with_rates', record)
    # From checkpoint 3 the replayed round is 4, whose outcome is checkpoint 4:
    # the barrier's global loss is that model's on round 4's training data.
    output = tmp_path / 'out'
    third = small_run / 'checkpoints' / 'round_00000003'
    flags = ['--barrier', '--fractions', '0', '--max_clients', '1']
    assert _evaluate(third, small_inputs[0], output, *flags) == 0
    errors = capsys.readouterr().err
    # 2 local epochs and a pass for the Fisher diagonal, twice, and 2 scorings.
    assert (
      'Then the barrier: 3 clients of a round train twice and are scored '
      'twice, 8 passes over their rows (the round itself has 3)\n'
    ) in errors
    # Each trains twice.
    assert 'barrier: client 6/6' in errors
    barriers = results.read_evaluation(output).barriers
    found = barriers.set_index('client_id')['global_loss'].to_dict()
    config = run_directory.read_config(small_run)
    inputs = check.check_run(config)
    fourth = small_run / 'checkpoints' / 'round_00000004'
    weights = model_state.trainable_by_name(
      checkpoints.load_checkpoint(fourth, model_state.TRAINABLE_PREFIX).tensors,
      weight_shapes(config.model_shape()),
      fourth,
    )
    evaluator = build_evaluator(config)
    rows = row_source(config).client_rows(inputs.corpus, inputs.tokenizer)
    expected = {
      client.client_id: evaluator.score(
        tuple(weights.values()), client.sequences()
      ).loss
      for client in cohorts.cohort(config, inputs.split.participating, rows, 4)
    }
    assert found == pytest.approx(expected, rel=1e-6)
    assert rounds_of_rates == [4]

  def test_shorter_sequences(self, small_inputs, small_run, tmp_path):
    output = tmp_path / 'out'
    flags = ['--sequence_length', '5', '--fractions', '0', '--max_clients', '1']
    assert _evaluate(small_run, small_inputs[0], output, *flags) == 0
    evaluation = results.read_evaluation(output)
    assert evaluation.summary.personalization['sequence_length'] == 5
    (entry,) = evaluation.clients.itertuples()
    assert entry.num_evaluation_tokens <= 5 * entry.num_evaluation_sequences

  def test_again_gives_the_same_bytes(
    self, small_inputs, small_run, evaluated, tmp_path
  ):
    flags = ['--barrier', '--max_clients', '3', '--personalization_epochs', '2']
    output = tmp_path / 'again'
    assert _evaluate(small_run, small_inputs[0], output, *flags) == 0
    for name in ('per_client.csv', 'barrier.csv', 'summary.json'):
      assert (output / name).read_bytes() == (evaluated / name).read_bytes()

  def test_global_score_is_the_one_training_logged(
    self, small_inputs, small_run, tmp_path, monkeypatch
  ):
    monkeypatch.chdir(small_run / 'checkpoints')
    # Training watched 2 clients; the evaluation's sample begins with them.
    flags = ['--max_clients', '2', '--fractions', '0']
    output = tmp_path / 'out'
    assert _evaluate('round_00000002', small_inputs[0], output, *flags) == 0
    found = results.read_evaluation(output)
    assert found.summary.checkpoint == {'round': 2}
    row = tables.read_metrics(small_run / 'metrics.csv')[2]
    assert found.clients['loss_after'].mean() == pytest.approx(
      row['held_out/loss'], rel=1e-6
    )


def test_all_clients_of_another_corpus(small_run, tmp_path):
  # Hosts of 1 to 5 documents, the ninth of 4.
  other = small_runs.make_corpus(tmp_path, num_hosts=9)
  summaries = {}
  for unit, flags in (
    # The run's own, by which it scored in training.
    ('sequences', ['--fractions', '0,0.5']),
    ('documents', ['--split_unit', 'documents', '--fractions', '0']),
  ):
    output = tmp_path / unit
    assert _evaluate(small_run, other, output, *flags) == 0
    found = results.read_evaluation(output)
    summaries[unit] = found.summary
    assert summaries[unit].kind == 'transfer'
    assert found.barriers is None
    assert summaries[unit].personalization['split_unit'] == unit
  assert summaries['sequences'].num_clients == 9
  assert summaries['documents'].num_clients == 3
  assert summaries['documents'].skipped_clients['too_few_documents'] == 6


def test_unknown_tokens_of_what_is_evaluated(small_run, tmp_path, capsys):
  # 4 of a client's 8 sequences are used, 2 of them scored: 1 or 2 of the
  # documents, as the order is drawn. Only the first client has unknown tokens.
  lines = [
    {'text': text, 'url': f'http://{host}/'}
    for host, last in (('h', 'и'), ('i', 'a'))
    for text in ['a a a a a a a a'] * 6 + [' '.join([last] * 8)] * 2
  ]
  data = grouping_jobs.group_lines(tmp_path, lines, num_shards=1)
  config = run_directory.read_config(small_run)
  inputs = check.check_run(config)
  rows = row_source(config).client_rows(
    grouped_corpus.GroupedCorpus(data), inputs.tokenizer
  )
  scored = [
    halve_client(
      rows,
      client_id,
      split_seed=config.seeds.split_seed,
      unit='sequences',
      max_sequences=4,
    ).evaluation.tokens
    for client_id in (b'h', b'i')
  ]
  unknown = inputs.tokenizer.unknown_id
  assert np.any(scored[0] == unknown) and not np.any(scored[1] == unknown)
  expected = np.mean(np.concatenate(scored) == unknown)
  output = tmp_path / 'evaluation'
  flags = ['--fractions', '0,0.5', '--max_sequences_per_client', '4']
  assert _evaluate(small_run, data, output, *flags) == 0
  summary = results.read_evaluation(output).summary
  assert summary.unknown_token_fraction == expected > 0.05
  shown = ' '.join(capsys.readouterr().out.split())
  assert f'Unknown tokens: {100 * expected:.2f} % (warning: above' in shown
  assert 'Fine-tuning: 4 epochs, learning rate 0.' in shown
  # 8 - 4 of each client.
  assert 'Sequences left out: 8 (beyond --max_sequences_per_client)' in shown


def test_stopped_it_continues(small_run, tmp_path, monkeypatch, capsys):
  data = small_runs.make_corpus(tmp_path, num_hosts=9)
  arguments = (small_run, data, tmp_path / 'out')
  flags = ['--fractions', '0,0.5', '--max_clients', '4']
  assert _evaluate(*arguments[:2], tmp_path / 'whole', *flags) == 0
  shown = capsys.readouterr()
  assert 'Clients left out: 5 (beyond --max_clients)' in shown.out
  assert '(5 clients left out: --max_clients all takes all)' in shown.err
  add = UnfinishedRows.add

  def stop(self, entries):
    add(self, entries)
    if len(self.client_ids) == 2:
      assert _evaluate(*arguments, *flags) == 2
      assert 'is being written by the same command' in capsys.readouterr().err
      os.kill(os.getpid(), signal.SIGTERM)

  with monkeypatch.context() as patch:
    patch.setattr(UnfinishedRows, 'add', stop)
    assert _evaluate(*arguments, *flags) == 143
  line = 'interrupted. 2 of 4 clients are kept; the same command continues.\n'
  assert capsys.readouterr().err.endswith(f'fedfish: {line}')
  # Another process ended it between the check of its output and its turn.
  begin = UnfinishedRows.begin

  def begin_late(self, *args):
    (tmp_path / 'out').mkdir()
    (tmp_path / 'out' / 'summary.json').touch()
    begin(self, *args)

  [kept] = tmp_path.glob('.*.unfinished/per_client.csv')
  aside = kept.parent.rename(tmp_path / 'aside')
  with monkeypatch.context() as patch:
    patch.setattr(UnfinishedRows, 'begin', begin_late)
    assert _evaluate(*arguments, *flags) == 2
  shown = capsys.readouterr().err
  assert 'must be empty or new' in shown and 'evaluate: client' not in shown
  assert not [*tmp_path.glob('.*.unfinished')]
  shutil.rmtree(tmp_path / 'out')
  aside.rename(kept.parent)
  # Other options neither continue nor end it.
  assert _evaluate(*arguments[:2], tmp_path / 'out', '--fractions', '0') == 0
  assert 'Continuing' not in capsys.readouterr().err
  shutil.rmtree(tmp_path / 'out')
  # As if it had been killed while it wrote: a whole row, and half a row.
  [kept] = tmp_path.glob('.*.unfinished/per_client.csv')
  text = kept.read_text()
  more = text.splitlines()[1].replace('host', 'killed')
  kept.write_text(f'{text}{more}\n{more[:9]}')
  assert _evaluate(*arguments, *flags) == 0
  assert 'Continuing after 2 of 4 clients.' in capsys.readouterr().err
  for name in ('per_client.csv', 'summary.json'):
    whole = (tmp_path / 'whole' / name).read_bytes()
    assert (tmp_path / 'out' / name).read_bytes() == whole
  assert not [*tmp_path.glob('.*.unfinished')]


def test_what_happens_before_the_first_client(
  small_inputs, small_run, tmp_path, capsys, monkeypatch
):
  monkeypatch.setattr('tff_fedfish.progress._MIN_STAGE_SECONDS', 0)
  flags = ['--fractions', '0', '--max_clients', '2']
  assert _evaluate(small_run, small_inputs[0], tmp_path / 'out', *flags) == 0
  lines = capsys.readouterr().err.splitlines()
  done = [stage[1] for line in lines if (stage := _STAGE.fullmatch(line))]
  assert done == [
    'opening the corpus',
    'opening the checkpoint',
    'importing TensorFlow Federated',
    'choosing clients',
    'building the model',
    'tracing, first client',
  ]
  # One client is large enough; it was evaluated while tracing.
  assert 'evaluate: client 1/1, loss ' in lines[-1]


class TestRefusals:
  def _fails(self, capsys, words, run, data, output, *flags):
    assert _evaluate(run, data, output, *flags) == 2
    error = capsys.readouterr().err
    assert error.count('\n') == 1
    assert words in error

  def test_vocabulary_of_the_wrong_size_for_the_checkpoint(
    self, small_inputs, small_run, tmp_path, capsys
  ):
    run = shutil.copytree(small_run, tmp_path / 'run')
    shutil.rmtree(run / 'vocabulary')
    shutil.copytree(corpora.demo_vocabulary(), run / 'vocabulary')
    self._fails(
      capsys,
      'The model has 256 token ids',
      *(run, small_inputs[0], tmp_path / 'out'),
    )

  def test_checkpoint_of_another_model(
    self, small_inputs, small_run, tmp_path, capsys
  ):
    run = shutil.copytree(small_run, tmp_path / 'run')
    config = json.loads((run / 'config.json').read_text())
    config['model']['width'] = 32
    (run / 'config.json').write_text(json.dumps(config))
    arguments = (run, small_inputs[0], tmp_path / 'out')
    self._fails(capsys, 'was made with other settings than', *arguments)
    small_runs.write_config(run, config)
    self._fails(capsys, 'is of another model or method', *arguments)
    assert not (tmp_path / 'out').exists()

  def test_no_checkpoint(self, small_inputs, tmp_path, capsys):
    arguments = tmp_path, small_inputs[0], tmp_path / 'out'
    self._fails(capsys, '`--checkpoint` must be a checkpoint', *arguments)
    (tmp_path / 'sweep.json').touch()
    (tmp_path / 'arms' / 'fed_avg-E1').mkdir(parents=True)
    words = 'is a sweep. Its runs in arms/: fed_avg-E1. Name'
    self._fails(capsys, words, *arguments)

  def test_barrier_of_a_run_in_phases(self):
    config = planned_configs.shipped('fashion_mnist_tct').in_round(1)
    options = EvaluationOptions(barrier=True)
    words = "^`--barrier` is not available for 'tct'. Leave it out.$"
    with pytest.raises(UserError, match=words):
      plan.require_measurable(config, options, 'x', is_own_corpus=True)

  def test_test_rows_of_validation_clients(self):
    config = planned_configs.shipped(
      'fashion_mnist_tct', client_splits__validation_clients_fraction=0.5
    )
    options = EvaluationOptions(client_split='own_test', fractions=(0.0,))
    words = '`client_splits.validation_clients_fraction`, whose rows it would'
    with pytest.raises(UserError, match=words):
      plan.require_measurable(config, options, 'x', is_own_corpus=True)

  def test_output_in_use(self, small_inputs, small_run, evaluated, capsys):
    self._fails(capsys, 'already holds', small_run, small_inputs[0], evaluated)

  def test_nobody_has_enough(self, small_run, tmp_path, capsys):
    # One host with one document of few tokens.
    lines = [{'text': 'a', 'url': 'http://a.org/'}]
    data = grouping_jobs.group_lines(tmp_path, lines, num_shards=1)
    capsys.readouterr()
    for unit in ('sequences', 'documents'):
      self._fails(
        capsys,
        f'must have clients with at least 4 {unit}, but none of its 1 has.',
        *(small_run, data, tmp_path / 'scores', '--split_unit', unit),
      )

"""`fedfish evaluate` from end to end, and its parts by hand."""

import csv
import json
import re
import shutil

import grouping_jobs
import numpy as np
import pytest
import small_runs

from models.model_shapes import weight_shapes
from tff_fedfish.cli.main import main
from tff_fedfish.data import grouped_corpus
from tff_fedfish.errors import UserError
from tff_fedfish.evaluation import evaluate, results
from tff_fedfish.evaluation.clients import halve_client
from tff_fedfish.evaluation.evaluator import build_evaluator
from tff_fedfish.run import (
  checkpoints,
  cohorts,
  model_state,
  run_directory,
)
from tff_fedfish.run.corpus_identity import CorpusIdentity
from tff_fedfish.run.row_source import row_source
from tff_fedfish.training import check

_STAGE = re.compile(r'(\w.*) \.\.\. \d+\.\d s')


# As all clients of a part `train` take part, none is scored while training.
_ON_PARTS = {
  'client_splits.held_out_fraction': 0.0,
  'evaluation.num_clients': 0,
  'training.num_rounds': 1,
}


def _make_parts(directory, num_hosts):
  """Groups hosts into the parts `train` and `held_out`."""
  raw, output = directory / 'raw.json.gz', directory / 'parts'
  small_runs.write_raw_corpus(raw, num_hosts)
  command = ['group', 'c4', '--input', str(raw), '--output', str(output)]
  split = ['--split_by', 'client', '--held_out_fraction', '0.4']
  assert main([*command, *split, '--num_shards', '2']) == 0
  return output


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

  def test_summary_is_the_mean_of_the_rows(self, evaluated):
    evaluation = results.read_evaluation(evaluated)
    means = evaluation.clients.groupby('fraction')['loss_after'].mean()
    for part in evaluation.summary.fractions:
      mean = pytest.approx(means[part.fraction])
      assert part.loss.mean == mean
      assert part.loss.ci_low <= part.loss.mean <= part.loss.ci_high
      assert np.log(part.perplexity['of_mean_loss']) == mean

  def test_barrier_is_global_minus_local_on_the_cohort(self, evaluated):
    evaluation = results.read_evaluation(evaluated)
    barriers = evaluation.barriers
    assert len(barriers) == 3  # The cohort, none of it empty.
    gaps = barriers['global_loss'] - barriers['local_loss']
    barrier = evaluation.summary.client_server_barrier
    assert barrier.loss.mean == pytest.approx(gaps.mean())
    # Each client fits its own data better than the server's model does.
    assert gaps.min() > 0
    scored = set(evaluation.clients['client_id'])
    assert scored.isdisjoint(barriers['client_id'])
    # Fisher diagonals of the 3 clients differ.
    assert 1 < evaluation.summary.effective_clients.mean < 2.99

  def test_barrier_replays_the_round_that_training_ran(
    self, small_inputs, small_run, tmp_path
  ):
    # From checkpoint 3 the replayed round is 4, whose outcome is checkpoint 4:
    # the barrier's global loss is that model's on round 4's training data.
    output = tmp_path / 'out'
    third = small_run / 'checkpoints' / 'round_00000003'
    flags = ['--barrier', '--fractions', '0', '--max_clients', '1']
    assert _evaluate(third, small_inputs[0], output, *flags) == 0
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

  def test_shorter_sequences(self, small_inputs, small_run, tmp_path):
    output = tmp_path / 'out'
    flags = ['--sequence_length', '5', '--fractions', '0', '--max_clients', '1']
    assert _evaluate(small_run, small_inputs[0], output, *flags) == 0
    evaluation = results.read_evaluation(output)
    assert evaluation.summary.personalization['sequence_length'] == 5
    (entry,) = evaluation.clients.itertuples()
    assert entry.num_evaluation_tokens <= 5 * entry.num_evaluation_sequences

  def test_checkpoint_named_from_inside_the_run(
    self, small_inputs, small_run, tmp_path, monkeypatch
  ):
    monkeypatch.chdir(small_run / 'checkpoints')
    flags = ['--fractions', '0', '--max_clients', '1']
    output = tmp_path / 'out'
    assert _evaluate('round_00000002', small_inputs[0], output, *flags) == 0
    summary = json.loads((output / 'summary.json').read_text())
    assert summary['checkpoint'] == {'round': 2}

  def test_again_gives_the_same_bytes(
    self, small_inputs, small_run, evaluated, tmp_path
  ):
    flags = ['--barrier', '--max_clients', '3', '--personalization_epochs', '2']
    output = tmp_path / 'again'
    assert _evaluate(small_run, small_inputs[0], output, *flags) == 0
    for name in ('per_client.csv', 'barrier.csv', 'summary.json'):
      assert (output / name).read_bytes() == (evaluated / name).read_bytes()

  def test_global_score_is_the_one_training_logged(
    self, small_inputs, small_run, tmp_path
  ):
    # Training watched 2 clients; the evaluation's sample begins with them.
    output = tmp_path / 'out'
    flags = ['--max_clients', '2', '--fractions', '0']
    assert _evaluate(small_run, small_inputs[0], output, *flags) == 0
    summary = json.loads((output / 'summary.json').read_text())
    with open(small_run / 'metrics.csv', newline='') as file:
      last = list(csv.DictReader(file))[-1]
    assert summary['fractions'][0]['loss']['mean'] == pytest.approx(
      float(last['held_out/loss']), rel=1e-6
    )


class TestTransfer:
  def test_all_clients_of_another_corpus(self, small_run, tmp_path):
    other = small_runs.make_corpus(tmp_path, num_hosts=9)
    output = tmp_path / 'out'
    assert _evaluate(small_run, other, output, '--fractions', '0,0.5') == 0
    summary = json.loads((output / 'summary.json').read_text())
    assert summary['kind'] == 'transfer'
    assert summary['client_server_barrier'] is None
    assert [part['fraction'] for part in summary['fractions']] == [0, 0.5]
    assert (
      summary['num_clients'] + sum(summary['skipped_clients'].values()) == 9
    )


class TestSplitUnit:
  def test_documents_and_sequences(self, small_run, tmp_path):
    # Hosts of 1 to 5 documents, the ninth of 4.
    other = small_runs.make_corpus(tmp_path, num_hosts=9)
    summaries = {}
    for unit in (None, 'documents', 'sequences'):
      output = tmp_path / str(unit)
      flags = ['--split_unit', unit] if unit else []
      assert _evaluate(small_run, other, output, *flags) == 0
      summaries[unit] = json.loads((output / 'summary.json').read_text())
    found = summaries['documents']
    assert found['num_clients'] == 3
    assert found['skipped_clients']['too_few_documents'] == 6
    assert found['personalization']['split_unit'] == 'documents'
    # The run's own, by which it scored in training.
    assert summaries[None] == summaries['sequences']
    assert summaries[None]['personalization']['split_unit'] == 'sequences'
    assert summaries[None]['num_clients'] == 9

  def test_corpus_of_single_documents(self, small_run, tmp_path, capsys):
    other = small_runs.make_corpus(tmp_path, num_hosts=3)
    flags = ['--split_unit', 'documents']
    assert _evaluate(small_run, other, tmp_path / 'out', *flags) == 2
    assert (
      'must have clients with at least 4 documents, but none of its 3 has.'
    ) in capsys.readouterr().err


class TestParts:
  """A run on one part of a split, evaluated on others."""

  @pytest.fixture(scope='class')
  def parts(self, tmp_path_factory):
    return _make_parts(tmp_path_factory.mktemp('parts'), num_hosts=12)

  @pytest.fixture(scope='class')
  def run(self, parts, small_inputs, tmp_path_factory):
    run = tmp_path_factory.mktemp('run') / 'run'
    inputs = parts / 'train', small_inputs[1]
    assert small_runs.train(inputs, run, **_ON_PARTS) == 0
    return run

  def test_other_part_is_held_out(self, run, parts, tmp_path, capsys):
    output = tmp_path / 'out'
    assert _evaluate(run, parts / 'held_out', output, '--fractions', '0') == 0
    assert 'c4, held_out (held_out), round 1' in capsys.readouterr().out
    summary = results.read_evaluation(output).summary
    assert summary.kind == 'held_out'
    assert summary.corpus == 'c4, held_out'
    corpus = grouped_corpus.GroupedCorpus(parts / 'held_out')
    trained_on = json.loads((run / 'corpus.json').read_text())
    assert summary.corpus_identity == CorpusIdentity(
      name='c4',
      key='host',
      part='held_out',
      grouping=trained_on['grouping'],
      fingerprint=corpus.fingerprint,
    )
    # All of its clients.
    skipped = sum(summary.skipped_clients.values())
    assert summary.num_clients + skipped == len(corpus.client_ids)

  def test_same_directory_name_of_another_corpus(self, run, tmp_path):
    other = _make_parts(tmp_path, num_hosts=9)
    output = tmp_path / 'evaluation'
    assert _evaluate(run, other / 'held_out', output, '--fractions', '0') == 0
    summary = results.read_evaluation(output).summary
    assert summary.kind == 'transfer'
    grouping = json.loads((run / 'corpus.json').read_text())['grouping']
    assert summary.corpus_identity.grouping != grouping

  def test_run_without_the_file(self, run, parts, tmp_path):
    older = tmp_path / 'older'
    shutil.copytree(run, older)
    (older / 'corpus.json').unlink()
    output = tmp_path / 'out'
    assert _evaluate(older, parts / 'held_out', output, '--fractions', '0') == 0
    assert results.read_evaluation(output).summary.kind == 'transfer'

  def test_older_run_goes_on_and_writes_it(
    self, run, parts, small_inputs, tmp_path
  ):
    older = tmp_path / 'older'
    shutil.copytree(run, older)
    (older / 'corpus.json').unlink()
    settings = _ON_PARTS | {'training.num_rounds': 2}
    inputs = parts / 'train', small_inputs[1]
    assert small_runs.train(inputs, older, **settings) == 0
    name = 'corpus.json'
    assert (older / name).read_bytes() == (run / name).read_bytes()

  @pytest.mark.parametrize(
    ('flags', 'words'),
    [
      (['--barrier'], "`--barrier` needs the run's own corpus as `--data`"),
      (['--client_split', 'participating'], "needs the run's own corpus"),
    ],
  )
  def test_only_the_run_s_own_part_has_a_cohort(
    self, run, parts, tmp_path, capsys, flags, words
  ):
    held_out = parts / 'held_out'
    assert _evaluate(run, held_out, tmp_path / 'out', *flags) == 2
    assert words in capsys.readouterr().err


class TestUnknownTokens:
  @pytest.fixture(scope='class')
  def russian(self, tmp_path_factory):
    """Two hosts with six documents; a document fills one sequence."""
    lines = [
      # Each 'a' is a piece, each Russian word unknown: with the end of the
      # text 9 tokens, 3 of them unknown.
      {'text': 'a a и a a мир a привет', 'url': f'http://h{i % 2}/{i}'}
      for i in range(12)
    ]
    return grouping_jobs.group_lines(
      tmp_path_factory.mktemp('russian'), lines, num_shards=1
    )

  def test_russian_for_a_latin_vocabulary(
    self, small_run, russian, tmp_path, capsys
  ):
    output = tmp_path / 'out'
    assert _evaluate(small_run, russian, output, '--fractions', '0,0.5') == 0
    summary = results.read_evaluation(output).summary
    assert summary.unknown_token_fraction == 3 / 9
    shown = ' '.join(capsys.readouterr().out.split())
    assert 'Unknown tokens: 33.33 % (warning: above 5 %, the' in shown

  def test_only_what_is_evaluated_counts(self, small_run, tmp_path):
    # 4 of the 8 sequences are used, 2 of them scored: 1 or 2 of the documents,
    # as the order is drawn.
    lines = [
      {'text': text, 'url': 'http://h/'}
      for text in ['a a a a a a a a'] * 6 + ['и и и и и и и и'] * 2
    ]
    data = grouping_jobs.group_lines(tmp_path, lines, num_shards=1)
    config = run_directory.read_config(small_run)
    inputs = check.check_run(config)
    rows = row_source(config).client_rows(
      grouped_corpus.GroupedCorpus(data), inputs.tokenizer
    )
    evaluated = halve_client(
      rows,
      b'h',
      split_seed=config.seeds.split_seed,
      unit='sequences',
      max_sequences=4,
    ).evaluation
    expected = np.mean(evaluated.tokens == inputs.tokenizer.unknown_id)
    output = tmp_path / 'evaluation'
    flags = ['--fractions', '0', '--max_sequences_per_client', '4']
    assert _evaluate(small_run, data, output, *flags) == 0
    summary = results.read_evaluation(output).summary
    assert summary.unknown_token_fraction == expected

  def test_own_language(self, evaluated):
    summary = results.read_evaluation(evaluated).summary
    assert summary.unknown_token_fraction == 0

  def test_images_have_none(
    self, small_images, small_image_run, tmp_path, capsys
  ):
    output = tmp_path / 'out'
    flags = ['--fractions', '0', '--max_clients', '1']
    assert _evaluate(small_image_run, small_images, output, *flags) == 0
    summary = results.read_evaluation(output).summary
    assert summary.unknown_token_fraction is None
    assert 'Unknown' not in capsys.readouterr().out


class TestStages:
  def test_what_happens_before_the_first_client(
    self, small_inputs, small_run, tmp_path, capsys, monkeypatch
  ):
    monkeypatch.setattr('tff_fedfish.progress._MIN_STAGE_SECONDS', 0)
    flags = ['--fractions', '0', '--max_clients', '2']
    assert _evaluate(small_run, small_inputs[0], tmp_path / 'out', *flags) == 0
    lines = capsys.readouterr().err.splitlines()
    done = [found[1] for line in lines if (found := _STAGE.fullmatch(line))]
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


class TestBadInput:
  def _fails(self, capsys, words, run, data, output, *flags):
    assert _evaluate(run, data, output, *flags) == 2
    error = capsys.readouterr().err
    assert error.count('\n') == 1
    assert words in error

  def test_fractions(self, small_inputs, small_run, tmp_path, capsys):
    output = tmp_path / 'out'
    self._fails(
      capsys,
      '`--fractions` must be numbers from 0 to 0.5',
      *(small_run, small_inputs[0], output, '--fractions', '0,0.75'),
    )
    assert not output.exists()

  def test_vocabulary_of_the_wrong_size_for_the_checkpoint(
    self, small_inputs, small_run, tmp_path, capsys
  ):
    from tff_fedfish import corpora

    run = tmp_path / 'run'
    shutil.copytree(small_run, run)
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
    run = tmp_path / 'run'
    shutil.copytree(small_run, run)
    config = json.loads((run / 'config.json').read_text())
    config['model']['width'] = 32
    (run / 'config.json').write_text(json.dumps(config))
    arguments = (run, small_inputs[0], tmp_path / 'out')
    self._fails(capsys, 'was made with other settings than', *arguments)
    small_runs.write_config(run, config)
    with pytest.raises(UserError, match='is of another model or method'):
      evaluate.evaluate(*arguments, evaluate.EvaluationOptions())
    assert not (tmp_path / 'out').exists()

  def test_longer_sequences_than_the_model_knows(
    self, small_inputs, small_run, tmp_path, capsys
  ):
    self._fails(
      capsys,
      '`--sequence_length` must be at most 8, as in training, found 9.',
      *(small_run, small_inputs[0], tmp_path / 'out', '--sequence_length', '9'),
    )

  def test_learning_rate(self, small_inputs, small_run, tmp_path, capsys):
    self._fails(
      capsys,
      '`--learning_rate` must be finite and above 0, found inf',
      *(small_run, small_inputs[0], tmp_path / 'out'),
      *('--learning_rate', 'inf'),
    )

  def test_no_checkpoint(self, small_inputs, tmp_path, capsys):
    self._fails(
      capsys,
      '`--checkpoint` must be a checkpoint',
      *(tmp_path, small_inputs[0], tmp_path / 'out'),
    )
    (tmp_path / 'sweep.json').touch()
    self._fails(
      capsys,
      f"is a sweep, whose runs are in '{tmp_path}/arms'. Name",
      *(tmp_path, small_inputs[0], tmp_path / 'out'),
    )

  def test_output_in_use(self, small_inputs, small_run, evaluated, capsys):
    self._fails(capsys, 'already holds', small_run, small_inputs[0], evaluated)

  def test_nobody_has_four_sequences(self, small_run, tmp_path, capsys):
    # One host with one document of few tokens.
    lines = [{'text': 'a', 'url': 'http://a.org/'}]
    data = grouping_jobs.group_lines(tmp_path, lines, num_shards=1)
    capsys.readouterr()
    self._fails(
      capsys,
      'must have clients with at least 4 sequences, but none of its 1 has.',
      *(small_run, data, tmp_path / 'scores'),
    )

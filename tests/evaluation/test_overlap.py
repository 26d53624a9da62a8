"""Clients and documents shared with the corpus that a run trained on."""

import dataclasses

import grouping_jobs
import pytest
import small_runs

from tff_fedfish.cli.main import main
from tff_fedfish.data.grouped_corpus import GroupedCorpus
from tff_fedfish.evaluation import overlap, results
from tff_fedfish.evaluation.options import EvaluationOptions
from tff_fedfish.evaluation.plan import plan_evaluation
from tff_fedfish.evaluation.summary import Overlap
from tff_fedfish.run import run_directory
from tff_fedfish.run.row_source import row_source


@pytest.fixture(scope='module')
def trained(small_inputs, small_run):
  """The documents of each client that trained."""
  corpus = GroupedCorpus(small_inputs[0])
  source = row_source(run_directory.read_config(small_run))
  return {
    client_id: [example['text'] for example in corpus.examples(client_id)]
    for client_id in source.split(corpus).participating
  }


@pytest.fixture
def plan_of(small_run, tmp_path):
  def plan(corpus, **settings):
    options = EvaluationOptions(max_clients=None)
    found = plan_evaluation(small_run, corpus, tmp_path / 'out', options)
    data = dataclasses.replace(found.config.data, **settings)
    config = dataclasses.replace(found.config, data=data)
    return dataclasses.replace(found, config=config)

  return plan


def test_another_corpus(small_run, trained, tmp_path, capsys):
  # The first of 20 clients has a document of training among its 4.
  [shared, *_] = next(iter(trained.values()))
  lines = [
    {'text': f'{host} {page}', 'url': f'http://{host}.com/'}
    for host in range(20)
    for page in range(4)
  ]
  lines[0]['text'] = shared.decode()
  data = grouping_jobs.group_lines(tmp_path, lines, num_shards=1)
  command = ['evaluate', '--checkpoint', str(small_run), '--data', str(data)]
  command += ['--fractions', '0', '--output', str(tmp_path / 'scores')]
  assert main([*command, '--split_unit', 'documents']) == 0
  num_training = sum(map(len, trained.values()))
  found = results.read_evaluation(tmp_path / 'scores').summary.overlap
  assert found == Overlap(
    clients=0,
    num_clients=20,
    documents=1,
    num_documents=80,
    num_training_documents=num_training,
  )
  assert (
    'Overlap with the training corpus: 0 of 20 clients, 1 of 80 documents '
    f'({num_training} of training read)\n'
  ) in capsys.readouterr().out


def test_the_same_hosts(small_tokens, trained, plan_of, tmp_path, monkeypatch):
  corpus = small_runs.make_corpus(tmp_path, num_hosts=9)
  plan = plan_of(corpus)
  common = [i for i in plan.corpus.client_ids if i in trained]
  expected = Overlap(
    clients=len(common),
    num_clients=9,
    documents=sum(len(trained[i]) for i in common),
    # Of hosts with 1 to 5 documents, and 1 to 4.
    num_documents=25,
    num_training_documents=sum(map(len, trained.values())),
  )
  client_ids = list(plan.corpus.client_ids)
  assert overlap.measure_overlap(plan, client_ids) == expected
  assert expected.line().startswith('Overlaps with training: ')
  # The training corpus as tokens, and both.
  tokens = str(small_tokens[0])
  other = small_runs.make_tokens(corpus, small_tokens[1])
  for evaluated in (corpus, other):
    found = plan_of(evaluated, directory=tokens)
    assert overlap.measure_overlap(found, client_ids) == expected
  # Texts are not compared with tokens.
  found = overlap.measure_overlap(plan_of(other), client_ids)
  assert found == Overlap(clients=len(common), num_clients=9)
  # Of many documents some are read.
  monkeypatch.setattr(overlap, '_MAX_TRAINING', 3)
  monkeypatch.setattr(overlap, '_MAX_OF_CLIENT', 2)
  found = overlap.measure_overlap(plan, client_ids)
  assert 3 <= found.num_training_documents < 8
  # Two hosts have one document.
  assert found.num_documents == 16


def test_what_cannot_be_told(small_inputs, plan_of, tmp_path):
  corpus = small_runs.make_corpus(tmp_path, num_hosts=9)
  assert overlap.measure_overlap(plan_of(small_inputs[0]), [b'a']) is None
  # The training corpus is gone, or another one lies there.
  for directory in (tmp_path / 'gone', corpus):
    plan = plan_of(corpus, directory=str(directory))
    assert overlap.measure_overlap(plan, [b'a']) is None


@pytest.mark.parametrize(
  ('clients', 'documents', 'is_large'),
  [(1, 8, False), (2, 0, True), (0, 9, True), (0, None, False)],
)
def test_beyond_a_tenth(clients, documents, is_large):
  found = Overlap(
    clients=clients,
    num_clients=10,
    documents=documents,
    num_documents=None if documents is None else 80,
    num_training_documents=None if documents is None else 100,
  )
  assert found.line().startswith('Overlaps with training: ') == is_large

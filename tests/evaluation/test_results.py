"""The directory of an evaluation: written whole, read back exactly."""

import json
import math
import os

import hypothesis
import numpy as np
import pandas as pd
import pytest
from hypothesis import strategies as st

from tff_fedfish.errors import UserError
from tff_fedfish.evaluation import results, tables
from tff_fedfish.evaluation.summary import Summary
from tff_fedfish.evaluation.tables import ClientBarrier, ClientEvaluation
from tff_fedfish.run.corpus_identity import CorpusIdentity

_IDENTITY = CorpusIdentity(
  name='c4', key='host', part='train', grouping='g', fingerprint='f'
)


def _client(client_id, fraction=0.0, loss=2.0, **values):
  return ClientEvaluation(
    **{
      'client_id': client_id,
      'fraction': fraction,
      'num_evaluation_sequences': 5,
      'num_evaluation_tokens': 600,
      'num_personalization_sequences': round(10 * fraction),
      'loss_before': loss,
      'accuracy_before': 0.25,
      'loss_after': 1 / 3,
      'accuracy_after': 0.5,
      **values,
    }
  )


def _barrier(client_id):
  return ClientBarrier(
    client_id=client_id,
    local_loss=2.0,
    global_loss=2.5,
    local_accuracy=0.5,
    global_accuracy=0.25,
  )


_CLIENTS = [_client(b'b'), _client(b'a', 0.5), _client(b'a')]


def _write(directory, clients=_CLIENTS, barriers=None, **options):
  facts = dict(
    kind='held_out',
    corpus='debian',
    corpus_identity=_IDENTITY,
    checkpoint={'round': 20},
    personalization={'epochs': 4, 'learning_rate': 0.1},
    num_clients=len({client.client_id for client in clients}),
    skipped_clients={'too_few_documents': 2},
    unknown_token_fraction=None,
  )
  summary = Summary(**facts | options)
  results.write_evaluation(directory, summary, clients, barriers)
  return summary


def _rows(table: pd.DataFrame, kind):
  return [kind(**row) for row in table.to_dict('records')]


def test_what_is_written_is_read(tmp_path):
  (tmp_path / 'empty').mkdir()
  summary = _write(
    tmp_path / 'empty',
    barriers=[_barrier(b'x')],
    unknown_token_fraction=0.25,
    num_scored_bytes=1500,
  )
  found = results.read_evaluation(tmp_path / 'empty')
  assert found.summary == summary
  # By client id and fraction.
  assert _rows(found.clients, ClientEvaluation) == [
    _CLIENTS[i] for i in (2, 1, 0)
  ]
  assert _rows(found.barriers, ClientBarrier) == [_barrier(b'x')]
  _write(tmp_path / 'new')
  assert results.read_evaluation(tmp_path / 'new').barriers is None


def test_the_files_as_others_read_them(tmp_path):
  _write(tmp_path / 'new', [_client(b'=a'), _client(b'a', 0.5)])
  assert (tmp_path / 'new' / 'per_client.csv').read_text() == (
    'client_id,fraction,num_evaluation_sequences,num_evaluation_tokens,'
    'num_personalization_sequences,loss_before,accuracy_before,loss_after,'
    'accuracy_after\n'
    '%3Da,0.0,5,600,0,2.0,0.25,0.3333333333333333,0.5\n'
    'a,0.5,5,600,5,2.0,0.25,0.3333333333333333,0.5\n'
  )
  summary = json.loads((tmp_path / 'new' / 'summary.json').read_text())
  assert list(summary) == [
    *('schema_version', 'kind', 'corpus', 'corpus_identity', 'checkpoint'),
    *('num_clients', 'skipped_clients', 'skipped_sequences'),
    *('unknown_token_fraction', 'num_scored_bytes', 'overlap'),
    'personalization',
  ]


@hypothesis.given(
  client_id=st.binary(), loss=st.floats(), accuracy=st.floats(0, 1, width=32)
)
def test_any_client_returns_exactly(
  tmp_path_factory, client_id, loss, accuracy
):
  path = tmp_path_factory.mktemp('rows') / 'rows.csv'
  client = _client(client_id, loss=loss, accuracy_before=np.float32(accuracy))
  tables.write_rows(path, ClientEvaluation, [client])
  (found,) = _rows(tables.read_rows(path, ClientEvaluation), ClientEvaluation)
  # As text, because nan is not equal to itself.
  expected = _client(client_id, loss=loss, accuracy_before=float(accuracy))
  assert repr(found) == repr(expected)


def test_personal_models(tmp_path):
  clients = [_client(i, model='personal') for i in (b'a', b'=b')]
  _write(tmp_path / 'out', clients, kind='own_test')
  found = results.read_evaluation(tmp_path / 'out')
  assert set(found.clients['model']) == {'personal'}
  # Of other evaluations it is not written.
  _write(tmp_path / 'other')
  assert 'model' not in (tmp_path / 'other' / 'per_client.csv').read_text()
  found = results.read_evaluation(tmp_path / 'other')
  assert set(found.clients['model']) == {'global'}


def test_no_client_id_is_a_formula(tmp_path):
  client_ids = (b'=1+1', b'+1', b'-1', b'@SUM(1)', b'\t=1', b'\r=1')
  rows = map(_barrier, client_ids)
  tables.write_rows(tmp_path / 'b.csv', ClientBarrier, rows)
  lines = (tmp_path / 'b.csv').read_text().splitlines()
  assert {line[0] for line in lines[1:]} == {'%'}
  found = tables.read_rows(tmp_path / 'b.csv', ClientBarrier)
  assert set(found['client_id']) == set(client_ids)


def test_a_round_in_which_no_client_could_be_measured(tmp_path):
  _write(tmp_path / 'e', barriers=[])
  text = (tmp_path / 'e' / 'barrier.csv').read_text()
  assert text == (
    'client_id,local_loss,global_loss,local_accuracy,global_accuracy\n'
  )
  found = results.read_evaluation(tmp_path / 'e').barriers
  assert found.empty
  # Arithmetic works without rows, too.
  assert math.isnan((found['global_loss'] - found['local_loss']).mean())


def test_other_directories_are_left_alone(tmp_path):
  (tmp_path / 'thesis.txt').write_text('draft')
  with pytest.raises(
    UserError, match="`--output` must be empty or new, but .* 'thesis.txt'"
  ):
    _write(tmp_path)
  assert os.listdir(tmp_path) == ['thesis.txt']
  (tmp_path / 'thesis.txt').unlink()
  # A failure leaves nothing behind.
  with pytest.raises(AttributeError):
    _write(tmp_path / 'a', barriers=[None])
  assert not os.listdir(tmp_path)


def test_what_is_no_evaluation(tmp_path):
  with pytest.raises(
    UserError, match='must be the directory of an evaluation, but summary.json'
  ):
    results.read_evaluation(tmp_path)
  _write(tmp_path / 'e')
  (tmp_path / 'e' / 'per_client.csv').unlink()
  with pytest.raises(UserError, match='but per_client.csv is not in it'):
    results.read_evaluation(tmp_path / 'e')


def test_what_earlier_versions_wrote(tmp_path):
  summary = _write(tmp_path / 'e')
  file = tmp_path / 'e' / 'summary.json'
  earlier = json.loads(file.read_text())
  del earlier['num_scored_bytes']
  earlier |= {'fractions': [{'loss': {'mean': 1.5}}], 'bootstrap': {'seed': 0}}
  file.write_text(json.dumps(earlier))
  assert results.read_evaluation(tmp_path / 'e').summary == summary


@pytest.mark.parametrize(
  ('change', 'words'),
  [
    ({'schema_version': 2}, 'version 1 or older, found 2'),
    ({'kind': 'local'}, '`kind` must be one of held_out, .*own_test'),
    ({'num_clients': None}, '`num_clients` must be a whole number'),
    ({'checkpoint': {}}, '`checkpoint.round` must be a whole number'),
    ({'unknown_token_fraction': math.nan}, 'must be a finite number'),
  ],
)
def test_a_damaged_summary(tmp_path, change, words):
  _write(tmp_path / 'e')
  file = tmp_path / 'e' / 'summary.json'
  file.write_text(json.dumps(json.loads(file.read_text()) | change))
  with pytest.raises(UserError, match=rf"summary.json' must .*{words}"):
    results.read_evaluation(tmp_path / 'e')


@pytest.mark.parametrize(
  ('lines', 'line_num', 'words'),
  [
    (['x,1.0,2.0,0.5,0.5', 'y,high,2.0,0.5,0.5'], 3, 'could not convert'),
    (['x,1.0,2.0,0.5'], 2, 'it has not one cell per column'),
    (['x,1.0,2.0,0.5,0.5,9'], 2, 'it has not one cell per column'),
    (['x,1.0,2.0,0.5,0.5', '', 'x%,1.0,2.0,0.5,0.5'], 4, 'two hexadecimal'),
    (None, 1, "column 'client_id' is missing"),
  ],
)
def test_damaged_lines_are_named(tmp_path, lines, line_num, words):
  path = tmp_path / 'barrier.csv'
  tables.write_rows(path, ClientBarrier, [])
  header = path.read_text().splitlines()
  path.write_text('' if lines is None else '\n'.join([*header, *lines, '']))
  with pytest.raises(
    UserError, match=rf"barrier.csv' must .* line {line_num} does .*{words}"
  ) as caught:
    tables.read_rows(path, ClientBarrier)
  assert '\n' not in str(caught.value)

"""Tests of an evaluation's directory: its summary by hand, and its files."""

import dataclasses
import json
import math
import os

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from tff_fedfish.errors import UserError
from tff_fedfish.evaluation import results, statistics

_NAN = math.nan
_PERSONALIZATION = {
  'epochs': 4,
  'learning_rate': 0.1,
  'batch_size': 4,
  'sequence_length': 128,
  'split_seed': 3,
}


def _client(client_id, fraction, before, after, accuracy=(0.25, 0.5)):
  return results.ClientEvaluation(
    client_id=client_id,
    fraction=fraction,
    num_evaluation_sequences=5,
    num_evaluation_tokens=600,
    num_personalization_sequences=round(10 * fraction),
    loss_before=before,
    accuracy_before=accuracy[0],
    loss_after=after,
    accuracy_after=accuracy[1],
  )


def _barrier(client_id, local_loss, global_loss, local_acc, global_acc):
  return results.ClientBarrier(
    client_id=client_id,
    local_loss=local_loss,
    global_loss=global_loss,
    local_accuracy=local_acc,
    global_accuracy=global_acc,
  )


def _summarize(clients, **options):
  return results.summarize_evaluation(
    clients,
    **{
      'kind': 'held_out',
      'corpus': 'debian_descriptions',
      'checkpoint': {'round': 20},
      'personalization': _PERSONALIZATION,
      'skipped_clients': {},
      **options,
    },
  )


def _clients():
  return [
    _client(b'b', 0.25, 3.0, 3.5, (0.25, 0.125)),
    _client(b'a', 0.25, 2.0, 1.5, (0.5, 0.625)),
    _client(b'c', 0.25, 4.0, 4.0, (0.0, 0.0)),
    _client(b'a', 0.0, 2.0, 2.0, (0.5, 0.5)),
    _client(b'b', 0.0, 3.0, 3.0, (0.25, 0.25)),
  ]


def _write(directory, **options):
  clients = _clients()
  barriers = [_barrier(b'x', 2.0, 2.5, 0.5, 0.25)]
  summary = _summarize(clients, barriers=barriers)
  results.write_evaluation(directory, summary, clients, barriers, **options)
  return summary, clients, barriers


def test_summary_by_hand():
  summary = _summarize(
    _clients(), skipped_clients={'too_few_sequences': 3, 'no_tokens': 1}
  )
  assert summary['schema_version'] == 1
  assert summary['kind'] == 'held_out'
  assert summary['corpus'] == 'debian_descriptions'
  assert summary['checkpoint'] == {'round': 20}
  assert summary['personalization'] == _PERSONALIZATION
  assert summary['num_clients'] == 3
  assert list(summary['skipped_clients'].items()) == [
    ('no_tokens', 1),
    ('too_few_sequences', 3),
  ]
  assert summary['client_server_barrier'] is None
  zero, quarter = summary['fractions']
  # Fraction 0: losses 2, 3, mean 2.5; nothing was personalized.
  assert zero['fraction'] == 0.0
  assert zero['loss']['mean'] == 2.5
  assert zero['loss']['num_clients'] == 2
  assert zero['share_of_clients_hurt'] is None
  # Fraction 0.25: losses after 1.5, 3.5, 4.0, mean 9 / 3 = 3; accuracies
  # 0.625, 0.125, 0, mean 0.25. One of three rose: b. c's is equal.
  assert quarter['fraction'] == 0.25
  assert quarter['loss']['mean'] == pytest.approx(3.0)
  assert quarter['loss']['p50'] == 3.5
  assert quarter['accuracy']['mean'] == pytest.approx(0.25)
  assert quarter['perplexity'] == {
    'of_mean_loss': pytest.approx(20.0855369231877)  # e ** 3
  }
  assert quarter['share_of_clients_hurt'] == pytest.approx(1 / 3)
  expected = statistics.summarize(np.array([1.5, 3.5, 4.0]), seed=0)
  assert quarter['loss'] == expected


def test_bits_per_byte_by_hand():
  clients = [
    _client(b'a', 0.0, 2.0, 2.0),
    _client(b'b', 0.0, 3.0, 3.0),
    _client(b'c', 0.0, _NAN, _NAN),
  ]
  summary = _summarize(clients, num_bytes={b'a': 500, b'b': 700, b'c': 900})
  # (2 x 600 + 3 x 600) / ln 2 / (500 + 700) = 2.5 / ln 2; c counts nowhere.
  (found,) = summary['fractions']
  assert found['bits_per_byte'] == pytest.approx(2.5 / math.log(2))
  assert found['worst_decile_loss'] == 3.0
  assert _summarize(clients)['fractions'][0]['bits_per_byte'] is None
  nothing = _summarize(clients, num_bytes={b'a': 0, b'b': 0, b'c': 0})
  assert nothing['fractions'][0]['bits_per_byte'] is None


def test_summary_does_not_depend_on_the_order():
  once = _summarize(_clients())
  assert _summarize(_clients()[::-1]) == once
  assert once['bootstrap'] == {'num_bootstrap': 2000, 'seed': 0}


def test_barrier_by_hand():
  # loss: 2.5 - 2 = 0.5 and 3 - 4 = -1, mean -0.25.
  # error: (1 - 0.25) - (1 - 0.5) = 0.25 and (1 - 0.5) - (1 - 0.375) = -0.125,
  # mean 0.0625.
  summary = _summarize(
    _clients(),
    barriers=[
      _barrier(b'y', 2.0, 2.5, 0.5, 0.25),
      _barrier(b'x', 4.0, 3.0, 0.375, 0.5),
    ],
  )['client_server_barrier']
  assert summary['loss']['mean'] == -0.25
  assert summary['error']['mean'] == 0.0625
  assert summary['num_clients'] == 2


def test_diverged_clients_are_counted_and_json_has_no_nan():
  clients = [
    _client(b'a', 0.5, 2.0, _NAN, (0.5, _NAN)),
    _client(b'b', 0.5, 2.0, 1.0),
    _client(b'c', 0.5, _NAN, _NAN, (_NAN, _NAN)),
    _client(b'd', 0.5, 2.0, math.inf),
  ]
  summary = _summarize(clients, barriers=[_barrier(b'x', 1.0, _NAN, 0, 0)])
  (half,) = summary['fractions']
  assert half['loss']['mean'] == 1.0
  assert half['loss']['num_clients'] == 1
  assert half['loss']['num_non_finite'] == 3
  # Of a, b and d, whose loss was finite before, a and d are worse off.
  assert half['share_of_clients_hurt'] == pytest.approx(2 / 3)
  assert summary['client_server_barrier']['loss']['num_non_finite'] == 1
  json.dumps(summary, allow_nan=False)


def test_perplexity_beyond_a_double():
  # e ** 710 > 1.8e308, the largest double.
  (half,) = _summarize([_client(b'a', 0.5, 2.0, 710.0)])['fractions']
  assert half['loss']['mean'] == 710.0
  assert half['perplexity'] == {'of_mean_loss': None}


def test_no_clients_at_all():
  summary = _summarize([], barriers=[], skipped_clients={'all': 2})
  assert summary['num_clients'] == 0
  assert summary['fractions'] == []
  assert summary['client_server_barrier']['num_clients'] == 0
  assert summary['client_server_barrier']['loss']['mean'] is None


def test_wrong_arguments():
  with pytest.raises(ValueError, match="`kind` must be one of .* found 'test'"):
    _summarize([], kind='test')
  twice = [_client(b'a%', 0.5, 2.0, 1.0)] * 2
  with pytest.raises(ValueError, match="Client 'a%25' must come once"):
    _summarize(twice)


def test_files_by_hand(tmp_path):
  summary, _, _ = _write(tmp_path / 'evaluations' / 'new')
  directory = tmp_path / 'evaluations' / 'new'
  assert sorted(os.listdir(directory)) == [
    'barrier.csv',
    'per_client.csv',
    'summary.json',
  ]
  assert (directory / 'per_client.csv').read_text() == (
    'client_id,fraction,num_evaluation_sequences,num_evaluation_tokens,'
    'num_personalization_sequences,loss_before,accuracy_before,loss_after,'
    'accuracy_after\n'
    'a,0.0,5,600,0,2.0,0.5,2.0,0.5\n'
    'a,0.25,5,600,2,2.0,0.5,1.5,0.625\n'
    'b,0.0,5,600,0,3.0,0.25,3.0,0.25\n'
    'b,0.25,5,600,2,3.0,0.25,3.5,0.125\n'
    'c,0.25,5,600,2,4.0,0.0,4.0,0.0\n'
  )
  assert (directory / 'barrier.csv').read_text() == (
    'client_id,local_loss,global_loss,local_accuracy,global_accuracy\n'
    'x,2.0,2.5,0.5,0.25\n'
  )
  assert json.loads((directory / 'summary.json').read_text()) == summary
  assert os.listdir(tmp_path / 'evaluations') == ['new']


def test_what_is_written_is_read(tmp_path):
  (tmp_path / 'empty').mkdir()
  summary, clients, barriers = _write(tmp_path / 'empty')
  found = results.read_evaluation(tmp_path / 'empty')
  assert found.summary == summary
  key = lambda client: (client.client_id, client.fraction)  # noqa: E731
  assert found.clients == sorted(clients, key=key)
  assert found.barriers == barriers
  results.write_evaluation(tmp_path / 'new', _summarize(clients), clients)
  assert results.read_evaluation(tmp_path / 'new').barriers is None


@hypothesis.given(
  client_id=st.binary(), loss=st.floats(), accuracy=st.floats(0, 1, width=32)
)
def test_any_client_returns_exactly(
  tmp_path_factory, client_id, loss, accuracy
):
  client = _client(client_id, 0.5, loss, 1 / 3, (np.float32(accuracy), 0.0))
  directory = tmp_path_factory.mktemp('evaluation')
  results.write_evaluation(directory, {'schema_version': 1}, [client])
  (found,) = results.read_evaluation(directory).clients
  # As text, because nan is not equal to itself.
  expected = dataclasses.replace(client, accuracy_before=float(accuracy))
  assert repr(found) == repr(expected)


def test_models_of_clients_own(tmp_path):
  clients = [
    dataclasses.replace(_client(client_id, 0.0, 1.0, 1.0), model='personal')
    for client_id in (b'a', b'=b')
  ]
  affinities = [
    results.Affinity(
      client_id=one, cluster=cluster, candidate_id=other, affinity=value
    )
    for one, cluster, other, value in (
      (b'=b', 1, b'=b', 0.1),
      (b'=b', 1, b'a', -2.5),
      (b'a', -1, b'=b', 0.0),
    )
  ]
  summary = _summarize(clients, kind='own_test')
  results.write_evaluation(
    tmp_path / 'out', summary, clients, affinities=affinities
  )
  lines = (tmp_path / 'out' / 'affinity.csv').read_text().splitlines()
  assert lines[0] == 'client_id,cluster,candidate_id,affinity'
  # In the order that they were given in.
  assert lines[2].endswith(',1,a,-2.5')
  found = results.read_evaluation(tmp_path / 'out')
  assert found.affinities == affinities
  assert sorted(found.clients, key=lambda c: c.client_id) == sorted(
    clients, key=lambda c: c.client_id
  )
  # Of other evaluations neither is written.
  other = [dataclasses.replace(client, model='global') for client in clients]
  results.write_evaluation(tmp_path / 'other', _summarize(other), other)
  assert 'model' not in (tmp_path / 'other' / 'per_client.csv').read_text()
  found = results.read_evaluation(tmp_path / 'other')
  assert not found.affinities
  assert {client.model for client in found.clients} == {'global'}


def test_no_client_id_is_a_formula(tmp_path):
  client_ids = (b'=1+1', b'+1', b'-1', b'@SUM(1)', b'\t=1', b'\r=1')
  clients = [_client(client_id, 0.0, 2.0, 2.0) for client_id in client_ids]
  barriers = [
    _barrier(client_id, 2.0, 2.5, 0.5, 0.25) for client_id in client_ids
  ]
  summary = _summarize(clients, barriers=barriers)
  results.write_evaluation(tmp_path / 'e', summary, clients, barriers)
  for name in ('per_client.csv', 'barrier.csv'):
    lines = (tmp_path / 'e' / name).read_text().splitlines()
    starts = [line[0] for line in lines[1:]]
    assert starts == ['%'] * len(client_ids)
  found = results.read_evaluation(tmp_path / 'e')
  assert {c.client_id for c in found.clients} == set(client_ids)
  assert {b.client_id for b in found.barriers} == set(client_ids)


def test_client_ids_as_older_versions_wrote_them(tmp_path):
  results.write_barriers(
    tmp_path / 'b.csv', [_barrier(b'=1', 2.0, 2.5, 0.5, 0)]
  )
  text = (tmp_path / 'b.csv').read_text()
  (tmp_path / 'b.csv').write_text(text.replace('%3D1', '=1'))
  [barrier] = results.read_barriers(tmp_path / 'b.csv')
  assert barrier.client_id == b'=1'


def test_other_directories_are_left_alone(tmp_path):
  (tmp_path / 'thesis.txt').write_text('draft')
  with pytest.raises(
    UserError, match="`--output` must be empty or new, but .* 'thesis.txt'"
  ):
    _write(tmp_path)
  assert os.listdir(tmp_path) == ['thesis.txt']
  (tmp_path / 'file').touch()
  with pytest.raises(UserError, match='`--output` must be a directory, but'):
    _write(tmp_path / 'file')


def test_a_failed_write_leaves_nothing(tmp_path):
  clients = _clients()
  with pytest.raises(ValueError, match='not JSON compliant'):
    results.write_evaluation(tmp_path / 'a', {'x': _NAN}, clients)
  with pytest.raises(ValueError, match='must come once'):
    results.write_evaluation(tmp_path / 'a', {}, clients + clients[:1])
  assert not list(tmp_path.iterdir())


def test_reading_what_is_no_evaluation(tmp_path):
  with pytest.raises(
    UserError, match='must be the directory of an evaluation, but summary.json'
  ):
    results.read_evaluation(tmp_path)
  (tmp_path / 'file').touch()
  with pytest.raises(UserError, match='must be the directory of an evaluatio'):
    results.read_evaluation(tmp_path / 'file')
  _write(tmp_path / 'e')
  (tmp_path / 'e' / 'per_client.csv').unlink()
  with pytest.raises(UserError, match='but per_client.csv is not in it'):
    results.read_evaluation(tmp_path / 'e')


def test_reading_a_newer_or_damaged_summary(tmp_path):
  _write(tmp_path / 'e')
  file = tmp_path / 'e' / 'summary.json'
  file.write_text('{"schema_version": 2}')
  with pytest.raises(UserError, match='has schema version 2, but this fedfish'):
    results.read_evaluation(tmp_path / 'e')
  for damaged in ('{"sche', '{}', '[]'):
    file.write_text(damaged)
    with pytest.raises(UserError, match='must be the summary .* is damaged'):
      results.read_evaluation(tmp_path / 'e')


@pytest.mark.parametrize(
  'lines, line_num, words',
  [
    (['x,1.0,2.0,0.5,0.5', 'y,high,2.0,0.5,0.5'], 3, 'could not convert'),
    (['x,1.0,2.0,0.5'], 2, 'it has not one cell per column'),
    (['x,1.0,2.0,0.5,0.5,9'], 2, 'it has not one cell per column'),
    (['x,1.0,2.0,0.5,0.5', '', 'x%,1.0,2.0,0.5,0.5'], 4, 'two hexadecimal'),
  ],
)
def test_damaged_lines_are_named(tmp_path, lines, line_num, words):
  _write(tmp_path / 'e')
  file = tmp_path / 'e' / 'barrier.csv'
  header = file.read_text().splitlines()[0]
  file.write_text('\n'.join([header, *lines, '']))
  with pytest.raises(
    UserError, match=rf"barrier.csv' must .* line {line_num} does .*{words}"
  ) as caught:
    results.read_evaluation(tmp_path / 'e')
  assert '\n' not in str(caught.value)


def test_missing_columns_are_named(tmp_path):
  _write(tmp_path / 'e')
  file = tmp_path / 'e' / 'per_client.csv'
  file.write_text(file.read_text().replace('loss_after', 'loss', 1))
  with pytest.raises(
    UserError, match="line 1 .*column 'loss_after' is missing"
  ):
    results.read_evaluation(tmp_path / 'e')
  file.write_text('')
  with pytest.raises(UserError, match='line 1 does not .column .* is missing'):
    results.read_evaluation(tmp_path / 'e')


def test_barrier_from_accuracies_by_hand():
  # Local accuracy (0.9, 0.8), global on the same data (0.7, 0.75):
  # error barrier (0.2 + 0.05) / 2 = 0.125.
  barriers = [
    results.ClientBarrier(
      client_id=name,
      local_loss=1.0,
      global_loss=1.5,
      local_accuracy=local,
      global_accuracy=global_,
    )
    for name, local, global_ in ((b'a', 0.9, 0.7), (b'b', 0.8, 0.75))
  ]
  summary = _summarize_barriers(barriers)
  assert summary['error']['mean'] == pytest.approx(0.125)
  assert summary['loss']['mean'] == pytest.approx(0.5)
  # A lower barrier may come from a worse local term: both stand beside it.
  assert summary['local_loss'] == {'mean': 1.0}
  assert summary['global_loss'] == {'mean': 1.5}


def test_a_round_in_which_no_client_could_be_measured(tmp_path):
  clients = _clients()
  summary = _summarize(clients, barriers=[])
  assert summary['client_server_barrier']['num_clients'] == 0
  results.write_evaluation(tmp_path / 'e', summary, clients, [])
  text = (tmp_path / 'e' / 'barrier.csv').read_text()
  assert text == (
    'client_id,local_loss,global_loss,local_accuracy,global_accuracy\n'
  )
  assert results.read_evaluation(tmp_path / 'e').barriers == []
  # As it was written before it had its header.
  (tmp_path / 'e' / 'barrier.csv').write_text('\n')
  assert results.read_evaluation(tmp_path / 'e').barriers == []
  (tmp_path / 'e' / 'barrier.csv').write_text('')
  with pytest.raises(UserError, match="column 'client_id' is missing"):
    results.read_evaluation(tmp_path / 'e')


def test_diverged_client_is_left_out_of_both_means():
  barriers = [
    results.ClientBarrier(
      client_id=name,
      local_loss=local_loss,
      global_loss=2.0,
      local_accuracy=local,
      global_accuracy=0.5,
    )
    for name, local_loss, local in ((b'a', 1.0, 0.7), (b'b', math.nan, 0.0))
  ]
  summary = _summarize_barriers(barriers)
  # Without b: 0.7 - 0.5; with it the mean would be (0.2 - 0.5) / 2 = -0.15.
  assert summary['error']['mean'] == pytest.approx(0.2)
  assert summary['error']['num_clients'] == summary['loss']['num_clients'] == 1


def _summarize_barriers(barriers):
  summary = results.summarize_evaluation(
    [],
    kind='held_out',
    corpus='c',
    checkpoint={'round': 1},
    personalization={},
    skipped_clients={},
    barriers=barriers,
  )
  return summary['client_server_barrier']

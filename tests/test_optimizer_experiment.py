"""docs/experiments/optimizers.md says what its CSV holds."""

import csv
import itertools
import pathlib

import pytest

_PAGES = pathlib.Path(__file__).parents[1] / 'docs' / 'experiments'
_TITLES = {
  'sgd': 'SGD',
  'adamw': 'AdamW',
  'adam': 'Adam',
  'nesterov': 'Nesterov',
}
_PAIRS = list(itertools.product(('sgd', 'adamw'), ('adam', 'nesterov')))


@pytest.fixture(name='rows', scope='module')
def _rows():
  with open(_PAGES / 'optimizers.csv', newline='') as file:
    return list(csv.DictReader(file))


def _of(rows, client, server, clients='federated'):
  return [
    row
    for row in rows
    if (row['client_optimizer'], row['server_optimizer']) == (client, server)
    and row['clients'] == clients
  ]


def _chosen(rows):
  return min(rows, key=lambda row: float(row['held_out_loss']))


def _line(clients, server, row):
  losses = (
    f'{float(row[name]):.3f}'
    for name in (
      'train_loss',
      'held_out_loss',
      'other_clients_loss',
      'other_clients_loss_at_50',
    )
  )
  rates = f'{row["client_learning_rate"]} | {row["server_learning_rate"]}'
  return f'| {clients} | {server} | {rates} | {" | ".join(losses)} |'


def chosen_lines(rows):
  lines = [
    _line(_TITLES[client], _TITLES[server], _chosen(_of(rows, client, server)))
    for client, server in _PAIRS
  ]
  for client in ('sgd', 'adamw'):
    row = _chosen(_of(rows, client, 'sgd', 'centralised'))
    lines.append(_line(f'one, with all data: {_TITLES[client]}', 'SGD', row))
  return lines


def grid_lines(rows, client):
  servers = ('adam', 'nesterov')
  columns = dict.fromkeys(
    (server, row['server_learning_rate'])
    for server in servers
    for row in _of(rows, client, server)
  )
  titles = (f'{_TITLES[server]} {rate}' for server, rate in columns)
  lines = [
    f'| {_TITLES[client]} | {" | ".join(titles)} |',
    '|---' * (1 + len(columns)) + '|',
  ]
  by_rate = {}
  for server, rate in columns:
    for row in _of(rows, client, server):
      if row['server_learning_rate'] == rate:
        found = by_rate.setdefault(row['client_learning_rate'], [])
        found.append(f'{float(row["held_out_loss"]):.3f}')
  lines += [f'| {rate} | {" | ".join(v)} |' for rate, v in by_rate.items()]
  return lines


def test_all_runs(rows):
  assert [len(_of(rows, *pair)) for pair in _PAIRS] == [9] * 4
  assert len(_of(rows, 'sgd', 'sgd', 'centralised')) == 3
  assert len(_of(rows, 'adamw', 'sgd', 'centralised')) == 4
  assert len(rows) == 43


def test_tables(rows):
  text = (_PAGES / 'optimizers.md').read_text('utf-8')
  for lines in (
    chosen_lines(rows),
    grid_lines(rows, 'sgd'),
    grid_lines(rows, 'adamw'),
  ):
    assert '\n'.join(lines) in text


def test_what_the_page_says(rows):
  best = {pair: _chosen(_of(rows, *pair)) for pair in _PAIRS}
  best['centralised'] = _chosen(_of(rows, 'sgd', 'sgd', 'centralised'))
  best['adamw'] = _chosen(_of(rows, 'adamw', 'sgd', 'centralised'))
  # Only the chosen runs were scored on other clients.
  scored = [row for row in rows if row['other_clients_loss']]
  assert sorted(map(id, scored)) == sorted(map(id, best.values()))
  assert {row['num_other_clients'] for row in scored} == {'200'}
  at_0, at_50 = (
    {name: float(row[column]) for name, row in best.items()}
    for column in ('other_clients_loss', 'other_clients_loss_at_50')
  )
  sgd, adamw = (
    [at_0[client, server] for server in ('adam', 'nesterov')]
    for client in ('sgd', 'adamw')
  )
  central, gap = at_0['centralised'], '{:.2f}'.format
  text = ' '.join((_PAGES / 'optimizers.md').read_text('utf-8').split())
  for words in (
    f'{sgd[0]:.2f} and {sgd[1]:.2f} against {adamw[0]:.2f} and {adamw[1]:.2f}',
    f'({gap(sgd[0] - sgd[1])} nats apart',
    f'{gap(adamw[0] - adamw[1])} ahead for AdamW clients',
    f'{gap(at_50[_PAIRS[0]] - at_50[_PAIRS[1]])} nats ahead of those with Adam',
    f'reaches {central:.2f}: {gap(sgd[1] - central)} nats lower',
    f'reaches {at_0["adamw"]:.2f}, {gap(central - at_0["adamw"])} lower',
  ):
    assert words in text, words

"""Tables and the figure of docs/experiments/adamw_clients.md.

    PYTHONPATH=.:tests python tests/adamw_tables.py FIGURE.png

draws the figure of the results in docs/results/.
"""

import pathlib
import statistics
import sys

from coarse_fisher_tables import (
  FLOAT_BITS,
  RATE,
  Run,
  at_equal_models,
  at_equal_rounds,
  draw,
  final,
  groups_of,
  runs,
)
from result_tables import line

# What is subtracted from what, by weighting and clients.
_COMPARED = [
  (('per output unit, power 0.5', 'AdamW'), ('FedAvg', 'SGD')),
  (('per output unit, power 0.5', 'AdamW'), ('FedAvg', 'AdamW')),
  (
    ('per output unit, power 0.5', 'AdamW'),
    ('per element, power 0.5', 'AdamW'),
  ),
  (('per element, power 0.5', 'AdamW'), ('FedAvg', 'SGD')),
  (('per element, power 0.5', 'AdamW'), ('FedAvg', 'AdamW')),
  (('FedAvg', 'AdamW'), ('FedAvg', 'SGD')),
]


def controls_table(name: str) -> list[str]:
  """Returns a row per control of FedFish with AdamW clients: its loss.

  In nats, of one seed, after as many rounds as the controls have; in front of
  them what they control, and FedAvg with SGD clients; and minus FedAvg with
  AdamW clients and the same server.
  """
  controls, rows = runs(name), []
  found = [r for r in runs('debian_coarse_adamw') if r.seed == 1]
  found += [
    r for r in runs('debian_coarse') if r.seed == 1 and r.title == 'FedAvg'
  ]
  found += controls
  # All are scored in the same rounds.
  last = controls[0].loss.size - 1
  subtracted = 'FedAvg', 'AdamW'
  fed_avg = {
    _server(run): run.loss[last]
    for run in found
    if (run.title, _clients(run)) == subtracted
  }
  for run in found:
    title, clients, server = run.title, _clients(run), _server(run)
    cells = f'{run.settings[RATE]:g}', f'{run.loss[last]:.3f}'
    difference = ''
    if (title, clients) != subtracted:
      difference = f'{run.loss[last] - fed_avg[server]:+.3f}'
      difference = difference.replace('-', '−')
    estimator = run.settings['algorithm.fisher_estimator']
    if title != 'FedAvg' and estimator == 'extra_pass':
      title += ', extra pass'
    rows.append(line(title, clients, server, *cells, difference))
  return rows


def losses_table(*names: str) -> list[str]:
  """Returns a row per weighting and clients: a server's rate and loss a name.

  Args:
    *names: Of experiments with the same runs, each with another server.
  """
  found, rows = [_by_clients(runs(name)) for name in names], []
  for title, clients in found[0]:
    cells = [title, clients]
    for groups in found:
      alike = list(groups[title, clients].values())
      loss = statistics.mean(final(run, 'loss') for run in alike)
      cells += [f'{alike[0].settings[RATE]:g}', f'{loss:.3f}']
    rows.append(line(*cells))
  return rows


def differences_table(*names: str) -> list[str]:
  """Returns a row per comparison: at equal rounds and equal bytes, a name.

  In nats of loss, with the 95 % t interval over seeds; bytes up and down.

  Args:
    *names: Of experiments with the same runs, each with another server.
  """
  found, rows = [_by_clients(runs(name)) for name in names], []
  for compared in _COMPARED:
    cells = [f'{title}, {clients}' for title, clients in compared]
    for groups in found:
      ours, theirs = (groups[key] for key in compared)
      pairs = [(run, theirs[seed]) for seed, run in ours.items()]
      cells.append(at_equal_rounds(pairs, 'loss'))
      cells.append(at_equal_models(pairs, 'models'))
    rows.append(line(*cells))
  return rows


def _by_clients(found: list[Run]) -> dict[tuple[str, str], dict[int, Run]]:
  """Returns (title, clients) -> seed -> run, those of SGD clients first."""
  return {
    (title, clients): by_seed
    for clients in ('SGD', 'AdamW')
    for (title, _, _), by_seed in groups_of(
      [run for run in found if _clients(run) == clients]
    ).items()
  }


def _clients(run):
  return {'adamw': 'AdamW', 'sgd': 'SGD'}[run.settings['client_work.optimizer']]


def _server(run):
  adam = run.settings['server.optimizer'] == 'adam'
  return 'Adam' if adam else 'Nesterov'


if __name__ == '__main__':
  draw(
    pathlib.Path(sys.argv[1]),
    {
      title: {
        (f'{weighting}, {clients} clients', FLOAT_BITS): by_seed
        for (weighting, clients), by_seed in _by_clients(runs(name)).items()
      }
      for title, name in (
        ('Server Adam', 'debian_one_model'),
        ('Server Nesterov', 'debian_one_model_nesterov'),
      )
    },
  )

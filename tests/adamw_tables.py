"""Tables and the figure of docs/experiments/adamw_clients.md.

    PYTHONPATH=.:tests python tests/adamw_tables.py FIGURE.png

draws the figure of the results in docs/results/.
"""

import collections
import pathlib
import sys

from coarse_fisher_tables import (
  FLOAT_BITS,
  RATE,
  Run,
  at_equal_models,
  at_equal_rounds,
  draw,
  mean_loss,
  runs,
)
from result_tables import line

_FED_AVG, _ELEMENT = 'FedAvg', 'per element, power 0.5'
_OUTPUT = 'per output unit, power 0.5'
# What is subtracted from what, by weighting and clients.
_COMPARED = [
  ((_OUTPUT, 'AdamW, 0.001'), (_FED_AVG, 'SGD, 0.1')),
  ((_OUTPUT, 'AdamW, 0.001'), (_FED_AVG, 'AdamW, 0.001')),
  ((_OUTPUT, 'AdamW, 0.001'), (_ELEMENT, 'AdamW, 0.001')),
  ((_ELEMENT, 'AdamW, 0.001'), (_FED_AVG, 'AdamW, 0.001')),
  ((_FED_AVG, 'SGD, 0.03'), (_FED_AVG, 'SGD, 0.1')),
  ((_OUTPUT, 'AdamW, 0.001'), (_FED_AVG, 'SGD, 0.03')),
  ((_OUTPUT, 'AdamW, 0.0003'), (_FED_AVG, 'SGD, 0.03')),
  ((_OUTPUT, 'AdamW, 0.0003'), (_OUTPUT, 'AdamW, 0.001')),
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
    *names: Of experiments with the same seeds, each with another server; the
      last has all weightings and clients.
  """
  found, rows = [_by_clients(runs(name)) for name in names], []
  for key in found[-1]:
    cells = [*key]
    for groups in found:
      if key not in groups:
        cells += ['', '']
        continue
      first = next(iter(groups[key].values()))
      cells += [f'{first.settings[RATE]:g}', mean_loss(groups[key])]
    rows.append(line(*cells))
  return rows


def differences_table(*names: str) -> list[str]:
  """Returns a row per comparison: at equal rounds and equal bytes, a name.

  In nats of loss, with the 95 % t interval over seeds; bytes up and down.

  Args:
    *names: Of experiments with the same seeds, each with another server.
  """
  found, rows = [_by_clients(runs(name)) for name in names], []
  for compared in _COMPARED:
    cells = [f'{title}; {clients}' for title, clients in compared]
    for groups in found:
      if not groups.keys() >= set(compared):
        cells += ['', '']
        continue
      ours, theirs = (groups[key] for key in compared)
      pairs = [(run, theirs[seed]) for seed, run in ours.items()]
      cells.append(at_equal_rounds(pairs, 'loss'))
      cells.append(at_equal_models(pairs, 'models'))
    assert any(cells[2:]), compared
    rows.append(line(*cells))
  return rows


def _by_clients(found: list[Run]) -> dict[tuple[str, str], dict[int, Run]]:
  """Returns (title, clients and their rate) -> seed -> run."""
  by_clients = collections.defaultdict(dict)
  for run in found:
    clients = f'{_clients(run)}, {run.settings["client_work.learning_rate"]:g}'
    by_clients[run.title, clients][run.seed] = run
  return by_clients


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
        (f'{weighting}; {clients}', FLOAT_BITS): by_seed
        for (weighting, clients), by_seed in _by_clients(runs(name)).items()
      }
      for title, name in (
        ('Server Adam', 'debian_one_model'),
        ('Server Nesterov', 'debian_one_model_nesterov'),
      )
    },
    sharey=True,
  )

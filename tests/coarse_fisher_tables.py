"""Tables and the figure of docs/experiments/coarse_fisher.md.

    PYTHONPATH=.:tests python tests/coarse_fisher_tables.py FIGURE.png

draws the figure of the results in docs/results/.
"""

import collections
import csv
import json
import pathlib
import statistics
import sys

import numpy as np
import result_tables
from result_tables import RESULTS

_WEIGHTING = (
  *('algorithm.name', 'algorithm.fisher_granularity'),
  *('algorithm.fisher_power', 'algorithm.fisher_mix'),
  'algorithm.plain_mean_tensors',
)
_RATE, _BITS = 'server.learning_rate', 'aggregation.bits'
_EPOCHS = 'client_work.num_local_epochs'
_FLOAT_BITS = 32
# Experiments, the title of their panel in the figure, and E.
_PANELS = (
  (['debian_coarse'], 'Text, SGD clients, server Adam', None),
  (['debian_coarse_sgd'], 'Text, SGD clients, server SGD', None),
  (['debian_coarse_adamw'], 'Text, AdamW clients, server Adam', None),
  (['mnist_coarse'], 'Images, E = 1', 1),
  (['mnist_coarse'], 'Images, E = 16', 16),
  (['debian_coarse', 'debian_bits'], 'Text, deltas of fewer bits', None),
)
_LINES = {32: '-', 8: (0, (5, 2)), 4: (0, (1.2, 1.6))}


class Run:
  """A run: settings, its curve and its final scores."""

  def __init__(self, settings, curve, final):
    self.settings, self.final = settings, final
    self.models, self.models_up, self.loss = np.array(curve, float).T
    self.seed = settings.get('seeds.model_seed')
    self.server = settings.get('server.optimizer', 'adam')

  @property
  def title(self) -> str:
    """The weighting, in words."""
    if self.settings['algorithm.name'] == 'fed_avg':
      return 'FedAvg'
    _, unit, power, mix, *tensors = map(self.settings.get, _WEIGHTING)
    title = f'per {unit}{" unit" * (unit != "element")}'
    title += f', power {power:g}' * (power != 1)
    title += '' if mix is None else f', mix {mix:g}'
    return title + ", logits on FedAvg's mean" * (tensors == ['logits'])

  def loss_at(self, axis: str, traffic: float) -> float:
    """Returns the loss after some traffic, between scored rounds a line."""
    return float(np.interp(traffic, getattr(self, axis), self.loss))


def runs(name: str) -> list[Run]:
  """Returns the runs of an experiment."""
  curves = collections.defaultdict(list)
  with open(RESULTS / name / 'held_out_loss.csv', newline='') as file:
    for row in csv.DictReader(file):
      numbers = row['models'], row['models_up'], row['loss']
      curves[row['run']].append(numbers)
  with open(RESULTS / name / 'summary.csv', newline='') as file:
    finals = {row['directory']: row for row in csv.DictReader(file)}
  sweep = json.loads((RESULTS / name / 'sweep.json').read_text())
  return [
    Run(arm['settings'], curves[arm['name']], finals[arm['name']])
    for arm in sweep['arms']
  ]


def _groups(found):
  """Returns (title, E, bits) -> seed -> run."""
  groups = collections.defaultdict(dict)
  for run in found:
    bits = run.settings.get(_BITS, _FLOAT_BITS)
    groups[run.title, run.settings.get(_EPOCHS), bits][run.seed] = run
  return groups


def table(
  name: str, accuracy: bool = False, against: str | None = None
) -> list[str]:
  """Returns a row per weighting: its loss, and differences to FedAvg's.

  The loss after the last round, in nats; minus FedAvg's after as many rounds,
  after as many models up and down, and after as many models up; with the 95 % t
  interval over seeds.

  Args:
    name: Of the experiment.
    accuracy: Adds the accuracy minus FedAvg's after as many rounds, in points.
    against: Experiment whose FedAvg is subtracted; None: the same.
  """
  groups, rows = _groups(runs(name)), []
  others = groups if against is None else _groups(runs(against))
  for (title, epochs, bits), by_seed in groups.items():
    fed_avg = others['FedAvg', epochs, bits]
    pairs = [(run, fed_avg[seed]) for seed, run in by_seed.items()]
    first = pairs[0][0].settings
    cells = [title, *([] if epochs is None else [epochs]), f'{first[_RATE]:g}']
    cells.append(f'{statistics.mean(_final(r, "loss") for r, _ in pairs):.3f}')
    if others is groups and title == 'FedAvg':
      cells += [''] * (3 + accuracy)
    else:
      cells.append(_differences(pairs, 'loss'))
      cells += [_at_equal(pairs, axis) for axis in ('models', 'models_up')]
    if accuracy and title != 'FedAvg':
      cells.append(_differences(pairs, 'accuracy', 100, 2))
    rows.append(result_tables.line(*cells))
  return rows


def bits_table(name: str, at_32_bits: str) -> list[str]:
  """Returns a row per weighting and bits: its loss, and minus that of 32 bits.

  At equal rounds, after as many models up and down, and after as many models
  up, for the seeds of both; with the 95 % t interval over them.

  Args:
    name: Of the experiment.
    at_32_bits: Of the experiment with the same runs at 32 bits.
  """
  whole, rows = _groups(runs(at_32_bits)), []
  for (title, epochs, bits), by_seed in _groups(runs(name)).items():
    others = whole[title, epochs, _FLOAT_BITS]
    pairs = [(run, others[seed]) for seed, run in by_seed.items()]
    loss = statistics.mean(_final(run, 'loss') for run, _ in pairs)
    cells = [title, bits, f'{loss:.3f}', _differences(pairs, 'loss')]
    cells += [_at_equal(pairs, axis) for axis in ('models', 'models_up')]
    rows.append(result_tables.line(*cells))
  return rows


def controls_table(name: str) -> list[str]:
  """Returns a row per control of FedFish with AdamW clients: its loss.

  In nats, of one seed, after as many rounds as the controls have; in front of
  them what they control, and FedAvg with SGD clients; and minus FedAvg with
  AdamW clients and the same server.
  """
  controls, rows = runs(name), []
  found = [(r, 'adamw') for r in runs('debian_coarse_adamw') if r.seed == 1]
  found += [
    (r, 'sgd')
    for r in runs('debian_coarse')
    if r.seed == 1 and r.title == 'FedAvg'
  ]
  found += [(r, r.settings['client_work.optimizer']) for r in controls]
  # All are scored in the same rounds.
  last = controls[0].loss.size - 1
  subtracted = 'FedAvg', 'adamw'
  fed_avg = {
    run.server: run.loss[last]
    for run, optimizer in found
    if (run.title, optimizer) == subtracted
  }
  for run, optimizer in found:
    clients = {'adamw': 'AdamW', 'sgd': 'SGD'}[optimizer]
    server = {'adam': 'Adam', 'sgd': 'Nesterov'}[run.server]
    cells = f'{run.settings[_RATE]:g}', f'{run.loss[last]:.3f}'
    difference = ''
    if (run.title, optimizer) != subtracted:
      difference = f'{run.loss[last] - fed_avg[run.server]:+.3f}'
      difference = difference.replace('-', '−')
    title = run.title
    if run.settings.get('algorithm.fisher_estimator') == 'extra_pass':
      title += ', extra pass'
    rows.append(result_tables.line(title, clients, server, *cells, difference))
  return rows


def _final(run, measure):
  return float(run.final[f'held_out/{measure}/0'])


def _differences(pairs, measure, scale=1, digits=3):
  found = [scale * (_final(a, measure) - _final(b, measure)) for a, b in pairs]
  return result_tables.t_interval(found, digits)


def _at_equal(pairs, axis):
  """Returns the difference at the traffic that both of a pair reach."""
  found = []
  for pair in pairs:
    traffic = min(getattr(run, axis)[-1] for run in pair)
    ours, theirs = (run.loss_at(axis, traffic) for run in pair)
    found.append(ours - theirs)
  return result_tables.t_interval(found)


def draw(path: pathlib.Path) -> None:
  """Draws the loss by models up and down, means over seeds."""
  import matplotlib.pyplot as plt

  from tff_fedfish.reporting.style import RC_PARAMS

  panels = [p for p in _PANELS if all((RESULTS / n).exists() for n in p[0])]
  num_columns = min(3, len(panels))
  num_rows = -(-len(panels) // num_columns)
  colours, handles = {}, {}
  with plt.rc_context(RC_PARAMS):
    figure, all_axes = plt.subplots(
      num_rows,
      num_columns,
      figsize=(4.6 * num_columns, 4 * num_rows),
      squeeze=False,
      layout='constrained',
    )
    for axes in all_axes.flat[len(panels) :]:
      axes.remove()
    for axes, (names, title, epochs) in zip(
      all_axes.flat, panels, strict=False
    ):
      groups = _groups([run for name in names for run in runs(name)])
      # Beside fewer bits only what has them.
      shown = {key[0] for key in groups if key[2] != _FLOAT_BITS}
      seeds = set.intersection(*(set(by_seed) for by_seed in groups.values()))
      for (weighting, at, bits), by_seed in groups.items():
        if at == epochs and (not shown or weighting in shown):
          colour = colours.setdefault(weighting, f'C{len(colours)}')
          found = [by_seed[seed] for seed in seeds]
          losses, models = np.mean([r.loss for r in found], 0), found[0].models
          # At round 0 all have the loss of guessing.
          [handles[weighting, bits]] = axes.plot(
            *(models[1:], losses[1:]), color=colour, linestyle=_LINES[bits]
          )
      axes.set(title=title, xlabel='Models up and down, per client')
    for axes in all_axes[:, 0]:
      axes.set_ylabel('Held-out loss (nats)')
    labels = [
      f'{weighting}{f", {bits} bits" * (bits != _FLOAT_BITS)}'
      for weighting, bits in handles
    ]
    figure.legend(handles.values(), labels, loc='outside lower center', ncols=2)
    figure.savefig(path, dpi=150)


if __name__ == '__main__':
  draw(pathlib.Path(sys.argv[1]))

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
# Experiment, its panel in the figure.
_PANELS = (
  ('debian_coarse', 'Text, server Adam', None),
  ('debian_coarse_sgd', 'Text, server SGD', None),
  ('mnist_coarse', 'Images, E = 1', 1),
  ('mnist_coarse', 'Images, E = 16', 16),
)


class Run:
  """A run: settings, its curve and its final scores."""

  def __init__(self, settings, curve, final):
    self.settings, self.final = settings, final
    self.models, self.models_up, self.loss = np.array(curve, float).T
    self.seed = settings['seeds.model_seed']

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
    further = (run.settings.get(name) for name in (_EPOCHS, _BITS))
    groups[run.title, *further][run.seed] = run
  return groups


def table(name: str, accuracy: bool = False) -> list[str]:
  """Returns a row per weighting: its loss, and differences to FedAvg's.

  The loss after the last round, in nats; minus FedAvg's after as many rounds,
  after as many models up and down, and after as many models up; with the 95 % t
  interval over seeds.

  Args:
    name: Of the experiment.
    accuracy: Adds the accuracy minus FedAvg's after as many rounds, in points.
  """
  groups, rows = _groups(runs(name)), []
  for (title, epochs, bits), by_seed in groups.items():
    pairs = [(r, groups['FedAvg', epochs, bits][i]) for i, r in by_seed.items()]
    first = pairs[0][0].settings
    cells = [title, *([] if epochs is None else [epochs]), f'{first[_RATE]:g}']
    cells.append(f'{statistics.mean(_final(r, "loss") for r, _ in pairs):.3f}')
    if title == 'FedAvg':
      cells += [''] * (3 + accuracy)
    else:
      cells.append(_differences(pairs, 'loss'))
      cells += [_at_equal(pairs, axis) for axis in ('models', 'models_up')]
    if accuracy and title != 'FedAvg':
      cells.append(_differences(pairs, 'accuracy', 100, 2))
    rows.append(result_tables.line(*cells))
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

  panels = [panel for panel in _PANELS if (RESULTS / panel[0]).exists()]
  with plt.rc_context(RC_PARAMS):
    figure, all_axes = plt.subplots(
      *(1, len(panels)),
      figsize=(5 * len(panels), 4.5),
      squeeze=False,
      layout='constrained',
    )
    for axes, (name, title, epochs) in zip(all_axes[0], panels, strict=True):
      for (weighting, at, _), by_seed in _groups(runs(name)).items():
        if at == epochs:
          found = list(by_seed.values())
          losses = np.mean([run.loss for run in found], axis=0)
          # At round 0 all have the loss of guessing.
          axes.plot(found[0].models[1:], losses[1:], label=weighting)
      axes.set(title=title, xlabel='Models up and down, per client')
    all_axes[0, 0].set_ylabel('Held-out loss (nats)')
    handles, labels = all_axes[0, 0].get_legend_handles_labels()
    figure.legend(
      handles, labels, loc='outside lower center', ncols=len(panels)
    )
    figure.savefig(path, dpi=150)


if __name__ == '__main__':
  draw(pathlib.Path(sys.argv[1]))

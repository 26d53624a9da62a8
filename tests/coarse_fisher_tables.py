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
RATE, _BITS = 'server.learning_rate', 'aggregation.bits'
_EPOCHS = 'client_work.num_local_epochs'
FLOAT_BITS = 32
# Title of a panel in the figure, experiments, E.
_PANELS = (
  ('Text, SGD clients, server Adam', ['debian_coarse'], None),
  ('Text, SGD clients, server SGD', ['debian_coarse_sgd'], None),
  ('Images, E = 1', ['mnist_coarse'], 1),
  ('Images, E = 16', ['mnist_coarse'], 16),
  ('Text, deltas of fewer bits', ['debian_coarse', 'debian_bits'], None),
)
_LINES = {32: '-', 8: (0, (5, 2)), 4: (0, (1.2, 1.6))}


class Run:
  """A run: settings, its curve and its final scores."""

  def __init__(self, settings, epochs, curve, final):
    self.settings, self.epochs, self.final = settings, epochs, final
    self.models, self.models_up, self.loss = np.array(curve, float).T
    self.seed, self.bits = settings['seeds.model_seed'], settings[_BITS]

  @property
  def title(self) -> str:
    """The weighting, in words."""
    if self.settings['algorithm.name'] == 'fed_avg':
      return 'FedAvg'
    _, unit, power, mix, tensors = map(self.settings.get, _WEIGHTING)
    title = f'per {unit}{" unit" * (unit != "element")}'
    title += f', power {power:g}' * (power != 1)
    title += '' if mix is None else f', mix {mix:g}'
    return title + ", logits on FedAvg's mean" * (tensors == 'logits')

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
  base = {
    f'{part}.{setting}': value
    for part, settings in sweep['base'].items()
    if isinstance(settings, dict)
    for setting, value in settings.items()
  }
  found = []
  for arm in sweep['arms']:
    settings, arm_name = arm['settings'], arm['name']
    # None where E does not vary: the tables then have no column for it.
    epochs = settings.get(_EPOCHS)
    numbers = curves[arm_name], finals[arm_name]
    found.append(Run(base | settings, epochs, *numbers))
  return found


def groups_of(found: list[Run]) -> dict[tuple, dict[int, Run]]:
  """Returns (title, E, bits) -> seed -> run."""
  groups = collections.defaultdict(dict)
  for run in found:
    groups[run.title, run.epochs, run.bits][run.seed] = run
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
  groups, rows = groups_of(runs(name)), []
  others = groups if against is None else groups_of(runs(against))
  for (title, epochs, bits), by_seed in groups.items():
    fed_avg = others['FedAvg', epochs, bits]
    pairs = [(run, fed_avg[seed]) for seed, run in by_seed.items()]
    first = pairs[0][0].settings
    cells = [title, *([] if epochs is None else [epochs]), f'{first[RATE]:g}']
    cells.append(mean_loss(by_seed))
    if others is groups and title == 'FedAvg':
      cells += [''] * (3 + accuracy)
    else:
      cells.append(at_equal_rounds(pairs, 'loss'))
      cells += [
        at_equal_models(pairs, axis) for axis in ('models', 'models_up')
      ]
    if accuracy and title != 'FedAvg':
      cells.append(at_equal_rounds(pairs, 'accuracy', 100, 2))
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
  whole, rows = groups_of(runs(at_32_bits)), []
  for (title, epochs, bits), by_seed in groups_of(runs(name)).items():
    others = whole[title, epochs, FLOAT_BITS]
    pairs = [(run, others[seed]) for seed, run in by_seed.items()]
    cells = [title, bits, mean_loss(by_seed), at_equal_rounds(pairs, 'loss')]
    cells += [at_equal_models(pairs, axis) for axis in ('models', 'models_up')]
    rows.append(result_tables.line(*cells))
  return rows


def mean_loss(by_seed: dict[int, Run]) -> str:
  """Returns the mean over seeds of the loss after the last round."""
  return (
    f'{statistics.mean(_final(run, "loss") for run in by_seed.values()):.3f}'
  )


def _final(run, measure):
  return float(run.final[f'held_out/{measure}/0'])


def at_equal_rounds(
  pairs: list[tuple[Run, Run]], measure: str, scale: float = 1, digits: int = 3
) -> str:
  """Returns the difference in a pair, with the 95 % t interval over pairs."""
  found = [scale * (_final(a, measure) - _final(b, measure)) for a, b in pairs]
  return result_tables.t_interval(found, digits)


def at_equal_models(pairs: list[tuple[Run, Run]], axis: str) -> str:
  """Returns the difference at the traffic that both of a pair reach."""
  found = []
  for pair in pairs:
    traffic = min(getattr(run, axis)[-1] for run in pair)
    ours, theirs = (run.loss_at(axis, traffic) for run in pair)
    found.append(ours - theirs)
  return result_tables.t_interval(found)


def draw(
  path: pathlib.Path,
  panels: dict[str, dict[tuple[str, int], dict[int, Run]]],
  sharey: bool = False,
) -> None:
  """Draws the loss by models up and down, means over seeds.

  Args:
    path: File of the figure.
    panels: Title -> (label, bits) -> seed -> run.
    sharey: Whether all panels have the same axis of the loss.
  """
  import matplotlib.pyplot as plt

  from tff_fedfish.reporting.style import RC_PARAMS

  num_columns = min(3, len(panels))
  num_rows = -(-len(panels) // num_columns)
  colours, handles = {}, {}
  with plt.rc_context(RC_PARAMS):
    figure, all_axes = plt.subplots(
      num_rows,
      num_columns,
      figsize=(4.6 * num_columns, 4 * num_rows),
      squeeze=False,
      sharey=sharey,
      layout='constrained',
    )
    for axes in all_axes.flat[len(panels) :]:
      axes.remove()
    for axes, (title, lines) in zip(
      all_axes.flat, panels.items(), strict=False
    ):
      seeds = set.intersection(*(set(by_seed) for by_seed in lines.values()))
      for (label, bits), by_seed in lines.items():
        colour = colours.setdefault(label, f'C{len(colours)}')
        found = [by_seed[seed] for seed in seeds]
        losses, models = np.mean([r.loss for r in found], 0), found[0].models
        # At round 0 all have the loss of guessing.
        [handles[label, bits]] = axes.plot(
          *(models[1:], losses[1:]),
          color=colour,
          linestyle=_LINES[bits],
          marker='.',
        )
      axes.set(title=title, xlabel='Models up and down, per client')
    for axes in all_axes[:, 0]:
      axes.set_ylabel('Held-out loss (nats)')
    labels = [
      f'{label}{f", {bits} bits" * (bits != FLOAT_BITS)}'
      for label, bits in handles
    ]
    figure.legend(handles.values(), labels, loc='outside lower center', ncols=2)
    figure.savefig(path, dpi=150)


def _panels() -> dict[str, dict[tuple[str, int], dict[int, Run]]]:
  panels = {}
  for title, names, epochs in _PANELS:
    groups = groups_of([run for name in names for run in runs(name)])
    # Beside fewer bits only what has them.
    shown = {key[0] for key in groups if key[2] != FLOAT_BITS}
    panels[title] = {
      (weighting, bits): by_seed
      for (weighting, at, bits), by_seed in groups.items()
      if at == epochs and (not shown or weighting in shown)
    }
  return panels


if __name__ == '__main__':
  draw(pathlib.Path(sys.argv[1]), _panels())

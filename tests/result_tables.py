"""Rows of the tables in docs/experiments/, from the files in docs/results/.

    PYTHONPATH=.:tests python tests/result_tables.py ARMS

prints the held-out losses of a sweep's arms as CSV, round by round.
"""

import csv
import functools
import pathlib
import re
import statistics
import sys
from typing import NamedTuple

from scipy import stats

from tff_fedfish.files import csv_file

RESULTS = pathlib.Path(__file__).parents[1] / 'docs' / 'results'
METHODS = ('fed_avg', 'fed_fish')


class _Number(NamedTuple):
  value: float
  ci_low: str
  ci_high: str


class Numbers:
  """The numbers of one experiment's tables."""

  def __init__(self, path: pathlib.Path):
    """Reads tables.csv."""
    with open(path, newline='') as file:
      self.rows = list(csv.DictReader(file))

  def find(self, **columns: object) -> _Number | None:
    """Returns the number with these columns, None if there is none."""
    wanted = {name: str(value) for name, value in columns.items()}
    found = [row for row in self.rows if wanted.items() <= row.items()]
    if not found:
      return None
    [row] = found
    return _Number(float(row['value']), row['ci_low'], row['ci_high'])

  def distinct(self, *columns: str, **where: str) -> list[tuple[str, ...]]:
    """Returns the distinct values of some columns, in their order."""
    rows = [row for row in self.rows if where.items() <= row.items()]
    return list(dict.fromkeys(tuple(row[c] for c in columns) for row in rows))


@functools.cache
def numbers(name: str) -> Numbers:
  """Returns the numbers of an experiment."""
  return Numbers(RESULTS / name / 'tables.csv')


def search(found: Numbers) -> list[str]:
  """Returns a row per server's rate tried: the scores of both methods."""
  rows = []
  for (rates,) in found.distinct('measure', table='search'):
    scores = (
      found.find(table='search', measure=rates, variant=method).value
      for method in METHODS
    )
    # Beyond that of any model that says the same of all digits.
    cells = (f'{s:.3f}' if s < 100 else 'diverged' for s in scores)
    rows.append(line(*rates.split('/'), *cells))
  return rows


def local_epochs(
  found: Numbers, fraction: float, corpus: str = ''
) -> list[str]:
  """Returns a row per number of local epochs and, if they differ, of rounds.

  Args:
    found: The numbers.
    fraction: Of each client's data that was personalized on.
    corpus: Of the clients; '': those held out of the runs' own corpus.
  """
  rows = []
  for sizes, shown in _sizes(found, 'local_epochs'):
    cells = []
    for measure, scale, digits in (('accuracy', 100, 2), ('loss', 1, 4)):
      at = dict(
        table='local_epochs',
        corpus=corpus,
        fraction=fraction,
        measure=measure,
        **sizes,
      )
      cells += [
        f'{scale * found.find(**at, variant=method).value:.{digits}f}'
        for method in METHODS
      ]
      difference = found.find(**at, variant='difference')
      cells.append(_difference(difference, scale, digits))
    rows.append(line(*shown, *cells))
  return rows


def rounds(found: Numbers) -> list[str]:
  """Returns rows as `local_epochs`: the barrier of each method."""
  rows = []
  for sizes, shown in _sizes(found, 'rounds'):
    barriers = (
      found.find(table='rounds', measure='barrier', variant=method, **sizes)
      for method in METHODS
    )
    cells = (f'{n.value:+.3f}'.replace('-', '−') for n in barriers)
    rows.append(line(*shown, *cells))
  return rows


def variants(found: Numbers, fraction: float) -> list[str]:
  """Returns a row per variant of an ablation, beside FedAvg."""
  rows = []
  for (variant,) in found.distinct('variant', table='variants'):
    cells = []
    for measure, scale, digits in (('accuracy', 100, 2), ('loss', 1, 4)):
      at = dict(table='variants', fraction=fraction, variant=variant)
      value = found.find(**at, measure=measure).value
      cells.append(f'{scale * value:.{digits}f}')
      difference = found.find(**at, measure=f'{measure} difference')
      cells.append(_difference(difference, scale, digits) if difference else '')
    barrier = found.find(table='rounds', variant=variant, measure='barrier')
    cells.append(f'{barrier.value:+.3f}')
    rows.append(line(variant, *cells))
  return rows


def _sizes(found, table):
  """Yields the columns of each setting, and the cells that show it."""
  sizes = found.distinct('local_epochs', 'rounds', table=table)
  one_length = len({num_rounds for _, num_rounds in sizes}) == 1
  for epochs, num_rounds in sizes:
    shown = (epochs,) if one_length else (epochs, num_rounds)
    yield dict(local_epochs=epochs, rounds=num_rounds), shown


def line(*cells) -> str:
  """Returns a line of a table."""
  return f'| {" | ".join(map(str, cells))} |'


def _difference(number, scale, digits):
  """Returns a mean and its interval, bold where that leaves 0 out."""
  values = [scale * float(value) for value in number]
  mean, low, high = (f'{v:+.{digits}f}'.replace('-', '−') for v in values)
  text = f'{mean} ({low} to {high})'
  return text if values[1] <= 0 <= values[2] else f'**{text}**'


def laboratory(name: str) -> tuple[list[str], list[str]]:
  """Returns the rows of a laboratory's tables: losses, and what explains them.

  Losses are after the best step, minus the plain mean's, with the 95 % t
  interval over seeds, in nats.
  """
  with open(RESULTS / name / 'comparison.csv', newline='') as file:
    rows = list(csv.DictReader(file))
  cells = {}
  for row in rows:
    key = (row['client_work.learning_rate'], row['local_epochs'])
    cells.setdefault((*key, row['cohort_size']), {})[row['weighting']] = row
  losses, measures = [], []
  for cell, found in cells.items():
    fish, mix = found['p1 s0'], found['p0.5 s0.5']
    losses.append(
      line(
        *cell,
        _interval(fish, 'best_loss'),
        _interval(found["p1 s0, another's F"], 'best_loss'),
        _interval(fish, 'control'),
        _interval(found['p1 s0, plain length'], 'best_loss'),
        _interval(mix, 'best_loss'),
        _interval(found['p0.25 s0.5'], 'best_loss'),
      )
    )
    measures.append(
      line(
        *cell,
        *(
          f'{float(fish[name]):.2f}'
          for name in (
            *('cosine', 'norm_ratio', 'split_half_cosine'),
            *('effective_clients', 'null_effective_clients'),
          )
        ),
      )
    )
  return losses, measures


def regimes(name: str, fractions: tuple[float, ...]) -> list[str]:
  """Returns a row per client learning rate and number of local epochs.

  FedAvg's loss, its mean over seeds; then of each other method, fraction by
  fraction of the data that is personalized on, its loss minus FedAvg's at the
  same rate, with the 95 % interval over seeds, in nats.
  """
  with open(RESULTS / name / 'comparisons.csv', newline='') as file:
    rows = [row for row in csv.DictReader(file) if row['measure'] == 'loss']
  cells, baselines = {}, _baselines(name)
  for row in rows:
    method, rate = _method_and_rate(row['method'])
    if _method_and_rate(row['baseline']) == ('FedAvg', rate):
      cell = cells.setdefault((rate, row['setting'].split()[-1]), {})
      cell[method, float(row['fraction'])] = row
  methods = sorted({m for cell in cells.values() for m, _ in cell} - {'FedAvg'})
  return [
    line(
      *(*cell, f'{baselines[cell]:.3f}'),
      *(
        _difference(
          _ends(found[method, fraction]),
          *(1, 3),
        )
        # FedFish as printed comes first.
        for method in reversed(methods)
        for fraction in fractions
      ),
    )
    for cell, found in sorted(cells.items(), key=_by_number)
  ]


def equal_bytes(name: str) -> list[str]:
  """Returns a row per client learning rate and number of local epochs.

  The loss of an arm in one round minus that of FedAvg in a later one, after
  equally many models of traffic, with the 95 % t interval over seeds, in nats.
  """
  with open(RESULTS / name / 'held_out_loss.csv', newline='') as file:
    found = {}
    for row in csv.DictReader(file):
      arm, rate, epochs, seed = _ARM.fullmatch(row['run']).groups()
      at_round = found.setdefault((rate, epochs), {})
      losses = at_round.setdefault((arm, int(row['round'])), {})
      losses[seed] = float(row['loss']), float(row['models'])
  rows = []
  for cell, at_round in sorted(found.items(), key=_by_number):
    differences = []
    for arm, arm_round, baseline_round in _EQUAL_BYTES:
      ours = at_round[arm, arm_round]
      theirs = at_round['fed_avg-p1.0-s0.0', baseline_round]
      pairs = [(ours[seed], theirs[seed]) for seed in ours]
      assert all(one[1] == other[1] for one, other in pairs)
      differences.append([one[0] - other[0] for one, other in pairs])
    rows.append(line(*cell, *map(t_interval, differences)))
  return rows


# Arm, its round, and that of FedAvg in which it has sent as much.
_EQUAL_BYTES = (
  ('fed_fish-p1.0-s0.0', 10, 15),
  ('fed_fish-p0.5-s0.5', 10, 20),
)
_ARM = re.compile(r'(.*)-client_lr([\d.]+)-E(\d+)-seed(\d+)')


def t_interval(differences, digits=3) -> str:
  """Returns a mean and half of its 95 % t interval, bold beyond 0."""
  mean, count = statistics.mean(differences), len(differences)
  half = stats.t.ppf(0.975, count - 1) * statistics.stdev(differences)
  return _with_half_width(mean, half / count**0.5, digits)


def controls(name: str, unchanged: str) -> list[str]:
  """Returns a row per change to a sweep's runs, and client learning rate.

  The held-out loss, its mean over seeds; minus that of the unchanged runs of
  the same method; minus that of FedAvg with the same change, or unchanged where
  that does not concern it; with the 95 % t interval over seeds, in nats.

  Args:
    name: Of the experiment with the changes.
    unchanged: Of the experiment whose runs they change.
  """
  before, changed = _losses(unchanged, _ARM), _losses(name, _CHANGED_ARM)
  rows = []
  for (arm, epochs, rate), losses in sorted(changed.items(), key=_by_change):
    others = [before[f'{arm}-p1.0-s0.0', rate, epochs]]
    if arm != 'fed_avg':
      others.append(
        changed.get(('fed_avg', epochs, rate))
        or before['fed_avg-p1.0-s0.0', rate, epochs]
      )
    cells = [
      t_interval([losses[seed] - other[seed] for seed in losses])
      for other in others
    ]
    cells += [''] * (2 - len(cells))
    mean = f'{statistics.mean(losses.values()):.3f}'
    rows.append(line(_CHANGES[arm, epochs], rate, epochs, mean, *cells))
  return rows


# The one change to the runs of a method at a number of local epochs.
_CHANGES = {
  ('fed_fish', '16'): "FedFish, half of the server's rate",
  ('fed_avg', '16'): "FedAvg, half of the server's rate",
  ('fed_fish', '4'): 'FedFish, dropout in the Fisher pass',
  ('fed_avg', '1'): "FedAvg, server's epsilon 1e-8",
}


def _by_change(item):
  (arm, epochs, rate), _ = item
  return list(_CHANGES).index((arm, epochs)), float(rate)


_CHANGED_ARM = re.compile(
  r'(fed_[a-z]+)-fisher_training_mode_.*-E(\d+)-.*-client_lr([\d.]+)-seed(\d+)'
)


def _losses(name, pattern):
  """Returns held-out losses by what a run's directory says, then by seed."""
  found = {}
  with open(RESULTS / name / 'summary.csv', newline='') as file:
    for row in csv.DictReader(file):
      *cell, seed = pattern.fullmatch(row['directory']).groups()
      losses = found.setdefault(tuple(cell), {})
      losses[seed] = float(row['held_out/loss/0'])
  return found


def server_rates(*names: str) -> list[str]:
  """Returns a row per method, server's learning rate and epsilon, on text.

  Held-out losses before and after personalization on half of the data, their
  means over seeds, and minus those of FedAvg at a server's rate of 0.001, with
  the 95 % t interval over seeds, in nats.

  Args:
    *names: Of experiments at one client learning rate; epsilon is 1e-7 where a
      run's name does not say it.
  """
  found = {}
  for name in names:
    with open(RESULTS / name / 'summary.csv', newline='') as file:
      for row in csv.DictReader(file):
        match = _TEXT_ARM.fullmatch(row['directory'])
        method, p, s, tensors, rate, epsilon, seed = match.groups()
        cell = method, float(p), float(s), tensors, float(rate)
        losses = found.setdefault((*cell, float(epsilon or 1e-7)), {})
        losses[seed] = [float(row[f'held_out/loss/{f}']) for f in ('0', '0.5')]
  baseline = found['fed_avg', 1.0, 0.0, 'none', 1e-3, 1e-7]
  rows = []
  for cell, losses in sorted(found.items()):
    method, p, s, tensors, rate, epsilon = cell
    title = 'FedAvg'
    if method != 'fed_avg':
      title = f'p = {p:g}, s = {s:g}' + (
        ", logits on FedAvg's mean" * (tensors == 'logits')
      )
    cells = []
    for i in range(2):
      cells.append(
        f'{statistics.mean(pair[i] for pair in losses.values()):.3f}'
      )
      differences = [losses[seed][i] - baseline[seed][i] for seed in losses]
      cells.append('' if losses is baseline else t_interval(differences))
    rows.append(line(title, f'{rate:g}', f'{epsilon:.0e}', *cells))
  return rows


_TEXT_ARM = re.compile(
  r'(.*)-p([\d.]+)-s([\d.]+)-(none|logits)-server_lr([\d.]+)'
  r'(?:-server_epsilon([\de.-]+))?-seed(\d+)'
)


def baselines(name: str) -> list[str]:
  """Returns a row per model and arm: accuracy in percent, loss in nats.

  Means over seeds, and minus those of FedAvg with the same model and a server
  of SGD, with the 95 % t interval over seeds.
  """
  found = {}
  with open(RESULTS / name / 'summary.csv', newline='') as file:
    for row in csv.DictReader(file):
      *arm, seed = _BASELINE_ARM.fullmatch(row['directory']).groups()
      scores = found.setdefault(tuple(arm), {})
      scores[seed] = [
        100 * float(row['held_out/accuracy/0']),
        float(row['held_out/loss/0']),
      ]
  rows = []
  for (model, method, server), scores in found.items():
    baseline = found[model, 'fed_avg', 'sgd']
    cells = []
    for i, digits in ((0, 1), (1, 3)):
      mean = statistics.mean(pair[i] for pair in scores.values())
      cells.append(f'{mean:.{digits}f}')
      differences = [scores[seed][i] - baseline[seed][i] for seed in scores]
      cells.append(
        '' if scores is baseline else t_interval(differences, digits)
      )
    title = _BASELINE_TITLES[method, server]
    rows.append(line(model, title, *cells))
  return rows


_BASELINE_ARM = re.compile(
  r'(lenet|linear)-([a-z_]+)-mu[\d.]+-E\d-([a-z]+)-.*-seed(\d+)'
)
_BASELINE_TITLES = {
  ('fed_avg', 'sgd'): 'FedAvg',
  ('fed_avg', 'adam'): 'FedAdam',
  ('fed_avg', 'yogi'): 'FedYogi',
  ('fed_prox', 'sgd'): 'FedProx',
  ('fed_sgd', 'sgd'): 'FedSGD',
  ('moon', 'sgd'): 'MOON',
  ('scaffold', 'sgd'): 'SCAFFOLD',
}


def held_out_losses(arms: pathlib.Path) -> str:
  """Returns CSV: a row per run and scored round, and the models sent so far."""
  names = ('round', 'held_out/loss')
  names += ('communication/total_units', 'communication/uplink_units')
  rows = []
  for path in sorted(arms.glob('*/metrics.csv')):
    with open(path, newline='') as file:
      for found in csv.DictReader(file):
        if found['held_out/loss']:
          rows.append((path.parent.name, *(found[name] for name in names)))
  return csv_file(('run', 'round', 'loss', 'models', 'models_up'), rows)


def arms(name: str, columns: tuple[tuple[str, float], ...]) -> list[str]:
  """Returns a row per method: FedAvg's losses, then differences to them.

  Args:
    name: Of an experiment with one client rate and one number of local epochs.
    columns: (prefix of the columns in summary.csv, fraction of the data that is
      personalized on).
  """
  with open(RESULTS / name / 'summary.csv', newline='') as file:
    runs = [row for row in csv.DictReader(file) if row['method'] == 'fed_avg']
  losses = (
    statistics.mean(float(run[f'{prefix}/loss/{fraction:g}']) for run in runs)
    for prefix, fraction in columns
  )
  table = [line('FedAvg', *(f'{loss:.3f}' for loss in losses))]
  with open(RESULTS / name / 'comparisons.csv', newline='') as file:
    rows = [row for row in csv.DictReader(file) if row['measure'] == 'loss']
  for method in dict.fromkeys(row['method'] for row in rows):
    found = []
    for prefix, fraction in columns:
      corpus = prefix.partition('/')[2]
      subject = f'clients of {corpus}' if corpus else 'held-out clients'
      found += [
        row
        for row in rows
        if (row['method'], row['baseline']) == (method, 'FedAvg')
        and row['subject'] == subject
        and float(row['fraction']) == fraction
      ]
    if found:
      cells = (_difference(_ends(row), 1, 3) for row in found)
      p, s, tensors = _VARIANT.search(method).groups()
      name = f'p = {float(p):g}, s = {float(s):g}'
      name += ", logits on FedAvg's mean" * (tensors == 'logits')
      table.append(line(name, *cells))
  return table


_VARIANT = re.compile(
  r'fisher_power ([\d.]+), plain_mean_fraction ([\d.]+)'
  "(?:, plain_mean_tensors '(.*?)')?"
)


def _by_number(item):
  return [float(number) for number in item[0]]


def _ends(row):
  return [row[name] for name in ('mean', 'ci_low', 'ci_high')]


def _method_and_rate(text):
  """Returns what stands before the client's rate in a method's name, and it."""
  text, _, rate = text.rstrip(')').partition('client learning rate ')
  # The server's may follow.
  return text.rstrip(' (,'), rate.partition(',')[0]


def _baselines(name):
  """Returns FedAvg's loss, its mean over seeds, by rate and local epochs."""
  with open(RESULTS / name / 'summary.csv', newline='') as file:
    found = {}
    for row in csv.DictReader(file):
      if row['method'] == 'fed_avg':
        rate = re.search(r'client_lr([\d.]+)-', row['directory'])[1]
        losses = found.setdefault((rate, row['num_local_epochs']), [])
        losses.append(float(row['held_out/loss/0']))
  return {cell: statistics.mean(losses) for cell, losses in found.items()}


def _interval(row, name):
  return _with_half_width(
    float(row[f'{name}_difference']), float(row[f'{name}_half_width'])
  )


def _with_half_width(difference, half_width, digits=3):
  text = f'{difference:+.{digits}f} ± {half_width:.{digits}f}'
  text = text.replace('-', '−')
  return f'**{text}**' if abs(difference) > half_width else text


if __name__ == '__main__':
  print(held_out_losses(pathlib.Path(sys.argv[1])), end='')

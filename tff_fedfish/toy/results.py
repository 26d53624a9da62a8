"""The toy regression: its settings, and the numbers and the page of all seeds.

Importing this does not take TensorFlow.
"""

import dataclasses
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tff_fedfish import files
from tff_fedfish.errors import UserError
from tff_fedfish.evaluation import statistics
from tff_fedfish.progress import Progress
from tff_fedfish.reporting.evaluations import Interval
from tff_fedfish.version import __version__

METHODS = {'fed_avg': 'FedAvg', 'fed_fish': 'FedFish'}
"""Name -> title of the methods, in the order of columns."""

SUPPORTS = {
  'full': ((-2.0, 2.0), (-2.0, 2.0)),
  'partial': ((-2.0, 0.5), (-0.5, 2.0)),
  'none': ((-2.0, -0.5), (0.5, 2.0)),
}
"""Interval of each client's inputs, by how far the two overlap."""

OVERLAPS = {
  'full': 'full overlap',
  'partial': 'partial overlap',
  'none': 'no overlap',
}
"""Words for the keys of `SUPPORTS`."""

GRID = np.linspace(-2.2, 2.2, 221, dtype=np.float32)
"""Inputs at which the functions are drawn, a little beyond the data."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToySettings:
  """Settings of the task, the model and the local training."""

  num_seeds: int = 10
  """Number of draws of data and weights: seeds 0, 1, ...; >= 1."""
  num_examples: int = 100
  """Examples per client, >= 1."""
  noise: float = 0.05
  """Standard deviation of the targets around the function, >= 0."""
  hidden_widths: tuple[int, ...] = (64, 64)
  """Units of the hidden layers, each >= 1."""
  num_local_steps: int = 500
  """Full-batch steps per client, >= 0."""
  learning_rate: float = 0.005
  """Learning rate of the clients' Adam, > 0."""
  relative_floor: float = 1e-8
  """See `fisher.fisher_weighted_terms`."""

  def __post_init__(self):
    if self.num_seeds < 1:
      raise UserError(
        f'`--num_seeds` must be at least 1, found {self.num_seeds}. Say how '
        'many times to draw data and weights, such as 10.'
      )


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Round:
  """One round of two clients."""

  inputs: np.ndarray
  """Float32 [2, num_examples]."""
  targets: np.ndarray
  """Float32 [2, num_examples]."""
  errors: dict[str, np.ndarray]
  """Mean squared error on each client's training data, float64 [2], of the
  client's own trained model ('local') and of each method's new global model."""
  curves: dict[str, np.ndarray]
  """Predictions on `GRID`, float32, by 'client_1', 'client_2' and methods."""


def run_toy(
  output: str | os.PathLike, settings: ToySettings
) -> tuple[pathlib.Path, dict[str, Any]]:
  """Runs one round for every seed and support, and writes the results.

  Args:
    output: A directory that is new or empty. Receives `index.html`, `toy.json`,
      `toy.svg` and `toy.png`, all or none.
    settings: Settings of the rounds.

  Returns:
    (path of the page, contents of toy.json).

  Raises:
    UserError: If the output cannot be used.
  """
  output = files.require_usable_output(output, '--output')
  # Late: the errors above must not wait for TensorFlow and matplotlib.
  from tff_fedfish.toy import one_round
  from tff_fedfish.toy.figure import toy_figure

  seeds = []
  with Progress('toy', settings.num_seeds, unit='seed') as progress:
    for seed in range(settings.num_seeds):
      seeds.append(one_round.run_rounds(seed, settings))
      progress.advance()
  numbers = summarize(seeds, settings)
  figure = toy_figure(seeds[0], numbers)
  with files.write_directory_atomically(output) as directory:
    files.write_json(directory / 'toy.json', numbers)
    (directory / 'toy.svg').write_text(f'{figure.svg}\n', encoding='utf-8')
    (directory / 'toy.png').write_bytes(figure.png)
    page = render_page(numbers, figure)
    (directory / 'index.html').write_text(page, encoding='utf-8')
  return output / 'index.html', numbers


def summarize(
  seeds: Sequence[Mapping[str, Round]], settings: ToySettings
) -> dict[str, Any]:
  """Returns the contents of toy.json: settings, summary and every seed.

  Args:
    seeds: For each seed its rounds by support.
    settings: Settings of the rounds.
  """
  numbers = [
    {name: round_numbers(round_) for name, round_ in rounds.items()}
    for rounds in seeds
  ]
  return {
    'schema_version': 1,
    'fedfish': __version__,
    'settings': {
      **dataclasses.asdict(settings),
      'target': 'sin(3x) + 0.3x',
      'supports': SUPPORTS,
    },
    'summary': {
      name: _summary([supports[name] for supports in numbers])
      for name in SUPPORTS
    },
    'seeds': [
      {'seed': seed, 'supports': supports}
      for seed, supports in enumerate(numbers)
    ],
  }


def round_numbers(round_: Round) -> dict[str, Any]:
  """Returns the numbers of a round in toy.json.

  'barrier' is the Client-Server Barrier, equation 5 of the paper, of each
  method. 'best_constant_barrier' is that of the constant that fits both clients
  best: a global model above it predicts worse than one that does not look at x.
  """
  constant = np.square(round_.targets - round_.targets.mean()).mean(axis=1)
  local = round_.errors['local']
  return {
    'barrier': {
      method: float((errors - local).mean())
      for method, errors in round_.errors.items()
      if method != 'local'
    },
    'best_constant_barrier': float((constant - local).mean()),
    'clients': [
      {f'{name}_mse': float(mse[k]) for name, mse in round_.errors.items()}
      for k in range(len(local))
    ],
  }


def findings(numbers: dict[str, Any]) -> str:
  """Returns one sentence with the means, without any judgement."""
  num_seeds = len(numbers['seeds'])
  clauses = [
    f'with {OVERLAPS[support]} {signed(found["barrier"]["fed_avg"]["mean"])} '
    f'under FedAvg and {signed(found["barrier"]["fed_fish"]["mean"])} under '
    f'FedFish, which is lower in {found["num_seeds_fed_fish_lower"]} of '
    f'{num_seeds} (best constant: {signed(found["best_constant_barrier"])})'
    for support, found in numbers['summary'].items()
  ]
  return (
    f'Mean Client-Server Barrier over {num_seeds} '
    f'seed{"s" * (num_seeds != 1)}, in mean squared error: '
    f'{"; ".join(clauses)}.'
  )


def render_page(numbers: dict[str, Any], figure: Any) -> str:
  """Returns the page: HTML that refers to nothing outside itself.

  Args:
    numbers: Contents of toy.json.
    figure: `figure.toy_figure` of the same numbers.
  """
  # Late: jinja2 and matplotlib take time to import.
  import jinja2

  from tff_fedfish.toy.figure import CLIENT_COLORS, METHOD_STYLES

  rooms = ('tff_fedfish.toy', 'tff_fedfish.reporting')
  environment = jinja2.Environment(
    loader=jinja2.ChoiceLoader(list(map(jinja2.PackageLoader, rooms))),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
  )
  environment.filters['signed'] = signed
  return environment.get_template('toy.html.j2').render(
    numbers,
    generator=f'fedfish toy {__version__}',
    title='Toy regression: FedAvg and FedFish',
    findings=findings(numbers),
    colors={
      'client 1': CLIENT_COLORS[0],
      'client 2': CLIENT_COLORS[1],
      **{METHODS[name]: look.color for name, look in METHOD_STYLES.items()},
    },
    methods=METHODS,
    overlaps=OVERLAPS,
    largest_local_mse=max(
      client['local_mse']
      for entry in numbers['seeds']
      for found in entry['supports'].values()
      for client in found['clients']
    ),
    figure=figure,
  )


def signed(number: float, spec: str = 'z.4f') -> str:
  """Returns a number with a minus sign where it is negative, not a hyphen."""
  return format(number, spec).replace('-', '−')


def _summary(numbers: Sequence[dict[str, Any]]) -> dict[str, Any]:
  """Returns means over seeds, with bootstrap intervals over seeds."""
  of_methods = {
    method: np.array([found['barrier'][method] for found in numbers])
    for method in METHODS
  }
  differences = of_methods['fed_fish'] - of_methods['fed_avg']
  constants = [found['best_constant_barrier'] for found in numbers]
  return {
    'barrier': {name: _interval(values) for name, values in of_methods.items()},
    'best_constant_barrier': float(np.mean(constants)),
    'fed_fish_minus_fed_avg': _interval(differences),
    'num_seeds_fed_fish_lower': int((differences < 0).sum()),
  }


def _interval(values: np.ndarray) -> dict[str, Any]:
  summary = statistics.summarize(values, seed=0)
  names = ('mean', 'ci_low', 'ci_high')
  return dataclasses.asdict(Interval(**{n: summary[n] for n in names}))

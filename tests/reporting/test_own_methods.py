"""Methods outside the package on the page, and what makes a method."""

import csv
import dataclasses
import html
import itertools
import random
import sys

import pytest

from tff_fedfish.methods import registry
from tff_fedfish.reporting import (
  barriers,
  comparisons,
  curves,
  loading,
  match,
  repetitions,
  style,
)
from tff_fedfish.reporting.report import write_report

# `relative_floor` is a setting of FedFish, too; so is the hue.
_MODULE = """
import dataclasses
from tff_fedfish import methods

@dataclasses.dataclass(frozen=True, kw_only=True)
class GainConfig(methods.AlgorithmConfig):
  relative_floor: float = methods.number(0.5, at_least=0)

METHOD = methods.Method(
  name='gain',
  title='Gain {1}',
  summary='One line.',
  source='Nobody (2024)',
  settings=GainConfig,
  builder='gains.gain:build',
  traffic=lambda config: methods.Traffic(uplink=2),
  cost=lambda config: methods.ClientCost(passes_after_training=1),
  columns=lambda config: (
    methods.Column('train/gain', ('client_work', 'gain')),
    methods.Column('train/num_losses', ('client_work', 'num_losses')),
  ),
  hue='#D55E00',
)
"""
_NAME = 'gains.gain'


@pytest.fixture(autouse=True)
def _own_method(tmp_path, monkeypatch):
  """Puts the module on the path, and takes it back out of the registry."""
  package = tmp_path / 'path' / 'gains'
  package.mkdir(parents=True)
  (package / '__init__.py').touch()
  (package / 'gain.py').write_text(_MODULE)
  monkeypatch.syspath_prepend(package.parent)
  monkeypatch.setattr(registry, '_found', {})
  registry._from_module.cache_clear()
  yield
  registry._from_module.cache_clear()
  for name in ('gains', _NAME):
    sys.modules.pop(name, None)


def _set(run, name, value):
  """Returns a run with another setting; it need not exist yet."""
  section, key = name.split('.')
  values = {**run.config.get(section, {}), key: value}
  return dataclasses.replace(run, config={**run.config, section: values})


@pytest.mark.parametrize('algorithm', [_NAME, 'absent.gain'])
def test_variants_are_neither_pooled_nor_dropped(
  tmp_path, write_run, write_evaluation, algorithm
):
  directories = []
  for floor, seed in itertools.product((0.25, 0.75), (1, 2)):
    run = write_run(
      tmp_path / f'{floor}_{seed}',
      algorithm=algorithm,
      settings={'algorithm.relative_floor': floor, 'seeds.model_seed': seed},
    )
    # The larger value gains one nat.
    write_evaluation(run, 'e', losses={0.0: (7.0 - 2 * floor,) * 4})
    directories.append(run)
  runs = loading.load_runs(directories)
  pooled = repetitions.pool_repetitions(runs)
  title = runs[0].method
  assert [run.label for run in pooled] == [
    f'{title}, E = 1, algorithm.relative_floor = {floor}'
    for floor in (0.25, 0.75)
  ]
  [row, _] = comparisons.compare_methods(runs).itertuples()
  assert row.baseline == f'{title} (relative_floor 0.25)'
  assert row.method == f'{title} (relative_floor 0.75)'
  assert (row.measure, row.mean, row.num_seeds) == ('loss', -1.0, 2)


def test_settings_of_other_methods_make_no_variant(tmp_path, write_run):
  # Former versions wrote them into every run.
  runs = loading.load_runs(
    [
      write_run(
        tmp_path / f'{algorithm}_{estimator}',
        algorithm=algorithm,
        settings={
          'algorithm.fisher_estimator': estimator,
          'seeds.model_seed': seed,
        },
      )
      for algorithm in ('fed_avg', _NAME)
      for seed, estimator in enumerate(('extra_pass', 'last_epoch'))
    ]
  )
  pooled = repetitions.pool_repetitions(runs)
  assert [run.num_seeds for run in pooled] == [2, 2]


def test_the_optimizers_make_a_method(tmp_path, write_run):
  [run] = loading.load_runs([write_run(tmp_path / 'run')])
  for name in (
    *('client_work.optimizer', 'client_work.weight_decay'),
    *('client_work.max_gradient_norm', 'client_work.warmup_rounds'),
    *('server.momentum', 'server.learning_rate_schedule'),
  ):
    other = _set(run, name, 'other')
    assert match.method_of(other) != match.method_of(run), name
    assert match.setting_of(other) == match.setting_of(run), name


def test_local_steps_are_a_setting_that_methods_share(tmp_path, write_run):
  [run] = loading.load_runs([write_run(tmp_path / 'run')])
  other = _set(run, 'client_work.num_local_steps', 2)
  assert match.method_of(other) == match.method_of(run)
  assert match.setting_of(other) != match.setting_of(run)


def test_names_say_whose_optimizer_differs(tmp_path, write_run):
  [run] = loading.load_runs([write_run(tmp_path / 'run')])
  keys = [
    match.method_of(
      _set(_set(run, 'client_work.beta_1', ours), 'server.beta_1', theirs)
    )
    for ours, theirs in ((0.8, 0.9), (0.9, 0.8))
  ]
  assert match.method_names(keys) == [
    'FedFish (client beta_1 0.8, server beta_1 0.9)',
    'FedFish (client beta_1 0.9, server beta_1 0.8)',
  ]


def test_another_optimizer_is_another_line(tmp_path, write_run):
  runs = loading.load_runs(
    [write_run(tmp_path / str(e), num_local_epochs=e) for e in (1, 4)]
  )
  # Rates, and over how many rounds they change, go with local epochs.
  tuned = _set(runs[1], 'server.schedule_rounds', 30)
  assert len(match.methods([runs[0], tuned])) == 1
  other = _set(runs[1], 'client_work.optimizer', 'adamw')
  assert list(match.methods([runs[0], other])) == [
    "FedFish (client optimizer 'sgd')",
    "FedFish (client optimizer 'adamw')",
  ]


@pytest.mark.parametrize('hue', ['orange', '#d55e00', '#FFF'])
def test_a_hue_that_is_none_is_refused(hue):
  with pytest.raises(ValueError, match=f"'#RRGGBB' in .* found '{hue}'"):
    dataclasses.replace(registry.BASELINE, hue=hue)


def test_hues_differ_while_any_is_free(tmp_path, write_run):
  [run] = loading.load_runs([write_run(tmp_path / 'run')])
  names = ['fed_avg', 'fed_fish', _NAME, *(f'absent.m{k}' for k in range(7))]
  runs = [
    dataclasses.replace(_set(run, 'algorithm.name', name), label=name)
    for name in names
  ]
  styles = style.run_styles(runs)
  for look in ('color', 'hatch'):
    assert len({getattr(styles[name], look) for name in names}) == 10
  # What is built in keeps its own.
  assert (styles['fed_fish'].color, styles['fed_fish'].hatch) == ('#D55E00', '')
  random.Random(0).shuffle(runs)
  assert style.run_styles(runs) == styles
  # With more methods than hues there are equal ones.
  more = [
    dataclasses.replace(_set(run, 'algorithm.name', f'x.{k}'), label=f'x.{k}')
    for k in range(20)
  ]
  assert len({s.color for s in style.run_styles(more).values()}) == 8


def test_each_method_stands_against_the_baseline(
  tmp_path, write_run, write_evaluation, drawn
):
  directories = []
  for algorithm, barrier in (
    ('fed_avg', 0.5),
    ('fed_fish', 0.25),
    (_NAME, 0.75),
  ):
    directories.append(write_run(tmp_path / algorithm, algorithm=algorithm))
    write_evaluation(
      directories[-1], 'e', barriers=((4.0, 4.0 + barrier, 0.2, 0.1),) * 2
    )
  runs = loading.load_runs(directories)
  figures = barriers.barrier_scatters(runs)
  assert [figure.name for figure in figures] == [
    'barrier_loss_1',
    'barrier_error_1',
    'barrier_loss_2',
    'barrier_error_2',
  ]
  fish, _, gain, _ = figures
  assert fish.title == 'Client-Server Barrier in the loss, FedFish and FedAvg'
  assert gain.title == 'Client-Server Barrier in the loss, Gain {1} and FedAvg'
  # 0.25 and 0.75 against 0.5, for both clients.
  assert 'lower under FedFish, for these shares of clients: E = 1: 2 of 2' in (
    fish.caption
  )
  assert 'lower under Gain {1}, for these shares of clients: E = 1: 0 of 2' in (
    gain.caption
  )
  axes = drawn['barrier_loss_2'].axes[0]
  assert axes.get_xlabel().startswith('Gain {1}: barrier in the loss')


@pytest.mark.usefixtures('drawn')
@pytest.mark.parametrize(
  'algorithms, words',
  [
    (('fed_fish',), 'no pair of a FedFish and a FedAvg run'),
    ((_NAME,), 'no pair of a Gain {1} and a FedAvg run'),
    (('fed_avg',), 'no pair of another method’s and a FedAvg run'),
    (('fed_fish', _NAME), 'no pair of another method’s and a FedAvg run'),
  ],
)
def test_words_without_a_pair(
  tmp_path, write_run, write_evaluation, algorithms, words
):
  directories = []
  for algorithm in algorithms:
    directories.append(write_run(tmp_path / algorithm, algorithm=algorithm))
    write_evaluation(directories[-1], 'e', barriers=((4.0, 4.5, 0.2, 0.1),))
  runs = loading.load_runs(directories)
  [figure] = barriers.barrier_scatters(runs)
  assert words in figure.caption


@pytest.mark.usefixtures('drawn')
def test_passes_after_local_training_are_named(tmp_path, write_run):
  def caption(*algorithms):
    runs = loading.load_runs(
      write_run(
        tmp_path / f'{name}_{epochs}', algorithm=name, num_local_epochs=epochs
      )
      for name in algorithms
      for epochs in (1, 4)
    )
    figures = curves.cost_curves(runs)
    [found] = [f for f in figures if f.name == 'communication_local_epochs']
    return found.caption

  words = ' pass after local training, where it makes one, comes on top.'
  found = caption('fed_avg', 'fed_fish', _NAME)
  assert f' FedFish’s{words} Gain {{1}}’s{words} ' in found
  assert words not in caption('fed_avg')


def test_the_page_shows_all_of_a_method(tmp_path, write_run, write_evaluation):
  directories = [
    write_run(tmp_path / 'average', algorithm='fed_avg'),
    write_run(
      tmp_path / 'gain',
      algorithm=_NAME,
      units_per_round=2,
      settings={'algorithm.relative_floor': 0.375},
    ),
    write_run(tmp_path / 'absent', algorithm='absent.gain'),
  ]
  for directory in directories:
    write_evaluation(
      directory,
      'e',
      barriers=((4.0, 4.5, 0.2, 0.1),),
      effective_clients=3.25,
    )
  metrics = directories[1] / 'metrics.csv'
  header, *rows = metrics.read_text().splitlines()
  lines = [f'{header},train/gain,train/num_losses']
  lines += [f'{row},{-r / 64},0' for r, row in enumerate(rows)]
  metrics.write_text('\n'.join(lines) + '\n')
  path = write_report(loading.load_runs(directories), tmp_path / 'report')
  page = html.unescape(path.read_text())
  assert '<h1>Federated pretraining: FedAvg, Gain {1} and absent.gain</h1>' in (
    page
  )
  assert 'Metrics of single methods, last values' in page
  assert '<th scope="col">train/gain</th>' in page
  # Of round 2; nothing was lost in any run.
  assert '<td><span class="value">−0.03125</span></td>' in page
  assert 'train/num_losses' not in page
  assert '<em>differs:</em> 1e-08 / 0.375 / 1e-08</td>' in page
  assert 'Gain {1} − FedAvg' in page
  assert (
    "absent.gain, E = 1: the method 'absent.gain' cannot be loaded: its "
    'settings are as written.'
  ) in page
  # Two rounds of two models.
  with (tmp_path / 'report' / 'summary.csv').open() as file:
    units = [row['communication/uplink_units'] for row in csv.DictReader(file)]
  assert units == ['2', '4', '2']

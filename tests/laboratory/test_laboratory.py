"""`fedfish laboratory`, on a corpus of twelve hosts."""

import csv
import dataclasses
import json
import pathlib

import numpy as np
import pytest
import small_runs

from tff_fedfish.cli.main import main
from tff_fedfish.laboratory.laboratory_file import LaboratoryFile
from tff_fedfish.run import cohort_data, learning_setup, run_inputs
from tff_fedfish.runtime import round_options
from tff_fedfish.runtime.in_process_context import set_in_process_context

_LABORATORY = """\
    dict(
      grid={'seeds.cohort_seed': [1, 2]},
      local_epochs=[1, 3],
      cohort_sizes=[2, 4],
      weightings=[
        dict(),
        dict(fisher_power=0.5, plain_mean_fraction=0.5),
        dict(fisher_of='another'),
        dict(plain_mean_tensors='logits', step_length='plain_mean'),
      ],
      num_validation_clients=1,
      num_scored_clients=1,
    )"""


@pytest.fixture(scope='module')
def make_file(small_inputs, tmp_path_factory):
  """Returns a function that writes a laboratory file."""

  def make(laboratory=_LABORATORY, **settings):
    path = tmp_path_factory.mktemp('file') / 'laboratory.py'
    values = small_runs.overrides(
      *small_inputs,
      **{
        'algorithm__name': 'fed_fish',
        'server__optimizer': 'sgd',
        'server__learning_rate': 1.0,
        # Deltas far above the rounding of the weights.
        'client_work__learning_rate': 1.0,
        'client_splits__held_out_fraction': 0.4,
        **settings,
      },
    )
    path.write_text(
      'import runpy\n\nfrom ml_collections import ConfigDict\n\n\n'
      'def get_config():\n'
      f"  return runpy.run_path({small_runs.CONFIG!r})['get_config']()\n\n\n"
      'def get_laboratory():\n'
      f'  return ConfigDict({laboratory}, allow_dotted_keys=True)\n'
    )
    return ['laboratory', '--config', str(path), *values]

  return make


@pytest.fixture(scope='module')
def done(make_file, tmp_path_factory):
  """Returns the arguments and the directory of a laboratory."""
  arguments = make_file()
  workdir = tmp_path_factory.mktemp('done') / 'laboratory'
  assert main([*arguments, '--workdir', str(workdir), '--keep']) == 0
  return arguments, workdir


def _rows(path):
  with path.open(newline='') as file:
    return list(csv.DictReader(file))


def test_row_for_every_weighting_of_every_cell(done):
  rows = _rows(done[1] / 'laboratory.csv')
  cells = {
    (r['seeds.cohort_seed'], r['local_epochs'], r['cohort_size']) for r in rows
  }
  # The plain mean is added.
  assert len(cells) == 8 and len(rows) == 8 * 5
  for cell in range(8):
    plain, fish, *_ = rows[5 * cell : 5 * cell + 5]
    assert float(plain['cosine']) == pytest.approx(1)
    assert float(plain['norm_ratio']) == 1
    assert 0 < float(fish['cosine']) < 1
    assert float(plain['best_loss']) > 0
    # A step of 1 was among those tried.
    assert float(plain['best_validation_loss']) <= 10


def test_fed_fish_is_that_of_a_real_round(done):
  """The round has one partial sum; its server adds the mean."""
  arguments, workdir = done
  file = LaboratoryFile(arguments[2], arguments[3:])
  point = file.points()[0]
  work = dataclasses.replace(point.config.client_work, num_local_epochs=1)
  config = dataclasses.replace(point.config, client_work=work)
  set_in_process_context()
  process = learning_setup.build_learning_process(config)
  corpus = run_inputs.open_corpus(config, config.data.directory)
  tokenizer = run_inputs.open_tokenizer(config, config.data.vocabulary)
  cohort = cohort_data.cohort(
    config,
    run_inputs.split_corpus(config, corpus).participating,
    run_inputs.client_rows(config, corpus, tokenizer),
    1,
  )
  state = process.initialize()
  options = round_options.RoundOptions(num_partial_sums=1)
  with round_options.use_round_options(options):
    after = process.next(state, cohort).state
  before, after = (
    process.get_model_weights(s).trainable for s in (state, after)
  )
  from tff_fedfish.laboratory.cohort_means import Cohort
  from tff_fedfish.laboratory.trained_cohort import StoredClient
  from tff_fedfish.laboratory.weightings import Weighting

  directory = workdir / 'cohorts' / point.name
  found = Cohort(
    [StoredClient(p) for p in sorted(directory.glob('*-E1.npz'))],
    relative_floor=config.algorithm.relative_floor,
  ).mean(Weighting())
  for start, end, mean in zip(before, after, found, strict=True):
    np.testing.assert_allclose(start - mean, end, rtol=1e-6, atol=1e-7)
    assert np.abs(mean).max() > 3e-4


def test_logits_keep_the_predicted_frequencies(done):
  rows = _rows(done[1] / 'token_mass.csv')
  first = [r for r in rows if r['fisher_power'] == '0.0'][:3]
  assert [r['num_holders'] for r in first] == ['0', '1', '2-3']
  for name in ('actual', 'predicted'):
    assert sum(float(r[name]) for r in first) == pytest.approx(1)
  assert sum(int(r['num_tokens']) for r in first) == 256


def test_same_command_does_what_is_left(done, make_file, capsys):
  arguments, workdir = done
  table = (workdir / 'laboratory.csv').read_bytes()
  # One cell, and the client that an interrupted run did not reach.
  cell = workdir / 'cells' / 'cohort_seed2-E3-N4.csv'
  client = workdir / 'cohorts' / 'cohort_seed2' / 'client_0003-E3.npz'
  stored = client.read_bytes()
  cell.unlink()
  client.unlink()
  assert main([*arguments, '--workdir', str(workdir), '--keep']) == 0
  assert '1 of 2 cohorts are left' in capsys.readouterr().err
  assert (workdir / 'laboratory.csv').read_bytes() == table
  with np.load(client) as again:
    assert again['delta/0'].any()
  assert len(client.read_bytes()) == len(stored)
  # A cohort that is done is not kept without the option.
  cell.unlink()
  assert main([*arguments, '--workdir', str(workdir)]) == 0
  assert not client.parent.exists()


def test_from_a_checkpoint(make_file, small_run, tmp_path):
  laboratory = _LABORATORY.replace('[1, 2]', '[1]').replace('[2, 4]', '[2]')
  arguments = make_file(laboratory.replace('[1, 3]', '[1]'))
  workdir = tmp_path / 'laboratory'
  arguments += ['--workdir', str(workdir), '--checkpoint', str(small_run)]
  assert main(arguments) == 0
  rows = _rows(workdir / 'laboratory.csv')
  assert {row['round'] for row in rows} == {'5'}
  found = json.loads((workdir / 'laboratory.json').read_text())
  assert found['checkpoint']['round'] == 4


def test_differences_to_the_plain_mean(done, capsys):
  table = _rows(done[1] / 'comparison.csv')
  rows = _rows(done[1] / 'laboratory.csv')
  assert len(table) == 4 * 5
  of_fish = [
    float(r['loss']) - float(p['loss'])
    for p, r in zip(rows[::5], rows[1::5], strict=True)
    if p['local_epochs'] == '3' and p['cohort_size'] == '4'
  ]
  (found,) = (
    r
    for r in table
    if (r['local_epochs'], r['cohort_size'], r['weighting'])
    == ('3', '4', 'p1 s0')
  )
  assert float(found['loss_difference']) == pytest.approx(np.mean(of_fish))
  (control,) = (
    r
    for r in table
    if (r['local_epochs'], r['cohort_size'], r['weighting'])
    == ('3', '4', "p1 s0, another's F")
  )
  assert float(found['control_difference']) == pytest.approx(
    float(found['best_loss_difference'])
    - float(control['best_loss_difference'])
  )
  assert not control['control_difference']
  # Two seeds have no interval.
  assert found['num_seeds'] == '2' and not found['loss_half_width']
  assert (done[1] / 'laboratory.png').read_bytes().startswith(b'\x89PNG')
  assert '<svg' in (done[1] / 'laboratory.svg').read_text()


def test_dry_run_names_cohorts_and_weightings(make_file, capsys):
  assert main([*make_file(), '--dry_run']) == 0
  text = capsys.readouterr().out
  assert 'cohort_seed2' in text
  assert "p1 s0, another's F" in text
  assert 'p1 s0, logits plain, plain length' in text


@pytest.mark.parametrize(
  ('old', 'new', 'words'),
  [
    ('cohort_sizes=', 'sizes=', '`sizes` is unknown; known are grid, local_ep'),
    (
      'local_epochs=[1, 3]',
      'local_epochs=[3, 1]',
      '`local_epochs` must be a list of ascending ints of at least 1, found '
      '[3, 1]',
    ),
    (
      'fisher_power=0.5',
      'fisher_power=5',
      '`weightings`, number 2: `fisher_power` must be from 0 to 1, found 5',
    ),
    (
      "fisher_of='another'",
      "fisher_of='nobody'",
      '`weightings`, number 3: `fisher_of` must be one of own, another, found '
      "'nobody'",
    ),
    (
      'dict(),',
      'dict(power=1),',
      '`weightings`, number 1: must be a dictionary with some of fisher_power',
    ),
    (
      'num_scored_clients=1',
      'num_scored_clients=0',
      '`num_scored_clients` must be an int of at least 1, found 0',
    ),
    (
      'num_scored_clients=1',
      'num_scored_clients=90',
      'are 91 together, but only',
    ),
  ],
)
def test_what_the_file_gets_wrong(make_file, tmp_path, capsys, old, new, words):
  assert old in _LABORATORY
  arguments = make_file(_LABORATORY.replace(old, new))
  assert main([*arguments, '--workdir', str(tmp_path / 'x')]) == 2
  assert words in capsys.readouterr().err


def test_method_without_a_diagonal_is_refused(make_file, tmp_path, capsys):
  arguments = make_file(algorithm__fisher_power=0.0)
  assert main([*arguments, '--workdir', str(tmp_path / 'x')]) == 2
  assert 'clients send a Fisher diagonal' in capsys.readouterr().err


def test_directory_of_another_laboratory_is_refused(done, make_file, capsys):
  arguments = make_file(_LABORATORY.replace('[1, 3]', '[1, 4]'))
  assert main([*arguments, '--workdir', str(done[1])]) == 2
  assert "was begun with another 'local_epochs'" in capsys.readouterr().err
  arguments = [*make_file(), '--config.client_work.local_batch_size=3']
  assert main([*arguments, '--workdir', str(done[1])]) == 2
  assert (
    "was begun with another 'client_work.local_batch_size'. Use the same file"
  ) in capsys.readouterr().err


def test_shipped_files_are_read():
  configs = pathlib.Path(small_runs.CONFIG).parent
  for name in ('mnist_laboratory', 'debian_laboratory'):
    file = LaboratoryFile(configs / f'{name}.py')
    assert len(file.points()) >= 9

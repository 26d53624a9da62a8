"""`fedfish report` from the outside: what it writes, and how it refuses."""

import json
import pathlib
import subprocess
import sys

import pytest

from tff_fedfish.cli.main import main

_ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture
def run_directory(tmp_path):
  directory = tmp_path / 'fed_fish'
  directory.mkdir()
  (directory / 'config.json').write_text(
    json.dumps(
      {
        'schema_version': 3,
        'algorithm': {'name': 'fed_fish'},
        'client_work': {
          'num_local_epochs': 4,
          'local_batch_size': 4,
          'learning_rate': 0.1,
        },
        'server': {'learning_rate': 0.001},
        'model': {'preset': 'tiny'},
        'data': {
          'directory': 'corpora/debian',
          'vocabulary': 'vocabularies/debian',
          'sequence_length': 64,
        },
        'cohorts': {'cohort_size': 8},
        'training': {'num_rounds': 2},
        'evaluation': {'every_num_rounds': 2, 'num_clients': 8},
        'checkpoints': {'every_num_rounds': 2},
      }
    )
  )
  (directory / 'metrics.csv').write_text(
    'round,held_out/loss\n0,8.0\n1,\n2,7.25\n'
  )
  return directory


def _refusal(capsys, *argv):
  """Returns the one line that `fedfish report` refuses with."""
  assert main(['report', *map(str, argv)]) == 2
  captured = capsys.readouterr()
  assert captured.out == ''
  [line] = captured.err.splitlines()
  return line


def test_writes_a_page_and_says_where(run_directory, tmp_path, capsys):
  output = tmp_path / 'new' / 'report'
  assert (
    main(['report', '--runs', str(run_directory), '--output', str(output)]) == 0
  )
  assert capsys.readouterr().out == f'Report: {output / "index.html"}\n'
  page = (output / 'index.html').read_text()
  assert 'FedFish, E = 4' in page
  assert '7.25' in page
  assert (output / 'figures' / 'curves.png').is_file()


def test_an_earlier_report_among_the_runs(run_directory, tmp_path, capsys):
  report = tmp_path / 'report'
  for runs in ([run_directory], [run_directory, report]):
    command = ['report', '--runs', *map(str, runs), '--output', str(report)]
    assert main(command) == 0
  note = f'fedfish: note: skipped the report {str(report)!r}'
  assert capsys.readouterr().err == f'{note}\n'
  command = ['report', '--runs', str(report), '--output', str(tmp_path / 'b')]
  assert main(command) == 2
  assert 'names only reports' in capsys.readouterr().err


@pytest.mark.parametrize(
  'file_format, start',
  [('png', b'\x89PNG'), ('svg', b'<svg '), ('pdf', b'%PDF-')],
)
def test_figure_formats(run_directory, tmp_path, file_format, start):
  output = tmp_path / 'report'
  argv = ['--runs', str(run_directory), '--output', str(output)]
  assert main(['report', *argv, '--figure_format', file_format]) == 0
  picture, numbers = (
    output / 'figures' / f'curves.{suffix}' for suffix in (file_format, 'csv')
  )
  assert set((output / 'figures').iterdir()) == {picture, numbers}
  assert picture.read_bytes().startswith(start)
  # Round 1 has no loss.
  assert numbers.read_text() == (
    'panel,series,point,x,y\n'
    'Held-out loss (nats per token),"FedFish, E = 4",0,0,8.0\n'
    'Held-out loss (nats per token),"FedFish, E = 4",2,2,7.25\n'
  )
  # Whatever the files are, the page shows the same and links to them.
  page = (output / 'index.html').read_text()
  assert page.count('<svg') == 1
  assert f'href="figures/{picture.name}"' in page
  assert f'href="figures/{numbers.name}"' in page


def test_something_that_is_no_run(run_directory, tmp_path, capsys):
  (run_directory / 'config.json').unlink()
  output = tmp_path / 'report'
  line = _refusal(capsys, '--runs', run_directory, '--output', output)
  assert line.startswith('fedfish: error: `--runs` must name run directories')
  assert 'holds no config.json. Name the workdir of a run.' in line
  assert not output.exists()


def test_a_damaged_line(run_directory, tmp_path, capsys):
  with (run_directory / 'metrics.csv').open('a') as file:
    file.write('3,seven\n')
  line = _refusal(
    capsys, '--runs', run_directory, '--output', tmp_path / 'report'
  )
  assert 'metrics.csv' in line and 'line 5' in line and 'seven' in line


@pytest.mark.parametrize(
  'section, values, words',
  [
    (
      'training',
      {'num_rounds': 'abc'},
      "`config.training.num_rounds` must be an int, found 'abc'",
    ),
    ('data', None, '`config.data.directory` is required'),
  ],
)
def test_a_config_that_no_command_accepts(
  run_directory, tmp_path, capsys, section, values, words
):
  path = run_directory / 'config.json'
  config = json.loads(path.read_text()) | {section: values}
  if values is None:
    del config[section]
  path.write_text(json.dumps(config))
  output = tmp_path / 'report'
  line = _refusal(capsys, '--runs', run_directory, '--output', output)
  assert line.startswith(f'fedfish: error: Invalid config {str(path)!r}: ')
  assert words in line
  assert not output.exists()


def test_settings_that_came_later_have_their_defaults(
  run_directory, tmp_path, capsys
):
  # Most settings are not in this config.json; none is made up on the page.
  argv = ['--runs', str(run_directory), '--output', str(tmp_path / 'report')]
  assert main(['report', *argv]) == 0
  assert 'keep_last' not in (tmp_path / 'report' / 'index.html').read_text()


def test_an_output_that_holds_something_else(run_directory, tmp_path, capsys):
  line = _refusal(capsys, '--runs', run_directory, '--output', run_directory)
  assert '`--output` must be empty or new, or hold index.html' in line
  assert {p.name for p in run_directory.iterdir()} == {
    'config.json',
    'metrics.csv',
  }


def test_an_output_that_cannot_be_written(run_directory, capsys):
  if not pathlib.Path('/proc/self').exists():
    pytest.skip('this system has no /proc, where not even root may write')
  line = _refusal(capsys, '--runs', run_directory, '--output', '/proc/report')
  assert "`--output` must be writable, but '/proc/report' is not" in line


def test_a_report_needs_no_tensorflow(run_directory, tmp_path):
  done = subprocess.run(
    [
      sys.executable,
      '-c',
      'import sys, argparse; from tff_fedfish.cli import report; '
      'report.run(argparse.Namespace('
      f'runs=[{str(run_directory)!r}], output={str(tmp_path / "report")!r}, '
      'figure_format="png")); '
      'print("tensorflow" in sys.modules)',
    ],
    cwd=_ROOT,
    capture_output=True,
    text=True,
    check=True,
  )
  assert done.stdout.splitlines()[-1] == 'False'
  assert done.stderr == ''

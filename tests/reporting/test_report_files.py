"""The files of a report: whole, equal for equal runs, replaced at once."""

import os
import shutil
import subprocess
import sys

import pytest
from report_runs import write_evaluation, write_methods, write_run, write_sweep

from tff_fedfish.errors import UserError
from tff_fedfish.reporting import loading, report


def _files(directory):
  """Returns the contents of all files below a directory, by name."""
  return {
    str(path.relative_to(directory)): path.read_bytes()
    for path in directory.rglob('*')
    if path.is_file()
  }


@pytest.fixture
def one_plot(tmp_path):
  """A run whose report has one plot and is written in no time."""
  directory = write_run(tmp_path / 'one_plot')
  (directory / 'metrics.csv').write_text('round,held_out/loss\n0,8.0\n1,7.0\n')
  return loading.load_runs([directory])


@pytest.fixture
def copied(report_of_pair, tmp_path):
  """A copy of the report that a test may change."""
  return shutil.copytree(report_of_pair, tmp_path / 'report')


def test_files_of_a_report(report_of_pair):
  figures = {
    *('differences', 'held_out_scores', 'held_out_before_after'),
    *('transfer_1_scores', 'transfer_1_before_after'),
    *('curves', 'cost'),
  }
  assert _files(report_of_pair).keys() == {
    *('index.html', 'summary.csv', 'comparisons.csv', 'clients.csv'),
    *('reproduce.sh', 'three_seeds.sh', 'configs/average/config.json'),
    'configs/fish/config.json',
    *(f'figures/{n}.{end}' for n in figures for end in ('png', 'csv')),
  }


def test_commands_are_beside_the_page(report_of_pair, tmp_path):
  scripts = ('reproduce.sh', 'three_seeds.sh')
  again, more = (
    (report_of_pair / name).read_text().splitlines() for name in scripts
  )
  # Two more seeds of each run; not those on a corpus of unknown place.
  for command, counts in (('train', (2, 4)), ('evaluate', (4, 4))):
    word = f'fedfish {command} '
    found = tuple(sum(word in x for x in y) for y in (again, more))
    assert found == counts
  paths = [line.split()[3] for line in again if 'fedfish train' in line]
  assert all((report_of_pair / path).is_file() for path in paths)
  # Three seeds need no more.
  losses = {'fed_avg': [6.0] * 3, 'fed_fish': [5.0] * 3}
  runs = loading.load_runs(write_methods(tmp_path, losses))
  path = report.write_report(runs, tmp_path / 'report')
  assert not (path.parent / 'three_seeds.sh').exists()
  assert 'three_seeds.sh' not in path.read_text()


def test_names_that_are_no_unicode_are_replaced(one_plot, tmp_path):
  # A path with a byte that is not UTF-8, as Python and JSON hold it.
  path = tmp_path / 'one_plot' / 'config.json'
  path.write_text(path.read_text().replace('corpora/debian', 'c\\udcff/debian'))
  written = report.write_report(
    loading.load_runs([path.parent]), tmp_path / 'report'
  )
  assert '<td>c?/debian</td>' in written.read_text(encoding='utf-8')


def test_an_earlier_report_is_replaced_whole(copied, one_plot):
  (copied / 'figures' / 'stale.png').touch()
  first = (copied / 'index.html').read_bytes()
  assert (copied / 'figures' / 'cost.png').exists()
  report.write_report(one_plot, copied)
  assert {path.name for path in (copied / 'figures').iterdir()} == {
    'curves.png',
    'curves.csv',
  }
  assert (copied / 'index.html').read_bytes() != first
  # Neither the old nor a temporary directory is left.
  assert not list(copied.parent.glob('.*'))


def test_equal_runs_give_equal_reports(one_plot, tmp_path):
  # One lies in an empty directory that a link names.
  (tmp_path / 'real').mkdir()
  (tmp_path / 'link').symlink_to(tmp_path / 'real')
  report.write_report(one_plot, tmp_path / 'link')
  assert (tmp_path / 'link').is_symlink()
  report.write_report(one_plot, tmp_path / 'again')
  first, second = (_files(tmp_path / name) for name in ('real', 'again'))
  assert first.keys() == second.keys()
  # Names, not files: they hold pictures.
  assert [name for name in first if first[name] != second[name]] == []


def test_other_directories_are_left_alone(copied, tmp_path):
  (copied / 'notes.txt').touch()
  with pytest.raises(UserError, match="nothing else, but .* holds 'notes.txt'"):
    report.check_output(copied)
  (tmp_path / 'site').mkdir()
  page_of_mine = tmp_path / 'site' / 'index.html'
  page_of_mine.write_text('<html>My home page')
  with pytest.raises(UserError, match="also holds 'index.html'"):
    report.check_output(tmp_path / 'site')
  with pytest.raises(UserError, match='must be a directory, but'):
    report.check_output(page_of_mine)


def test_a_failure_while_writing_leaves_the_earlier_report(
  copied, one_plot, monkeypatch
):
  before, rename, renamed = _files(copied), os.rename, []

  def fail_once(path, new_path):
    renamed.append(new_path)
    if new_path == copied / 'index.html' and renamed.count(new_path) == 1:
      raise OSError(28, 'No space left on device')
    rename(path, new_path)

  # The last thing that happens: the page takes its place.
  monkeypatch.setattr('tff_fedfish.files.os.rename', fail_once)
  with pytest.raises(OSError, match='No space left'):
    report.write_report(one_plot, copied)
  assert _files(copied) == before
  assert not list(copied.parent.glob('.*'))


@pytest.mark.slow
def test_sixty_runs_take_a_minute_and_a_gigabyte_at_most(tmp_path):
  methods = ('fed_avg', 'fed_fish', 'fed_prox', 'scaffold')
  gains = {(m, epochs, 99): 1.0 for m in methods for epochs in range(1, 6)}
  runs = write_sweep(tmp_path / 'runs', gains)
  losses = {0.0: (6.0, 5.0) * 50, 0.25: (5.5, 4.5) * 50, 0.5: (5.0, 5.5) * 50}
  ids = tuple(f'client{n}.org' for n in range(100))
  for run in runs:
    write_evaluation(run, 'e', round_num=99, client_ids=ids, losses=losses)
  # The peak of wait4 would be that of the process that forked.
  program = (
    'import pathlib, re, sys, time; from tff_fedfish.cli.main import main; '
    'code = main(sys.argv[1:]); '
    'status = pathlib.Path("/proc/self/status").read_text(); '
    'print(time.process_time(), re.search(r"VmHWM:\\s*(\\d+)", status)[1]); '
    'sys.exit(code)'
  )
  command = [sys.executable, '-c', program, 'report', '--runs', *map(str, runs)]
  done = subprocess.run(
    [*command, '--output', str(tmp_path / 'report')],
    capture_output=True,
    text=True,
    check=True,
  )
  assert (tmp_path / 'report' / 'index.html').exists()
  seconds, kibibytes = map(float, done.stdout.splitlines()[-1].split())
  # Seconds of the processor, which other programs may share.
  assert seconds <= 60
  assert kibibytes <= 2**20

"""`fedfish doctor` says what works, and names a remedy for what does not."""

import json
import pathlib
import subprocess
import sys

import pytest

from tff_fedfish import doctor, environment
from tff_fedfish.cli import doctor as doctor_command
from tff_fedfish.cli.main import main
from tff_fedfish.version import __version__

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_GIB = 1 << 30


@pytest.fixture(scope='module')
def findings():
  return list(doctor.examine())


@pytest.mark.slow
def test_as_a_process_nothing_else_is_printed():
  done = subprocess.run(
    [sys.executable, '-m', 'tff_fedfish', 'doctor'],
    cwd=_ROOT,
    capture_output=True,
    text=True,
    timeout=300,
  )
  assert (done.returncode, done.stderr) == (0, '')
  lines = done.stdout.splitlines()
  assert lines[0] == f'fedfish {__version__}'
  assert lines[-1] == 'Ready.'
  for line in lines[1:-1]:
    assert line.startswith(('ok      ', 'warning ', '        -> '))


def test_everything_works_here(findings):
  assert doctor.is_usable(findings)
  assert [finding.name for finding in findings] == [
    'platform',
    'packages',
    'processor',
    'memory',
    'disk',
    'TensorFlow',
    'devices',
    'tokenizer',
    'TFF in process',
    'Beam in process',
  ]


def test_every_finding_that_is_not_ok_has_a_remedy(findings):
  for finding in findings:
    assert bool(finding.remedy) == (finding.status != 'ok')
    assert '\n' not in finding.found


def _broken():
  raise ImportError('libtensorflow_cc.so.2:\n  no such file')


def test_what_raises_is_a_problem_in_one_line():
  finding = doctor._attempt('TensorFlow', _broken)
  assert finding.status == 'problem'
  assert finding.found == 'ImportError: libtensorflow_cc.so.2: no such file'
  assert 'make .venv' in finding.remedy
  assert not doctor.is_usable([finding])


def test_warning_leaves_it_usable():
  finding = doctor._attempt('devices', lambda: 'CPU', lambda found: 'Buy one.')
  assert (finding.status, finding.remedy) == ('warning', 'Buy one.')
  assert doctor.is_usable([finding])


@pytest.mark.parametrize(
  ('version', 'system', 'machine', 'status'),
  [
    ((3, 11), 'linux', 'x86_64', 'ok'),
    ((3, 12), 'linux', 'x86_64', 'problem'),
    ((3, 11), 'darwin', 'x86_64', 'problem'),
    ((3, 11), 'linux', 'aarch64', 'problem'),
  ],
)
def test_platform(version, system, machine, status):
  finding = doctor._platform(version, system, machine)
  assert finding.status == status
  assert ('Use Python 3.11 on Linux' in finding.remedy) == (status == 'problem')


def test_wrong_and_missing_packages_are_named():
  finding = doctor._packages(
    {'tensorflow': '2.15.0', 'keras': None, 'rich': '1.0', 'jax': '0.4.20'},
    {'tensorflow': '2.14.1', 'jax': '0.4.20'},
  )
  assert finding.status == 'problem'
  assert finding.found == 'tensorflow is 2.15.0, not 2.14.1; keras is missing'
  assert 'make .venv' in finding.remedy


def test_little_memory_and_disk_are_warnings():
  memory = doctor._memory({'available': 3 * _GIB, 'total': 8 * _GIB})
  assert memory.status == 'warning'
  assert memory.found == '3.0 GiB available of 8.0'
  assert 'the demo takes up to 6 GiB' in memory.remedy
  assert (
    doctor._memory({'available': 7 * _GIB, 'total': 8 * _GIB}).status == 'ok'
  )
  assert doctor._disk(_GIB).status == 'warning'
  assert doctor._disk(3 * _GIB).status == 'ok'


def test_processor_without_avx_is_a_problem():
  assert doctor._processor(frozenset({'sse4_2'})).status == 'problem'
  assert doctor._processor(frozenset({'sse4_2', 'avx'})).status == 'ok'
  # Unknown is not absent.
  assert doctor._processor(frozenset()).status == 'ok'


def test_environment_facts_are_json_and_name_no_one():
  facts = environment.environment_facts()
  text = json.dumps(facts)
  assert facts['fedfish'] == __version__
  assert facts['packages']['tensorflow'] == '2.14.1'
  assert facts['cores'] >= 1
  assert facts['memory_bytes'] > _GIB
  assert 'CPU' in facts['devices']
  assert str(_ROOT) not in text
  home = str(pathlib.Path.home())
  assert home == '/' or home not in text


def test_git_facts(tmp_path):
  def git(*arguments):
    subprocess.run(
      ['git', '-c', 'user.name=A', '-c', 'user.email=a@b', *arguments],
      cwd=tmp_path,
      check=True,
      capture_output=True,
    )

  assert environment.git_facts(tmp_path) == {}
  git('init')
  # A tree without a commit.
  assert environment.git_facts(tmp_path) == {}
  (tmp_path / 'file').write_text('1')
  git('add', 'file')
  git('commit', '-m', 'One')
  facts = environment.git_facts(tmp_path)
  assert len(facts['git_commit']) == 40
  assert facts['git_modified'] is False
  (tmp_path / 'file').write_text('2')
  assert environment.git_facts(tmp_path) == {**facts, 'git_modified': True}
  # A directory inside another project's tree is not that project.
  (tmp_path / 'inside').mkdir()
  assert environment.git_facts(tmp_path / 'inside') == {}


def test_memory_is_within_what_the_machine_has():
  memory = environment.memory_bytes()
  assert 0 < memory['available'] <= memory['total']


@pytest.mark.parametrize('is_usable', [True, False])
def test_exit_code_and_last_line(is_usable, monkeypatch, capsys):
  status = 'ok' if is_usable else 'problem'
  finding = doctor.Finding(name='disk', status=status, found='1 GiB')
  monkeypatch.setattr(doctor, 'examine', lambda: iter([finding]))
  assert main(['doctor']) == (0 if is_usable else 1)
  last = capsys.readouterr().out.splitlines()[-1]
  assert last.startswith('Ready.' if is_usable else 'Not usable: ')


def test_prints_findings_for_people(capsys):
  doctor_command._print(
    doctor.Finding(name='disk', status='warning', found='1 GiB', remedy='Free.')
  )
  assert capsys.readouterr().out == 'warning disk: 1 GiB\n        -> Free.\n'

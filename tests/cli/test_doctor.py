"""`fedfish doctor` says what works, and names a remedy for what does not."""

import json
import os
import pathlib
import platform
import re
import subprocess
import sys

import pytest

from tff_fedfish import environment
from tff_fedfish.cli import doctor
from tff_fedfish.cli.main import main
from tff_fedfish.version import __version__

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_GIB = 1 << 30


@pytest.mark.slow
def test_everything_works_here_and_nothing_else_is_printed():
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
  for finding in (
    'TensorFlow: 1 x 3 + 2 x 4 = 11',
    'devices: CPU',
    'TFF in process: federated mean of 1 and 4: 2.5',
    'Beam in process: sums by key: right',
  ):
    assert f'ok      {finding}' in done.stdout


def test_a_machine_on_which_nothing_works(monkeypatch, capsys):
  monkeypatch.setattr(platform, 'machine', lambda: 'aarch64')
  versions = {'tensorflow-text': '2.15.0', 'keras': None, 'rich': '1.0'}
  memory = {'available': 3 * _GIB, 'total': 8 * _GIB}
  for name, value in (
    ('package_versions', versions),
    ('memory_bytes', memory),
    ('cpu_flags', frozenset({'sse4_2'})),
  ):
    monkeypatch.setattr(environment, name, lambda value=value: value)
  monkeypatch.setattr(doctor, '_MIN_DISK_GIB', 10**6)
  assert main(['doctor']) == 1
  lines = capsys.readouterr().out.splitlines()
  starts = (
    'problem platform: Python 3.11.',
    '        -> Use Python 3.11 on Linux x86-64',
    'problem packages: tensorflow-text is 2.15.0, not 2.14.0; keras is missing',
    '        -> Set up again: remove .venv, then `requirements/set_up.sh`.',
    'ok      processor: ',
    'warning memory: 3.0 GiB free',
    '        -> Free some: the demo needs 6 GiB.',
    'warning disk of the current directory: ',
    '        -> Free some: the demo needs 1000000 GiB.',
    'problem instructions: no AVX',
    '        -> Use a processor with AVX',
    'Not usable: ',
  )
  for line, start in zip(lines[1:], starts, strict=True):
    assert line.startswith(start)


def test_what_raises_is_a_problem_in_one_line(monkeypatch, capsys):
  def fail():
    raise ImportError('libtensorflow_cc.so.2:\n  no such file')

  for name in ('tensorflow', 'federated', 'beam'):
    monkeypatch.setattr(doctor, f'_try_{name}', fail)
  monkeypatch.setattr(environment, 'devices', lambda: ['CPU'])
  assert main(['doctor']) == 1
  assert (
    'problem TensorFlow: ImportError: libtensorflow_cc.so.2: no such file\n'
    '        -> Set up again'
  ) in capsys.readouterr().out


def test_environment_facts_are_json_and_name_no_one():
  facts = environment.environment_facts()
  text = json.dumps(facts)
  assert facts['fedfish'] == __version__
  assert facts['packages']['tensorflow'] == '2.14.1'
  assert facts['packages'].keys() > {*environment.PACKAGES, 'absl-py'}
  assert re.fullmatch('[0-9a-f]{64}', facts['sources_sha256'])
  assert facts['cores'] >= 1
  assert facts['memory_bytes'] > _GIB
  assert 'CPU' in facts['devices']
  assert str(_ROOT) not in text
  home = str(pathlib.Path.home())
  assert home == '/' or home not in text


def test_sources_that_emacs_locks(tmp_path, monkeypatch):
  monkeypatch.setattr(environment, '_ROOT', tmp_path)
  (tmp_path / 'configs').mkdir()
  (tmp_path / 'configs/own.py').touch()
  before = environment.sources_sha256()
  (tmp_path / 'configs/.#own.py').symlink_to('user@host.1:2')
  assert environment.sources_sha256() == before


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


_MIB = 1 << 20
# The process is in a/b. The limit of a is the smaller one; the quota is that of
# a/b: 1.5 cores.
_CGROUPS = {
  'version 2': {
    'own': '0::/a/b\n',
    'root/a/memory.max': 900 * _MIB,
    'root/a/memory.current': 800 * _MIB,
    'root/a/memory.stat': f'anon 5\ninactive_file {300 * _MIB}\n',
    'root/a/b/memory.max': 'max',
    'root/a/b/memory.current': 800 * _MIB,
    'root/a/b/cpu.max': '150000 100000',
    'root/a/cpu.max': 'max 100000',
  },
  'version 1': {
    'own': '4:memory:/a/b\n3:cpu,cpuacct:/a/b\n0::/\n',
    'root/memory/a/memory.limit_in_bytes': 900 * _MIB,
    'root/memory/a/memory.usage_in_bytes': 800 * _MIB,
    'root/memory/a/memory.stat': f'total_inactive_file {300 * _MIB}',
    'root/memory/a/b/memory.limit_in_bytes': 2**63 - 4096,
    'root/memory/a/b/memory.usage_in_bytes': 800 * _MIB,
    'root/cpu/a/b/cpu.cfs_quota_us': 150000,
    'root/cpu/a/b/cpu.cfs_period_us': 100000,
    'root/cpu/a/cpu.cfs_quota_us': -1,
  },
  'in a container, named as the host does': {
    'own': '0::/a/b\n',
    'root/memory.max': 900 * _MIB,
    'root/memory.current': 800 * _MIB,
    'root/memory.stat': f'inactive_file {300 * _MIB}',
    'root/cpu.max': '150000 100000',
  },
}


@pytest.mark.parametrize('written', _CGROUPS.values(), ids=_CGROUPS)
def test_limits_of_the_own_cgroup(written, tmp_path, monkeypatch):
  for name, text in written.items():
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text(f'{text}\n')
  monkeypatch.setattr(environment, '_CGROUP', tmp_path / 'root')
  monkeypatch.setattr(environment, '_OWN_CGROUP', tmp_path / 'own')
  monkeypatch.setattr(os, 'sched_getaffinity', lambda pid: set(range(96)))
  assert environment.num_cores() == 2
  memory = environment.memory_bytes()
  # Of 800 MiB 300 are cached files.
  assert memory == {'total': 900 * _MIB, 'available': 400 * _MIB}


def test_memory_is_within_what_the_machine_has():
  memory = environment.memory_bytes()
  assert 0 < memory['available'] <= memory['total']

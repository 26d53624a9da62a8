"""The package holds what it needs; the locks hold what it declares."""

import functools
import hashlib
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import warnings
import zipfile

import pytest
import source_files
from packaging import requirements

from tff_fedfish.version import __version__

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_REQUIREMENTS = _ROOT / 'requirements'


@pytest.fixture(scope='module')
def metadata(tmp_path_factory):
  """Returns the metadata of setup.py, as setuptools writes it."""
  directory = tmp_path_factory.mktemp('metadata')
  _setup_py('-q', 'egg_info', '--egg-base', str(directory))
  return directory / 'tff_fedfish.egg-info'


def _setup_py(*arguments):
  subprocess.run(
    [sys.executable, 'setup.py', *arguments],
    cwd=_ROOT,
    check=True,
    capture_output=True,
    timeout=300,
  )


def _names(requirements):
  return {re.split(r'[<>=!~;\[ ]', line)[0] for line in requirements}


def _declared_requirements(name):
  lines = (_REQUIREMENTS / name).read_text().splitlines()
  return [line for line in lines if line and line[0] not in '#-']


def _pins(name):
  """Returns package -> (version, number of hashes) of a lock file."""
  pins, current = {}, None
  for line in (_REQUIREMENTS / name).read_text().splitlines():
    pinned = re.match(r'([a-z0-9-]+)==([^ ;]+)', line)
    if pinned:
      current = pinned[1]
      pins[current] = (pinned[2], 0)
    elif re.fullmatch(r'    --hash=sha256:[0-9a-f]{64}( \\)?', line):
      version, hashes = pins[current]
      pins[current] = (version, hashes + 1)
    else:
      assert re.match(r' *#', line), f'{name} holds the line {line!r}'
  return pins


def test_metadata(metadata):
  text = (metadata / 'PKG-INFO').read_text()
  assert '\nName: tff-fedfish\n' in text
  assert f'\nVersion: {__version__}\n' in text
  requires_python = re.search('^Requires-Python: (.*)$', text, re.MULTILINE)[1]
  assert set(requires_python.split(',')) == {'>=3.11', '<3.12'}
  entry_points = (metadata / 'entry_points.txt').read_text()
  assert 'fedfish = tff_fedfish.cli.main:main' in entry_points


def test_declares_the_direct_dependencies(metadata):
  declared = (metadata / 'requires.txt').read_text().splitlines()
  listed = _declared_requirements('requirements.in')
  tools = {
    *('build', 'hypothesis', 'ruff', 'setuptools', 'wheel'),
    *('pytest', 'pytest-cov', 'pytest-timeout', 'pytest-xdist'),
  }
  assert _names(declared) == _names(listed) - tools
  # What is pinned there is pinned to the same version here.
  assert {line for line in declared if '==' in line} == {
    line for line in listed if '==' in line
  }


def test_wheel_holds_every_module_and_all_data(tmp_path):
  _setup_py(
    '-q',
    *('egg_info', '--egg-base', str(tmp_path)),
    *('build', '--build-base', str(tmp_path / 'build')),
    *('bdist_wheel', '--dist-dir', str(tmp_path)),
  )
  (wheel,) = tmp_path.glob('tff_fedfish-*.whl')
  found = set(zipfile.ZipFile(wheel).namelist())
  expected = {
    str(path.relative_to(_ROOT))
    for package in ('tff_fedfish', 'pipelines', 'models', 'configs')
    for path in source_files.files(package, '**/*.py')
  }
  for pattern in ('corpora/**/*', '*/templates/*'):
    for path in source_files.files('tff_fedfish', pattern):
      if not path.name.startswith('.'):
        expected.add(str(path.relative_to(_ROOT)))
  for suffix in ('.json.gz', '.html.j2'):
    assert any(name.endswith(suffix) for name in expected)
  assert not expected - found
  assert not [name for name in found if name.startswith('tests')]
  assert any(name.endswith('LICENSE') for name in found)


def _require_locked(declared, pins):
  """Checks that pins have hashes and hold what is declared, as declared."""
  assert not [package for package, (_, hashes) in pins.items() if not hashes]
  for line in _declared_requirements(declared):
    wanted = requirements.Requirement(line)
    (package,) = _names([line])
    assert package in pins
    assert wanted.specifier.contains(pins[package][0])


@pytest.mark.parametrize(
  'name', ['requirements.lock', 'requirements-cuda.lock']
)
def test_lock_pins_everything_with_hashes(name):
  pins = _pins(name)
  assert len(pins) > 100
  _require_locked('requirements.in', pins)


def test_cuda_lock_adds_only_cuda_wheels():
  pins, cuda_pins = _pins('requirements.lock'), _pins('requirements-cuda.lock')
  added = set(cuda_pins) - set(pins)
  assert pins.items() <= cuda_pins.items()
  assert {f'{name}=={cuda_pins[name][0]}' for name in added} == set(
    _declared_requirements('requirements-cuda.in')
  )


@pytest.mark.parametrize(
  'name', ['cluster', 'huggingface', 'trackers', 'docs', 'containers']
)
def test_lock_of_other_packages_adds_to_the_others(name):
  added = _pins(f'{name}.lock')
  assert not set(_pins('requirements.lock')) & set(added)
  _require_locked(f'{name}.in', added)


def test_set_up_files_name_no_index():
  for path in (
    *_REQUIREMENTS.iterdir(),
    _ROOT / 'setup.py',
    _ROOT / 'Makefile',
  ):
    if path.is_file():
      text = path.read_text()
      for word in ('index-url', 'find-links', 'trusted-host', 'file:', '://'):
        assert word not in text, f'{path.name} holds {word!r}'


def _run(*command, python='/bin/false', path='/usr/bin:/bin'):
  return subprocess.run(
    command,
    env={'PYTHON': python, 'PATH': path, 'HOME': '/none'},
    capture_output=True,
    text=True,
    timeout=300,
  )


def test_a_python_that_does_not_serve_is_named_in_one_line():
  done = _run(_REQUIREMENTS / 'find_python.sh')
  assert (done.returncode, done.stdout) == (1, '')
  assert done.stderr == (
    'set-up: PYTHON=/bin/false is no CPython 3.11 with venv and ensurepip; '
    'name another, or leave PYTHON out.\n'
  )


def test_found_python_serves():
  done = _run(_REQUIREMENTS / 'find_python.sh', python=sys.executable)
  assert done.returncode == 0
  # Not the one in .venv, which set-up may have to remove.
  found = pathlib.Path(done.stdout.strip())
  assert found == pathlib.Path(sys._base_executable)


@pytest.fixture
def set_up(tmp_path):
  """Runs set_up.sh in a tree of its own that holds a .venv."""
  (tmp_path / 'requirements').mkdir()
  (tmp_path / 'tff_fedfish').mkdir()
  (tmp_path / '.venv' / 'bin').mkdir(parents=True)
  for name in (
    *('set_up.sh', 'install.sh', 'find_python.sh'),
    'requirements.lock',
  ):
    shutil.copy(_REQUIREMENTS / name, tmp_path / 'requirements')
  shutil.copy(_ROOT / 'setup.py', tmp_path)
  shutil.copy(_ROOT / 'tff_fedfish' / 'version.py', tmp_path / 'tff_fedfish')
  # Fails whatever it is asked to do.
  shutil.copy(shutil.which('false'), tmp_path / '.venv' / 'bin' / 'python')

  return functools.partial(_run, tmp_path / 'requirements' / 'set_up.sh')


def _complete(root, lock='requirements.lock'):
  def sha256(path):
    return f'{hashlib.sha256((root / path).read_bytes()).hexdigest()}  -'

  (root / '.venv' / 'complete').write_text(
    f'{lock}\n{root}/.venv {sha256(f"requirements/{lock}")}\n'
    f'{sha256("setup.py")} {sha256("tff_fedfish/version.py")}\n'
  )


def test_finished_set_up_is_left_alone(set_up, tmp_path):
  _complete(tmp_path)
  done = set_up()
  assert (done.returncode, done.stdout, done.stderr) == (0, '', '')


@pytest.mark.parametrize('change', ['stamp', 'lock', 'place'])
def test_other_set_up_is_made_afresh_but_kept_if_that_cannot_begin(
  set_up, tmp_path, change
):
  _complete(tmp_path)
  stamp = tmp_path / '.venv' / 'complete'
  if change == 'stamp':
    stamp.unlink()
  elif change == 'lock':
    with (tmp_path / 'requirements' / 'requirements.lock').open('a') as file:
      file.write('# Changed.\n')
  else:
    stamp.write_text(stamp.read_text().replace(str(tmp_path), '/elsewhere'))
  done = set_up()
  assert done.returncode == 1
  # It came as far as to look for a Python, and took nothing away before.
  assert done.stderr.startswith('set-up: PYTHON=/bin/false is no CPython 3.11')
  assert done.stderr.count('\n') == 1
  assert (tmp_path / '.venv' / 'bin' / 'python').exists()


def test_failed_installation_is_not_complete(set_up, tmp_path):
  _complete(tmp_path)
  with (tmp_path / 'setup.py').open('a') as file:
    file.write('# Changed.\n')
  # Only the project is installed again; the .venv's Python fails at that.
  assert set_up().returncode == 1
  assert not (tmp_path / '.venv' / 'complete').exists()


def test_chosen_lock_is_kept(set_up, tmp_path):
  shutil.copy(
    _REQUIREMENTS / 'requirements-cuda.lock', tmp_path / 'requirements'
  )
  _complete(tmp_path, 'requirements-cuda.lock')
  assert set_up().returncode == 0
  assert set_up('requirements-cuda.lock').returncode == 0
  assert 'PYTHON=/bin/false' in set_up('requirements.lock').stderr


def test_other_platform_is_refused_in_one_line(set_up, tmp_path):
  uname = tmp_path / 'uname'
  uname.write_text('#!/bin/sh\necho Darwin arm64\n')
  uname.chmod(0o755)
  done = set_up(path=f'{tmp_path}:/usr/bin:/bin')
  assert done.returncode == 1
  assert done.stderr == (
    'set-up: the locked packages exist for Linux on x86-64 only, this is '
    'Darwin arm64.\n'
  )


def test_make_says_last_how_to_call_the_command(tmp_path):
  shutil.copy(_ROOT / 'Makefile', tmp_path)
  binaries = tmp_path / '.venv' / 'bin'
  for path in (binaries / 'fedfish', tmp_path / 'requirements' / 'set_up.sh'):
    path.parent.mkdir(parents=True)
    shutil.copy(shutil.which('true'), path)
  make = functools.partial(_run, 'make', '-sC', tmp_path)
  for goal in ('demo', '.venv'):
    assert make(goal).stdout.startswith('fedfish is .venv/bin/fedfish; ')
  assert make('demo', path=f'{binaries}:/usr/bin:/bin').stdout == ''
  # CI ends with pytest's summary.
  assert make('demo', 'CI=1').stdout == ''


@pytest.fixture
def set_up_beside(tmp_path):
  """Starts set_up_beside.sh in a tree of its own, for one package."""
  directory = tmp_path / 'requirements'
  directory.mkdir()
  (directory / 'one.lock').write_text(f'one==1 --hash=sha256:{"0" * 64}\n')
  for name in ('set_up_beside.sh', 'install.sh'):
    shutil.copy(_REQUIREMENTS / name, directory)
  python = tmp_path / '.venv' / 'bin' / 'python'
  python.parent.mkdir(parents=True)
  python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
  python.chmod(0o755)

  def start(**options):
    return subprocess.Popen(
      [directory / 'set_up_beside.sh', 'one'],
      env={'PATH': '/usr/bin:/bin', 'PIP_CONFIG_FILE': '/dev/null'} | options,
      stderr=subprocess.PIPE,
      text=True,
      start_new_session=True,
    )

  return start


def test_errors_of_pip_are_shown(set_up_beside, tmp_path):
  failed = set_up_beside(PIP_NO_INDEX='1')
  printed = failed.communicate(timeout=60)[1]
  assert failed.returncode == 1
  assert 'ERROR: No matching distribution found for one==1' in printed
  assert not (tmp_path / '.venv-one' / 'complete').exists()


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_interrupted_installation_ends_pip(set_up_beside, number):
  with socket.create_server(('127.0.0.1', 0)) as server:
    port = server.getsockname()[1]
    server.settimeout(60)
    # pip waits for an answer as long as it lives.
    process = set_up_beside(
      PIP_INDEX_URL=f'http://127.0.0.1:{port}', PIP_TIMEOUT='900'
    )
    connection, _ = server.accept()
    with connection:
      connection.settimeout(60)
      os.killpg(process.pid, number)
      process.communicate(timeout=60)
      assert process.returncode
      while connection.recv(1000):
        pass


def test_make_alone_shows_help():
  printed = subprocess.run(
    ['make'], cwd=_ROOT, capture_output=True, text=True, timeout=300, check=True
  ).stdout
  for target in (
    *('demo', 'test', 'test-all', 'lint', 'docs', 'test-wheel'),
    *('lint-containers', 'bench', '.venv', 'lock', 'clean'),
  ):
    assert f'make {target} ' in printed


def _warn_in(module, category):
  warnings.warn_explicit('a warning', category, 'file.py', 1, module=module)


@pytest.mark.parametrize(
  ('package', 'category'),
  [
    ('tff_fedfish', DeprecationWarning),
    ('pipelines.job', UserWarning),
    ('models.x', UserWarning),
  ],
)
def test_a_warning_from_our_packages_fails_the_test(package, category):
  with pytest.raises(category, match='a warning'):
    _warn_in(package, category)


def test_a_warning_from_another_package_does_not():
  _warn_in('models_of_others', DeprecationWarning)
  # Shown, but no error.
  with pytest.warns(UserWarning, match='a warning'):
    _warn_in('models_of_others', UserWarning)

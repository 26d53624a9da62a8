"""Set-up of .venv and of directories beside it: sources, failures, repeats."""

import functools
import hashlib
import http.server
import os
import pathlib
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import threading
import zipfile

import pytest

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_REQUIREMENTS = _ROOT / 'requirements'
_ENVIRONMENT = {
  'PATH': '/usr/bin:/bin',
  'HOME': '/none',
  'PIP_CONFIG_FILE': '/dev/null',
}
_UV = _ROOT / '.venv-uv'
# A build for which nothing has to be installed.
_BACKEND = """
import shutil

def build_editable(directory, *unused):
  shutil.copy('project-1-py3-none-any.whl', directory)
  return 'project-1-py3-none-any.whl'
"""
_BEGUN = (
  'Setting up .venv from requirements/requirements.lock; this takes a minute '
  'or more, once.\n'
)


def _run(*command, **environment):
  return subprocess.run(
    command,
    env=_ENVIRONMENT | {'PYTHON': '/bin/false'} | environment,
    capture_output=True,
    text=True,
    timeout=300,
  )


@pytest.fixture
def tree(tmp_path):
  """A small project whose locks have one package, `one`."""
  root = tmp_path / 'tree'
  (root / 'requirements').mkdir(parents=True)
  (root / 'tff_fedfish').mkdir()
  for path in (*_REQUIREMENTS.glob('*uv.*'), *_REQUIREMENTS.glob('*.sh')):
    shutil.copy(path, root / 'requirements')
  for name in ('setup.py', 'tff_fedfish/version.py'):
    (root / name).write_text('')
  _write_wheel(root, 'project')
  (root / 'backend.py').write_text(_BACKEND)
  (root / 'pyproject.toml').write_text(
    '[build-system]\nrequires = []\n'
    "build-backend = 'backend'\nbackend-path = ['.']\n"
  )
  wheel = _write_wheel(tmp_path / 'index' / 'one', 'one')
  digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
  for name in ('requirements', 'requirements-cuda', 'beside'):
    lock = root / 'requirements' / f'{name}.lock'
    lock.write_text(f'one==1 --hash=sha256:{digest}\n# {name}\n')
  return root


def _write_wheel(directory, name):
  directory.mkdir(parents=True, exist_ok=True)
  path = directory / f'{name}-1-py3-none-any.whl'
  wheel = 'Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n'
  metadata = f'Metadata-Version: 2.1\nName: {name}\nVersion: 1\n'
  with zipfile.ZipFile(path, 'w') as archive:
    archive.writestr(f'{name}.py', '')
    archive.writestr(f'{name}-1.dist-info/METADATA', metadata)
    archive.writestr(f'{name}-1.dist-info/WHEEL', wheel)
    archive.writestr(f'{name}-1.dist-info/RECORD', f'{name}.py,,\n')
  return path


@pytest.fixture
def start(tree, tmp_path):
  """Starts a script of the tree, with the uv of this project."""
  if not (_UV / 'complete').is_file():
    pytest.skip('needs .venv-uv: `make .venv` makes it')
  (tree / '.venv-uv').symlink_to(_UV)

  def begin(*arguments, script='set_up.sh', **environment):
    own = {'PYTHON': sys.executable, 'UV_CACHE_DIR': str(tmp_path / 'cache')}
    return subprocess.Popen(
      [tree / 'requirements' / script, *arguments],
      env=_ENVIRONMENT | own | environment,
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
      start_new_session=True,
    )

  return begin


@pytest.fixture
def set_up(start):
  """Runs such a script; returns exit code and errors."""

  def run(*arguments, **options):
    process = start(*arguments, **options)
    errors = process.communicate(timeout=120)[1]
    return process.returncode, errors

  return run


@pytest.fixture
def index(tmp_path):
  """The address of a package index that has `one`."""
  handler = functools.partial(
    http.server.SimpleHTTPRequestHandler, directory=tmp_path / 'index'
  )
  with http.server.ThreadingHTTPServer(('127.0.0.1', 0), handler) as server:
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f'http://127.0.0.1:{server.server_port}'
    server.shutdown()
    thread.join()


def _has(tree, *modules):
  """Whether the tree's .venv has the modules."""
  code = ';'.join(f'import {module}' for module in modules)
  python = tree / '.venv' / 'bin' / 'python'
  return not subprocess.run([python, '-c', code], cwd='/').returncode


@pytest.mark.parametrize('place', ['variable', 'file', 'links', 'home'])
def test_set_up_reads_what_pip_is_told(set_up, tree, index, tmp_path, place):
  # What uv is told elsewhere does not count.
  (tree / 'uv.toml').write_text('index-url = "http://127.0.0.1:9"\n')
  file = tmp_path / 'pip.conf'
  file.write_text(
    f'[global]\nquiet = 1\n[install]\nindex-url = {index}\nno-index = False\n'
  )
  links = tmp_path / 'index' / 'one'
  code, errors = set_up(
    **{
      'variable': {'PIP_INDEX_URL': index, 'PIP_QUIET': '1'},
      'file': {'PIP_CONFIG_FILE': str(file)},
      'links': {'PIP_NO_INDEX': '1', 'PIP_FIND_LINKS': f'/nowhere {links}'},
      # Where nothing can be written, uv's cache included.
      'home': {
        'HOME': str(links.parent),
        'XDG_CACHE_HOME': '/proc/none',
        'UV_CACHE_DIR': '',
        'PIP_NO_INDEX': 'y',
        'PIP_FIND_LINKS': '~/one',
      },
    }[place]
  )
  assert code == 0
  assert errors.startswith(_BEGUN)
  assert _has(tree, 'one', 'project')


@pytest.mark.parametrize(
  ('option', 'value', 'expected'),
  [
    ('extra-index-url', 'a\nb', {'UV_INDEX': 'a b'}),
    ('trusted-host', 'a b', {'UV_INSECURE_HOST': 'a b'}),
    ('default-timeout', '180', {'UV_HTTP_TIMEOUT': '180'}),
    ('proxy', 'a:3128', {'ALL_PROXY': 'a:3128', 'HTTPS_PROXY': 'a:3128'}),
    ('cert', '/none/bundle.pem', {'SSL_CERT_FILE': '/none/bundle.pem'}),
    ('cert', '/tmp', {'SSL_CERT_DIR': '/tmp'}),
    ('cert', '~/a', {'SSL_CERT_FILE': os.path.expanduser('~/a')}),
    ('use-feature', 'truststore', {'UV_SYSTEM_CERTS': '1'}),
    ('format', 'columns', {'SSL_CERT_FILE': '/none/requests.pem'}),
  ],
)
def test_options_of_pip_that_uv_knows(option, value, expected):
  environment = runpy.run_path(_REQUIREMENTS / 'run_uv.py')['environment']
  found = environment(
    {option: value}, {'REQUESTS_CA_BUNDLE': '/none/requests.pem'}
  )
  assert expected.items() <= found.items()


def test_finished_set_up_is_left_alone_until_something_changes(
  set_up, tree, index
):
  assert set_up(PIP_INDEX_URL=index)[0] == 0
  # Neither uv nor a Python is asked for.
  absent = {'PYTHON': '/bin/false', 'PIP_NO_INDEX': '1'}
  assert set_up(**absent) == (0, '')
  # Another version is installed again, without the packages.
  (tree / 'tff_fedfish' / 'version.py').write_text('# Changed.\n')
  assert set_up(**absent) == (0, '')
  # The chosen lock is kept.
  assert set_up('requirements-cuda.lock', PIP_INDEX_URL=index)[0] == 0
  assert set_up(**absent) == (0, '')
  code, errors = set_up('requirements.lock', **absent)
  # Nothing was taken away before it was clear that the rest can begin.
  assert (code, errors.count('\n')) == (1, 1)
  assert errors.startswith('set-up: PYTHON=/bin/false is no CPython 3.11')
  assert _has(tree, 'one', 'project')
  # A virtual environment that was moved does not work.
  moved = tree.rename(tree.with_name('moved'))
  done = _run(moved / 'requirements' / 'set_up.sh')
  assert done.stderr == errors


def test_what_cannot_be_installed_is_not_complete(set_up, tree, index):
  code, errors = set_up(PIP_NO_INDEX='1')
  assert code == 1
  assert 'one was not found' in errors
  assert errors.endswith(
    'set-up: uv could not install requirements/requirements.lock; the same '
    'command tries again.\n'
  )
  lock = tree / 'requirements' / 'requirements.lock'
  right = lock.read_text()
  lock.write_text(f'one==1 --hash=sha256:{"0" * 64}\n')
  code, errors = set_up(PIP_INDEX_URL=index)
  assert code == 1 and 'ash mismatch' in errors
  lock.write_text(right)
  (tree / 'backend.py').write_text('')
  code, errors = set_up(PIP_INDEX_URL=index)
  assert code == 1 and errors.endswith('could not install the project.\n')
  assert not (tree / '.venv' / 'complete').exists()


def test_uv_that_cannot_be_installed_takes_nothing_away(tree, tmp_path):
  (tree / '.venv').mkdir()
  done = _run(
    *(tree / 'requirements' / 'set_up.sh',),
    PYTHON=sys.executable,
    PIP_NO_INDEX='1',
  )
  assert done.returncode == 1
  assert 'ERROR: No matching distribution found for uv==' in done.stderr
  assert done.stderr.endswith(
    'set-up: pip could not install uv, requirements/uv.txt; the same command '
    'tries again.\n'
  )
  # So where pip is told to install elsewhere.
  (tree / 'requirements' / 'uv.txt').write_text(
    (tree / 'requirements' / 'beside.lock').read_text()
  )
  done = _run(
    *(tree / 'requirements' / 'uv.sh', '--version'),
    PYTHON=sys.executable,
    PIP_NO_INDEX='1',
    PIP_FIND_LINKS=str(tmp_path / 'index' / 'one'),
  )
  assert done.returncode == 1
  assert done.stderr.startswith('set-up: pip could not install uv')
  assert not (tree / '.venv-uv' / 'complete').exists()
  assert (tree / '.venv').exists()


def test_what_pip_cannot_read_ends_set_up(set_up, tmp_path):
  (tmp_path / 'pip.conf').write_text('[global\n')
  code, errors = set_up(PIP_CONFIG_FILE=str(tmp_path / 'pip.conf'))
  assert code == 2
  assert 'could not be loaded' in errors and 'Traceback' not in errors


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_interrupted_set_up_ends_and_begins_afresh(
  start, set_up, tree, index, number
):
  with socket.create_server(('127.0.0.1', 0)) as server:
    server.settimeout(60)
    # uv waits for an answer as long as it lives.
    process = start(
      PIP_INDEX_URL=f'http://127.0.0.1:{server.getsockname()[1]}',
      PIP_TIMEOUT='900',
    )
    connection, _ = server.accept()
    with connection:
      connection.settimeout(60)
      os.killpg(process.pid, number)
      process.communicate(timeout=60)
      assert process.returncode
      while connection.recv(1000):
        pass
  (tree / '.venv' / 'left').touch()
  assert set_up(PIP_INDEX_URL=index)[0] == 0
  assert not (tree / '.venv' / 'left').exists()
  assert _has(tree, 'one', 'project')


def test_two_at_once_wait_for_each_other(start, tree, index):
  both = [start(PIP_INDEX_URL=index) for _ in range(2)]
  errors = [process.communicate(timeout=120)[1] for process in both]
  assert [process.returncode for process in both] == [0, 0]
  assert sum(_BEGUN in text for text in errors) == 1
  assert _has(tree, 'one', 'project')


def test_locks_that_fail_are_done_without(set_up, index, tmp_path):
  flock = tmp_path / 'bin' / 'flock'
  flock.parent.mkdir()
  flock.write_text(
    '#!/bin/sh\necho flock: 9: No locks available >&2\nexit 71\n'
  )
  flock.chmod(0o755)
  options = {'PATH': f'{flock.parent}:/usr/bin:/bin', 'PIP_INDEX_URL': index}
  code, errors = set_up(**options)
  assert code == 0 and 'flock' not in errors
  assert set_up('beside', script='set_up_beside.sh', **options)[0] == 0


def test_packages_beside(set_up, tree, index):
  assert set_up(PIP_INDEX_URL=index)[0] == 0
  beside = functools.partial(set_up, 'beside', script='set_up_beside.sh')
  code, errors = beside(PIP_NO_INDEX='1', UV_NO_CACHE='1')
  assert code == 1 and 'could not install requirements/beside.lock' in errors
  assert not (tree / '.venv-beside' / 'complete').exists()
  assert beside(PIP_INDEX_URL=index)[0] == 0
  assert (tree / '.venv-beside' / 'one.py').is_file()
  assert beside(PIP_NO_INDEX='1', UV_NO_CACHE='1') == (0, '')


def test_other_platform_is_refused_in_one_line(tree, tmp_path):
  uname = tmp_path / 'uname'
  uname.write_text('#!/bin/sh\necho Darwin arm64\n')
  uname.chmod(0o755)
  done = _run(
    tree / 'requirements' / 'set_up.sh', PATH=f'{tmp_path}:/usr/bin:/bin'
  )
  assert (done.returncode, done.stderr) == (
    1,
    'set-up: the locked packages exist for Linux on x86-64 only, this is '
    'Darwin arm64.\n',
  )

"""The package holds what it needs; the locks hold what it declares."""

import pathlib
import re
import shutil
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


def test_source_distribution_can_be_set_up(metadata):
  packed = (metadata / 'SOURCES.txt').read_text().splitlines()
  needed = {
    f'requirements/{path.name}'
    for kind in ('in', 'lock', 'py', 'sh', 'txt')
    for path in _REQUIREMENTS.glob(f'*.{kind}')
  }
  assert not {'Makefile', 'pytest.ini', *needed} - set(packed)


def test_declares_the_direct_dependencies(metadata):
  declared = (metadata / 'requires.txt').read_text().splitlines()
  listed = _declared_requirements('requirements.in')
  tools = {
    *('build', 'hypothesis', 'pip', 'ruff', 'setuptools', 'wheel'),
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


def test_the_installer_is_pinned():
  ((package, (_, num_hashes)),) = _pins('uv.txt').items()
  assert package == 'uv' and num_hashes


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
    # It has the names of pip's options.
    if path.is_file() and path.name != 'run_uv.py':
      text = path.read_text()
      for word in ('index-url', 'find-links', 'trusted-host', 'file:', '://'):
        assert word not in text, f'{path.name} holds {word!r}'


def _find_python(python):
  return subprocess.run(
    [_REQUIREMENTS / 'find_python.sh'],
    env={'PATH': '/usr/bin:/bin', 'HOME': '/none', 'PYTHON': python},
    capture_output=True,
    text=True,
    timeout=300,
  )


def test_a_python_that_does_not_serve_is_named_in_one_line():
  done = _find_python('/bin/false')
  assert (done.returncode, done.stdout) == (1, '')
  assert done.stderr == (
    'set-up: PYTHON=/bin/false is no CPython 3.11 with venv and ensurepip; '
    'name another, or leave PYTHON out.\n'
  )


def test_found_python_serves():
  done = _find_python(sys.executable)
  assert done.returncode == 0
  # Not the one in .venv, which set-up may have to remove.
  found = pathlib.Path(done.stdout.strip())
  assert found == pathlib.Path(sys._base_executable)


def test_make_says_last_how_to_call_the_command(tmp_path):
  shutil.copy(_ROOT / 'Makefile', tmp_path)
  binaries = tmp_path / '.venv' / 'bin'
  for path in (binaries / 'fedfish', tmp_path / 'requirements' / 'set_up.sh'):
    path.parent.mkdir(parents=True)
    shutil.copy(shutil.which('true'), path)

  def make(*arguments, path='/usr/bin:/bin'):
    return subprocess.run(
      ['make', '-sC', tmp_path, *arguments],
      env={'PATH': path},
      capture_output=True,
      text=True,
      timeout=300,
    )

  for goal in ('demo', '.venv'):
    assert make(goal).stdout.startswith('fedfish is .venv/bin/fedfish; ')
  assert make('demo', path=f'{binaries}:/usr/bin:/bin').stdout == ''
  # CI ends with pytest's summary.
  assert make('demo', 'CI=1').stdout == ''


@pytest.mark.parametrize(
  ('path', 'expected'),
  [
    ('docs/build/page.md', True),
    ('tff_fedfish/__pycache__/left.py', True),
    ('tff_fedfish/corpora/demo_vocabulary/x.py', False),
    ('tests/fixtures/runs/x.py', False),
  ],
)
def test_what_git_ignores_is_no_file_of_the_project(path, expected):
  assert source_files.is_ignored(pathlib.PurePath(path)) == expected


def test_tests_begin_in_an_empty_directory():
  assert not list(pathlib.Path().iterdir())


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
    ('tests.x', RuntimeWarning),
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

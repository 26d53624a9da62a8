"""File systems of other machines: what lacks, and what goes wrong."""

import importlib.util
import re
import socket

import pytest
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions
from grouping_jobs import write_lines

from pipelines import output_files
from pipelines.input_files import find_input_files
from pipelines.job_errors import raise_understood
from pipelines.remote_files import StoreError, reaching, require_packages
from pipelines.staging import require_shared
from tff_fedfish.cli.main import main
from tff_fedfish.errors import FailedError, UserError

_LACKS = f'which needs packages that {socket.gethostname()!r} lacks. '
_REMEDIES = {
  's3': 'Install them by `.venv/bin/python -m pip install --no-deps '
  '--require-hashes -r requirements/s3.lock`',
  'hdfs': "Install them by `.venv/bin/python -m pip install 'hdfs<3'`",
  'gs': 'They do not fit beside those of requirements.lock: make an '
  'environment as docs/clusters.md says',
}


@pytest.fixture
def without_packages(monkeypatch):
  monkeypatch.setattr(importlib.util, 'find_spec', lambda name: None)


@pytest.mark.usefixtures('without_packages')
@pytest.mark.parametrize('scheme', _REMEDIES)
def test_packages_that_lack(scheme):
  path = f'{scheme}://b/x'
  end = (
    f' is on {scheme}://, {_LACKS}{_REMEDIES[scheme]}, or name a local direc'
  )
  for option, use in (
    ('--output', lambda: output_files.require_usable(path)),
    ('--input', lambda: find_input_files([path])),
    # On a worker.
    ('--output', lambda: require_shared(path)),
  ):
    with pytest.raises(UserError, match=re.escape(f'`{option}`{end}')):
      use()


def test_what_is_installed():
  require_packages('x', '--output')
  # Beam says what it thinks of it.
  require_packages('none://x', '--output')


@pytest.mark.usefixtures('without_packages')
def test_command_without_packages(tmp_path, capsys):
  raw = write_lines(tmp_path / 'x.json', [])
  arguments = ('--input', str(raw), '--output', 's3://b/x')
  assert main(['group', 'c4', *arguments]) == 2
  (line,) = capsys.readouterr().err.splitlines()
  assert line.startswith('fedfish: error: `--output` is on s3://, which ')


def test_any_error_names_the_path():
  class OwnError(Exception):
    pass

  with pytest.raises(StoreError, match=r"^'s3://b/x': two words$"):
    with reaching('s3://b/x'):
      raise OwnError('two\n  words')
  with pytest.raises(StoreError, match=r"^'s3://b/x': OwnError$"):
    with reaching('s3://b/y'), reaching('s3://b/x'):
      raise OwnError
  with pytest.raises(KeyboardInterrupt), reaching('s3://b/x'):
    raise KeyboardInterrupt


def test_error_that_comes_from_a_worker_as_text():
  text = (
    'Traceback (most recent call last):\n'
    '  File "x.py", line 1, in f\n'
    "pipelines.remote_files.StoreError: 's3://b/x': Slow [while running 'S']\n"
  )
  with pytest.raises(FailedError) as raised:
    raise_understood(RuntimeError(text), 's3://b', PipelineOptions([]))
  assert str(raised.value) == (
    "Grouping into 's3://b' stopped ('s3://b/x': Slow). There is no manifest, "
    'so what is left is no corpus. Check that the store can be reached, then '
    'run it again.'
  )


def test_unknown_file_system_of_the_input():
  FileSystems.set_options(PipelineOptions([]))
  with pytest.raises(
    UserError,
    match=r"`--input` must be a path that can be read, but 'none://x' is not "
    r"\('none://x': Unable to get .*\)\. Check the name, and how the file "
    r'system is reached, or copy the files here\.$',
  ):
    find_input_files(['none://x'])

"""Notebooks: stored without outputs, executed whole, or refused."""

import json
import os
import pathlib
import subprocess
import sys

import pytest
from doc_pages import ROOT

_EXECUTE = ROOT / 'docs' / 'generate' / 'notebook.py'
_PACKAGES = ROOT / '.venv-docs'


@pytest.mark.parametrize(
  'path', sorted((ROOT / 'docs').rglob('*.ipynb')), ids=lambda path: path.name
)
def test_stored_without_outputs(path):
  for cell in json.loads(path.read_text('utf-8'))['cells']:
    if cell['cell_type'] == 'code':
      assert cell['outputs'] == []
      assert cell['execution_count'] is None
      lines = ''.join(cell['source']).splitlines()
      # `!` would go on after a command that failed.
      assert not [line for line in lines if line.lstrip().startswith('!')]


@pytest.fixture
def execute(tmp_path):
  """Returns a function that executes a notebook of the given code cells."""
  if not (_PACKAGES / 'complete').is_file():
    pytest.skip('needs .venv-docs: `make docs` makes it and runs this')

  def run(*sources):
    cells = [
      {
        'cell_type': 'code',
        'id': f'cell-{number}',
        'metadata': {},
        'source': source,
        'outputs': [],
        'execution_count': None,
      }
      for number, source in enumerate(sources)
    ]
    notebook = {
      'cells': cells,
      'metadata': {},
      'nbformat': 4,
      'nbformat_minor': 5,
    }
    (tmp_path / 'small.ipynb').write_text(json.dumps(notebook))
    return subprocess.run(
      [sys.executable, str(_EXECUTE), 'pages', 'small.ipynb'],
      cwd=tmp_path,
      env=os.environ | {'PYTHONPATH': f'{ROOT}:{_PACKAGES}'},
      capture_output=True,
      text=True,
      timeout=300,
    )

  return run


def test_the_page_holds_code_and_output(execute, tmp_path):
  code = 'import os\nprint(6 * 7, os.getpid(), os.getcwd())'
  done = execute(code, '%%bash\nprintf "\\033[1mbold\\033[0m"')
  assert done.returncode == 0, done.stderr
  page = (tmp_path / 'pages' / 'small.md').read_text()
  assert f'```python\n{code}\n```' in page
  (line,) = [line for line in page.splitlines() if line.startswith('    42 ')]
  answer, pid, directory = line.split()
  assert answer == '42'
  assert '    bold' in page
  # Nothing is left: neither the process nor the directory it worked in.
  assert not pathlib.Path(f'/proc/{pid}').exists()
  assert not pathlib.Path(directory).exists()


@pytest.mark.parametrize(
  ('cell', 'error'),
  [
    ('1 / 0', 'ZeroDivisionError: division by zero'),
    ('%%bash\nset -e\nfalse\ntrue', 'returned non-zero exit status 1'),
  ],
)
def test_a_failing_cell_fails_the_command(execute, tmp_path, cell, error):
  done = execute('x = 1', cell)
  assert done.returncode == 1
  assert done.stderr.startswith('small.ipynb: ')
  assert cell.splitlines()[-1] in done.stderr
  assert error in done.stderr
  assert '\x1b' not in done.stderr
  assert not (tmp_path / 'pages').exists()

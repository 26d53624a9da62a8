"""Executes notebooks and writes each as a page with its figures.

usage: notebook.py OUTPUT NOTEBOOK...

A page lies below OUTPUT where the notebook lies below the current directory. A
notebook runs in a directory of its own, which is removed. If a cell fails, the
cell and its error are printed, the exit code is 1, and no page is written.
"""

import os
import pathlib
import re
import sys
import tempfile

import nbclient
import nbconvert
import nbformat
import traitlets.config

_CELL_SECONDS = 600
_COLORS = re.compile(r'\x1b\[[0-9;]*m')
# Of pandas' tables; the site has a style of its own.
_STYLE = re.compile(
  r'<style scoped>.*?</style>\n|(?<=<table) border="1" class="dataframe"',
  re.DOTALL,
)


def main(output: pathlib.Path, notebooks: list[pathlib.Path]) -> int:
  """Executes notebooks one after the other; returns the exit code."""
  # Relative paths of PYTHONPATH would not hold in the notebook's directory.
  paths = os.environ.get('PYTHONPATH', '').split(os.pathsep)
  os.environ['PYTHONPATH'] = os.pathsep.join(map(os.path.abspath, paths))
  # Its `fedfish` is that of this interpreter.
  binaries = pathlib.Path(sys.executable).parent
  os.environ['PATH'] = f'{binaries}{os.pathsep}{os.environ["PATH"]}'
  # nbconvert's templates lie beside it, where it does not look for them.
  installed = pathlib.Path(nbconvert.__file__).parents[1]
  os.environ['JUPYTER_PATH'] = str(installed / 'share' / 'jupyter')
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
  for path in notebooks:
    notebook = nbformat.read(path, as_version=4)
    try:
      execute(notebook)
    except nbclient.exceptions.CellExecutionError as error:
      print(_COLORS.sub('', f'{path}: {error}'), file=sys.stderr)
      return 1
    write_page(notebook, output / path.with_suffix('.md'))
  return 0


def execute(notebook: nbformat.NotebookNode) -> None:
  """Runs all cells in place, in a process of this interpreter.

  Raises:
    CellExecutionError: If a cell fails.
  """
  # No kernel that somebody installed, which may be of another interpreter.
  config = traitlets.config.Config()
  config.KernelSpecManager.kernel_dirs = []
  with tempfile.TemporaryDirectory() as directory:
    for name in ('IPYTHONDIR', 'JUPYTER_RUNTIME_DIR'):
      os.environ[name] = os.path.join(directory, name.lower())
    work = os.path.join(directory, 'work')
    os.mkdir(work)
    nbclient.NotebookClient(
      notebook,
      timeout=_CELL_SECONDS,
      coalesce_streams=True,
      kernel_name='python3',
      config=config,
      resources={'metadata': {'path': work}},
    ).execute()


def write_page(notebook: nbformat.NotebookNode, page: pathlib.Path) -> None:
  """Writes an executed notebook as Markdown, and its figures beside it."""
  resources = {
    'unique_key': page.stem,
    'output_files_dir': f'{page.stem}_files',
  }
  text, resources = nbconvert.MarkdownExporter().from_notebook_node(
    notebook, resources
  )
  page.parent.mkdir(parents=True, exist_ok=True)
  for name, data in resources['outputs'].items():
    path = page.parent / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
  page.write_text(_STYLE.sub('', _COLORS.sub('', text)), 'utf-8')


if __name__ == '__main__':
  _, _output, *_notebooks = sys.argv
  sys.exit(main(pathlib.Path(_output), list(map(pathlib.Path, _notebooks))))

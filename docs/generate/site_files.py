"""Files of the site: a hook that MkDocs calls.

The site is laid out as the repository is: README.md is its start page, pages
are in docs/, and a file that a page links to lies where it lies here. So links
hold on a code host and in the site, and no text is there twice. API pages, and
notebooks that docs/generate/notebook.py has executed, are added.
"""

import pathlib
import re

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

import tff_fedfish
from tff_fedfish.methods import registry

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_EXECUTED = _ROOT / 'build' / 'docs'
_LINK = re.compile(r'\]\(([^)#\s]+)')
_STYLE = pathlib.Path(__file__).with_name('site.css')

# Titles of the API pages.
_API_PAGES = {
  'learning_processes': 'Learning processes',
  'corpora_and_models': 'Corpora, models, execution',
  'methods': 'A method of your own',
  'grouping': 'Grouping jobs',
}
# Modules among the names of tff_fedfish.methods; their pages are others'.
_MODULES = ('tf', 'tff', 'weighted_mean')
_OF_LEARNING_PROCESSES = """\
Each class below has a builder `tff_fedfish.build_NAME(model, **keywords)`,
NAME as in `algorithm.name`. Its keywords are the class's settings and the
training keywords of `compose`, the first section.

"""
_GROUPING = (
  'pipelines.options.GroupJob',
  'pipelines.job.run_group_job',
  'pipelines.source.Source',
  'pipelines.source.Fields',
  'pipelines.source.Drop',
  'pipelines.source.load_source',
  'pipelines.splits.SplitRule',
)


def on_files(files, config):
  """Replaces what docs_dir holds; MkDocs calls it."""
  for file in list(files):
    if file.src_dir == config.docs_dir:
      files.remove(file)
  pages = [_ROOT / name for name in _page_names()]
  linked = {_STYLE}
  for page in pages:
    linked |= _linked_files(page)
  for path in sorted({*pages, *linked}):
    files.append(
      File(
        str(path.relative_to(_ROOT)),
        str(_ROOT),
        config.site_dir,
        config.use_directory_urls,
      )
    )
  for notebook in sorted((_ROOT / 'docs').rglob('*.ipynb')):
    for path in _executed_files(notebook):
      source = path.relative_to(_EXECUTED)
      files.append(File.generated(config, str(source), abs_src_path=str(path)))
  for name, title in _API_PAGES.items():
    text = f'# {title}\n\n'
    if name == 'learning_processes':
      text += _OF_LEARNING_PROCESSES
    text += '\n\n'.join(f'::: {path}' for path in _documented(name))
    files.append(File.generated(config, f'api/{name}.md', content=text))
  return files


def on_page_markdown(markdown, **_):
  """Leads links from a notebook to its page; MkDocs calls it."""
  return re.sub(r'(\]\([^)#\s]+)\.ipynb\b', r'\1.md', markdown)


def _page_names():
  yield from ('README.md', 'CONTRIBUTING.md', 'CHANGELOG.md')
  for path in (_ROOT / 'docs').rglob('*.md'):
    yield str(path.relative_to(_ROOT))


def _linked_files(page: pathlib.Path) -> set[pathlib.Path]:
  """Returns the files that a page links to or shows, but for pages."""
  targets = _LINK.findall(page.read_text('utf-8'))
  paths = ((page.parent / target).resolve() for target in targets)
  return {
    path
    for path in paths
    if path.is_file() and path.suffix not in ('.md', '.ipynb')
  }


def _executed_files(notebook: pathlib.Path) -> list[pathlib.Path]:
  """Returns the page and the figures that a notebook was executed into."""
  page = _EXECUTED / notebook.relative_to(_ROOT).with_suffix('.md')
  if not page.is_file():
    raise PluginError(f'{notebook} was not executed: run `make docs`.')
  return [page, *page.with_name(f'{page.stem}_files').glob('*')]


def _documented(page: str) -> list[str]:
  """Returns the dotted names that an API page documents."""
  if page == 'methods':
    return [
      f'tff_fedfish.methods.{name}'
      for name in tff_fedfish.methods.__all__
      if name not in _MODULES
    ] + ['tff_fedfish.rounds.weighted_mean.WeightedMean']
  if page == 'grouping':
    return list(_GROUPING)
  if page == 'learning_processes':
    methods = registry.BUILT_IN.values()
    return ['tff_fedfish.rounds.compose.compose'] + [
      f'{method.__module__}.{method.__qualname__}' for method in methods
    ]
  homes = tff_fedfish._HOMES
  return [f'{home}.{name}' for name, home in sorted(homes.items())]

"""The built site: no dead link, and nothing loaded from elsewhere."""

import os
import pathlib

import pytest
import site_checks
from doc_pages import PAGES, ROOT

import tff_fedfish
import tff_fedfish.methods
from tff_fedfish.methods import registry

_GOOD = """<!doctype html><head><link rel="stylesheet" href="style.css">
<script src="a/b.js"></script></head>
<h1 id="top">x</h1><a href="other.html#part">y</a> <a href="#top">z</a>
<a href="https://example.org/x">outside</a> <img src="data:image/png;base64,x">
"""


@pytest.fixture(scope='module')
def site():
  """The directory of the built site."""
  # One that lies about may be of other sources.
  if 'SITE' not in os.environ:
    pytest.skip('needs the built site: `make docs` builds it and runs this')
  return pathlib.Path(os.environ['SITE'])


@pytest.fixture
def small_site(tmp_path):
  (tmp_path / 'a').mkdir()
  (tmp_path / 'index.html').write_text(_GOOD)
  (tmp_path / 'other.html').write_text('<h2 id="part">x</h2>')
  (tmp_path / 'style.css').write_text('body { background: url(a/b.js) }')
  (tmp_path / 'a' / 'b.js').write_text('')
  return tmp_path


def test_built_site(site):
  assert len(list(site.rglob('*.html'))) > 35
  found = site_checks.problems(site)
  assert not found, '\n'.join(found)


def test_nothing_makes_the_theme_load_more(site):
  # Its script fetches what draws diagrams where a page has one.
  for path in site.rglob('*.html'):
    assert 'mermaid' not in path.read_text('utf-8'), path


def test_every_page_is_in_the_site(site):
  for page in PAGES:
    name = page.relative_to(ROOT).with_suffix('.html')
    if name == pathlib.Path('README.html'):
      name = pathlib.Path('index.html')
    assert (site / name).is_file(), name


def test_every_public_name_is_documented(site):
  text = ''.join(
    path.read_text('utf-8') for path in (site / 'api').glob('*.html')
  )
  builders = {f'build_{name}' for name in registry.BUILT_IN}
  names = {*tff_fedfish.__all__, *tff_fedfish.methods.__all__}
  names -= {'__version__', 'tf', 'tff', 'weighted_mean', *builders}
  names |= {method.__name__ for method in registry.BUILT_IN.values()}
  assert len(names) > 15
  for name in names:
    assert f'.{name}"' in text, name


def test_the_notebook_is_there_with_its_figures(site):
  tutorials = site / 'docs' / 'tutorials'
  page = (tutorials / 'first_run.html').read_text('utf-8')
  assert len(list(tutorials.glob('first_run_files/*.png'))) == 2
  assert 'sotu (held_out), round 10' in page
  # Of terminals, which a page is not.
  assert '\x1b' not in page


def test_good_site_has_no_problem(small_site):
  assert site_checks.problems(small_site) == []


@pytest.mark.parametrize(
  ('name', 'text', 'problem'),
  [
    ('index.html', '<a href="gone.html">', 'leads to gone.html'),
    ('index.html', '<a href="other.html#no">', 'leads to other.html#no'),
    ('index.html', '<a href="#no">', 'leads to #no'),
    ('index.html', '<img src="no.png">', 'leads to no.png'),
    ('a/c.html', '<a href="other.html">', 'a/c.html leads to other.html'),
    ('index.html', '<script src="https://x.org/m.js">', 'loads https://x.org'),
    ('index.html', '<link href="//x.org/f.css">', 'loads //x.org/f.css'),
    ('index.html', '<img srcset="http://x.org/a.png">', 'loads http://x.org'),
    ('index.html', '<style>@import "https://x.org/a";</style>', 'x.org/a'),
    ('index.html', '<p style="background:url(//x.org/b)">', 'loads //x.org/b'),
    ('style.css', 'a { src: url("https://x.org/f.woff") }', 'x.org/f.woff'),
  ],
)
def test_planted_problem_is_found(small_site, name, text, problem):
  with (small_site / name).open('a') as file:
    file.write(text)
  (found,) = site_checks.problems(small_site)
  assert problem in found

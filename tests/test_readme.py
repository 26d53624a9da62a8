"""README and docs: links, settings, reasons for drops."""

import pathlib
import re

import pytest
from doc_pages import PAGES

_ROOT = pathlib.Path(__file__).parents[1]
_README = (_ROOT / 'README.md').read_text()


def test_is_short():
  assert len(_README.splitlines()) <= 250


@pytest.mark.parametrize('page', PAGES, ids=lambda path: path.name)
def test_links_and_pictures_exist(page):
  for target in re.findall(r'\]\(([^)#]+)\)', page.read_text()):
    if not target.startswith('https://'):
      assert (page.parent / target).exists(), target


def test_every_page_is_reachable():
  found, seen = [_ROOT / 'README.md'], set()
  while found:
    page = found.pop()
    if page not in seen:
      seen.add(page)
      targets = re.findall(r'\]\(([^)#]+\.md)', page.read_text())
      found += [
        (page.parent / target).resolve()
        for target in targets
        if not target.startswith('https://')
      ]
  assert not set(PAGES) - seen


def test_every_reason_for_a_drop_is_documented():
  text = (_ROOT / 'docs' / 'grouping.md').read_text()
  sources = (_ROOT / 'pipelines').glob('*.py')
  reasons = {
    reason
    for path in sources
    for reason in re.findall(r"Drop\(\s*'(\w+)'", path.read_text())
  }
  assert len(reasons) > 15
  for reason in reasons | {'duplicate_text', 'small_group', 'other_split'}:
    assert f'`{reason}`' in text, reason

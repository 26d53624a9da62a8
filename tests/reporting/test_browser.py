"""The page as a browser shows it: on a screen, on a phone, on paper."""

import json
import re
import shutil
import subprocess
import urllib.parse

import pytest
from report_runs import write_evaluation, write_sweep

from tff_fedfish.reporting import loading, report

pytestmark = pytest.mark.slow

_BROWSERS = ('chromium', 'chromium-browser', 'google-chrome')
# The page itself has no script: a copy in a frame of a screen's or a phone's
# width tells the page around it what is where.
_PROBE = """<script>
addEventListener('load', () => {
  const box = e => e.getBoundingClientRect();
  const boxes = [...document.querySelectorAll('body *')].filter(
    e => !e.closest('.scroll, pre, svg, .hidden'));
  const measured = {
    scroll: document.documentElement.scrollWidth,
    right: Math.ceil(Math.max(...boxes.map(e => box(e).right))),
    lead: box(document.querySelector('header')).bottom,
    note: box(document.querySelector('.notes li')).bottom,
    table: box(document.querySelector('tbody tr')).bottom,
    plot: box(document.querySelector('figure svg')).width,
    columns: [...document.querySelector('thead').querySelectorAll('th')].filter(
      e => box(e).width).length
  };
  parent.postMessage(encodeURIComponent(JSON.stringify(measured)), '*');
});
</script></body>"""
_FRAME = """<!DOCTYPE html><title>waiting</title><body style="margin:0">
<script>onmessage = e => { document.title = 'measured ' + e.data; };</script>
<iframe src="probe.html" style="border:0;width:WIDTHpx;height:3000px"></iframe>
"""


@pytest.fixture(name='browser', scope='module')
def _browser():
  """The path of a browser."""
  path = next((p for p in map(shutil.which, _BROWSERS) if p), None)
  if path is None:
    pytest.skip(f'none of {", ".join(_BROWSERS)} is on PATH')
  return path


# Without a browser none is written.
@pytest.fixture(name='page', scope='module')
def _page(browser, tmp_path_factory):
  """A page of a small sweep, with hostile names."""
  del browser
  root = tmp_path_factory.mktemp('sweep')
  gains = {(a, e, 2): e for a in ('fed_avg', 'fed_fish') for e in (1, 4)}
  directories = write_sweep(root, gains, num_seeds=2)
  for directory in directories:
    write_evaluation(
      directory,
      'x',
      kind='transfer',
      corpus='<script>' + 'x' * 60,
      client_ids=('y' * 200, '<b>z'),
      losses={fraction: (6.0, 5.0) for fraction in (0.0, 0.25, 0.5)},
    )
  return report.write_report(loading.load_runs(directories), root / 'report')


def _run(browser, tmp_path, *arguments):
  return subprocess.run(
    [
      browser,
      '--headless',
      '--no-sandbox',
      '--disable-gpu',
      '--disable-quic',
      '--disable-dev-shm-usage',
      '--no-first-run',
      '--disable-background-networking',
      '--disable-component-update',
      '--disable-sync',
      '--virtual-time-budget=5000',
      f'--user-data-dir={tmp_path / "profile"}',
      *arguments,
    ],
    capture_output=True,
    text=True,
    timeout=300,
    check=True,
  ).stdout


@pytest.mark.parametrize(
  'width, height, columns, plots', [(1280, 800, 8, 2), (390, 844, 4, 1)]
)
def test_the_answer_is_seen_without_scrolling(
  browser, page, tmp_path, width, height, columns, plots
):
  text = page.read_text()
  text = text.replace("default-src 'none';", "script-src 'unsafe-inline';")
  (tmp_path / 'probe.html').write_text(text.replace('</body>', _PROBE))
  frame = tmp_path / 'frame.html'
  frame.write_text(_FRAME.replace('WIDTH', str(width)))
  shown = _run(browser, tmp_path, '--dump-dom', f'file://{frame}')
  [measured] = re.findall('<title>measured (.*?)</title>', shown)
  found = json.loads(urllib.parse.unquote(measured))
  # Nothing is cut, and nothing scrolls sideways.
  assert max(found['scroll'], found['right']) <= width
  # The sentences and the first note are whole; on a screen the table begins.
  parts = ('lead', 'note', 'table') if plots == 2 else ('lead', 'note')
  assert [part for part in parts if found[part] > height] == []
  assert found['plot'] >= 0.85 * min(width, 1080) / plots
  assert found['columns'] == columns


def test_paper_has_what_a_screen_folds(browser, page, tmp_path):
  folded = tmp_path / 'folded.html'
  text = page.read_text()
  assert 'details::details-content {' in text
  folded.write_text(text.replace('details::details-content {', 'hr {'))
  whole, part = (_num_pages(browser, tmp_path, p) for p in (page, folded))
  assert 1 < part < whole < 15


def _num_pages(browser, tmp_path, page):
  """Returns how many sheets of paper a page is."""
  paper = tmp_path / 'page.pdf'
  _run(browser, tmp_path, f'--print-to-pdf={paper}', f'file://{page}')
  data = paper.read_bytes()
  assert data.startswith(b'%PDF')
  return len(re.findall(rb'/Type\s*/Page\b', data))

"""The page as a browser shows it: on a screen, on a phone, on paper."""

import pathlib
import re
import shutil
import subprocess

import pytest
from matplotlib import image

from tff_fedfish.reporting import loading, report

_BROWSERS = ('chromium', 'chromium-browser', 'google-chrome')
_PHONE = 390
# The page itself has no script: a copy in a frame of a phone's width, which is
# less than a window may have, tells the page around it how wide it is.
_PROBE = """<script>
for (const d of document.querySelectorAll('details')) d.open = true;
addEventListener('load', () => {
  const boxes = [...document.querySelectorAll('body *')].filter(
    e => !e.closest('.scroll, pre, svg, .hidden'));
  const widest = boxes.reduce((a, b) =>
    a.getBoundingClientRect().right > b.getBoundingClientRect().right ? a : b);
  const svgs = [...document.querySelectorAll('figure svg')].map(
    e => e.getBoundingClientRect().width);
  parent.postMessage([
    document.documentElement.scrollWidth, widest.tagName,
    Math.ceil(widest.getBoundingClientRect().right),
    Math.ceil(Math.max(...svgs)), Math.floor(Math.min(...svgs))
  ].join(' '), '*');
});
</script></body>"""
_FRAME = """<!DOCTYPE html><title>waiting</title><body style="margin:0">
<script>onmessage = e => { document.title = 'measured ' + e.data; };</script>
<iframe src="probe.html" style="border:0;width:WIDTHpx;height:3000px"></iframe>
"""


# Of a session, like the report: without a browser none is written.
@pytest.fixture(scope='session')
def browser():
  """The path of a browser."""
  found = next((p for p in map(shutil.which, _BROWSERS) if p), None)
  if found is None:
    pytest.skip(f'none of {", ".join(_BROWSERS)} is on PATH')
  return found


@pytest.fixture(scope='module')
def wide_page(tmp_path_factory, write_sweep, write_run, write_evaluation):
  """A page with every kind of table and plot, and with hostile names."""
  root = tmp_path_factory.mktemp('wide')
  directories = write_sweep(
    root,
    {
      (algorithm, epochs, rounds): 1.0
      for algorithm in ('fed_avg', 'fed_fish')
      for epochs, rounds in ((1, 4), (4, 4), (16, 4), (1, 16))
    },
    num_seeds=2,
  )
  for directory in directories:
    for round_num in (1, 2):
      write_evaluation(
        directory,
        f'barrier-{round_num}',
        round_num=round_num,
        barriers=((4.0, 4.5, 0.2, 0.1), (4.0, 4.2, 0.2, 0.1)),
      )
    write_evaluation(
      directory,
      'x',
      kind='transfer',
      corpus='<script>' + 'x' * 60,
      round_num=4,
      client_ids=('y' * 200, '<b>z'),
      losses={f: (6.0, 5.0) for f in (0.0, 0.25, 0.5)},
    )
  runs = loading.load_runs(directories)
  return report.write_report(runs, root / 'report')


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
      '--hide-scrollbars',
      '--virtual-time-budget=5000',
      f'--user-data-dir={tmp_path / "profile"}',
      *arguments,
    ],
    capture_output=True,
    text=True,
    timeout=300,
    check=True,
  ).stdout


def _frame(page: pathlib.Path, tmp_path, width):
  """Writes a page that holds a copy of the report in a frame; returns it."""
  text = page.read_text()
  text = text.replace("default-src 'none';", "script-src 'unsafe-inline';")
  (tmp_path / 'probe.html').write_text(text.replace('</body>', _PROBE))
  frame = tmp_path / 'frame.html'
  frame.write_text(_FRAME.replace('WIDTH', str(width)))
  return frame


def _require_phone(browser, page, tmp_path):
  frame = _frame(page, tmp_path, _PHONE)
  shown = _run(browser, tmp_path, '--dump-dom', f'file://{frame}')
  found = re.search(r'<title>measured (\d+) (\w+) (\d+) (\d+) (\d+)<', shown)
  assert found, shown[:200]
  assert int(found[1]) <= _PHONE, 'scrolls sideways'
  assert int(found[3]) <= _PHONE, f'{found[2]} is cut'
  # Plots take the width that there is.
  assert int(found[4]) <= _PHONE
  assert int(found[5]) >= 0.9 * (_PHONE - 30)


def _require_ink(path):
  pixels = image.imread(path)[:, :, :3]
  assert 0.01 < (pixels < 0.9).any(axis=2).mean() < 0.6


def test_a_phone_does_not_scroll_sideways(browser, report_of_pair, tmp_path):
  _require_phone(browser, report_of_pair / 'index.html', tmp_path)


@pytest.mark.slow
def test_a_sweep_on_a_phone(browser, wide_page, tmp_path):
  _require_phone(browser, wide_page, tmp_path)
  picture = tmp_path / 'phone.png'
  frame = _frame(wide_page, tmp_path, _PHONE)
  size = '--window-size=500,3000'
  _run(browser, tmp_path, size, f'--screenshot={picture}', f'file://{frame}')
  _require_ink(picture)


@pytest.mark.slow
def test_a_sweep_on_a_screen(browser, wide_page, tmp_path):
  picture = tmp_path / 'screen.png'
  size = '--window-size=1280,4000'
  _run(
    browser, tmp_path, size, f'--screenshot={picture}', f'file://{wide_page}'
  )
  assert image.imread(picture).shape[:2] == (4000, 1280)
  _require_ink(picture)


@pytest.mark.slow
def test_a_sweep_on_paper(browser, wide_page, tmp_path):
  paper = tmp_path / 'page.pdf'
  _run(
    browser,
    tmp_path,
    '--no-pdf-header-footer',
    f'--print-to-pdf={paper}',
    f'file://{wide_page}',
  )
  data = paper.read_bytes()
  assert data.startswith(b'%PDF')
  num_pages = len(re.findall(rb'/Type\s*/Page\b', data))
  num_figures = wide_page.read_text().count('<figure')
  # Tables, configuration and at most some figures a page, none blank.
  assert num_figures / 6 < num_pages < 3 * num_figures
  assert len(data) > 2_000 * num_pages

"""Tests of metrics.csv and timings.csv."""

import math
import os
import subprocess
import sys

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from tff_fedfish.errors import UserError
from tff_fedfish.run import tables

_METRICS = ('train/loss', 'train/num_tokens', 'held_out/loss')
_TIMINGS = ('round_seconds',)


def _open(directory, resume_after_round=None, metric_names=_METRICS):
  return tables.MetricsLog(
    directory,
    resume_after_round,
    metric_names=metric_names,
    timing_names=_TIMINGS,
  )


def _log(log, *rounds, seconds=0.5):
  for round_num in rounds:
    metrics = {'train/loss': 7 / (round_num + 1), 'train/num_tokens': round_num}
    if round_num % 2 == 0:
      metrics['held_out/loss'] = np.float32(0.1) * round_num
    log.log_round(round_num, metrics, {'round_seconds': seconds})


def test_files_by_hand(tmp_path):
  with _open(tmp_path) as log:
    log.log_round(0, {'held_out/loss': 7.625}, {})
    log.log_round(
      1,
      {'train/num_tokens': np.int64(2**53 + 1), 'train/loss': np.float32(0.1)},
      {'round_seconds': 2},
    )
    # All is on disk before the log is closed. The float32 next to 0.1 is
    # 0.100000001490116119384765625; repr gives the digits a double needs.
    assert (tmp_path / 'metrics.csv').read_bytes() == (
      b'round,train/loss,train/num_tokens,held_out/loss\n'
      b'0,,,7.625\n'
      b'1,0.10000000149011612,9007199254740993,\n'
    )
    assert (tmp_path / 'timings.csv').read_bytes() == (
      b'round,round_seconds\n0,\n1,2\n'
    )
    assert sorted(os.listdir(tmp_path)) == [
      'metrics.csv',
      'timings.csv',
    ]
  rows = tables.read_metrics(tmp_path / 'metrics.csv')
  assert rows == [
    {
      'round': 0,
      'train/loss': None,
      'train/num_tokens': None,
      'held_out/loss': 7.625,
    },
    {
      'round': 1,
      'train/loss': float(np.float32(0.1)),
      'train/num_tokens': 2**53 + 1,
      'held_out/loss': None,
    },
  ]
  assert isinstance(rows[1]['train/num_tokens'], int)


@hypothesis.given(
  value=st.one_of(
    st.floats(), st.integers(), st.floats(width=32).map(np.float32)
  )
)
def test_numbers_return_exactly(tmp_path_factory, value):
  directory = tmp_path_factory.mktemp('run')
  with _open(directory, metric_names=('a', 'b, "quoted"')) as log:
    log.log_round(0, {'b, "quoted"': value}, {})
  (row,) = tables.read_metrics(directory / 'metrics.csv')
  found = row['b, "quoted"']
  if math.isnan(value):
    assert math.isnan(found)
  else:
    assert found == value
    assert math.copysign(1, found) == math.copysign(1, value)
  assert isinstance(found, int) == isinstance(value, int)


def test_a_resumed_file_equals_an_uninterrupted_one(tmp_path):
  (tmp_path / 'whole').mkdir()
  (tmp_path / 'resumed').mkdir()
  with _open(tmp_path / 'whole') as log:
    _log(log, *range(9))
  with _open(tmp_path / 'resumed') as log:
    _log(log, *range(6))
  # Killed in the middle of round 6's row; the checkpoint is that of round 3.
  file = tmp_path / 'resumed' / 'metrics.csv'
  file.write_bytes(file.read_bytes() + b'6,1.0')
  with _open(tmp_path / 'resumed', resume_after_round=3) as log:
    _log(log, *range(4, 9), seconds=9.0)
  whole = (tmp_path / 'whole' / 'metrics.csv').read_bytes()
  assert file.read_bytes() == whole
  timings = tables.read_metrics(tmp_path / 'resumed' / 'timings.csv')
  assert [row['round'] for row in timings] == list(range(9))
  assert [row['round_seconds'] for row in timings] == [0.5] * 4 + [9.0] * 5


def test_a_new_run_starts_its_files_anew(tmp_path):
  with _open(tmp_path) as log:
    _log(log, 0, 1)
  with _open(tmp_path):
    pass
  assert tables.read_metrics(tmp_path / 'metrics.csv') == []


def test_rows_survive_a_kill(tmp_path):
  script = (
    'import os, signal, sys\n'
    'from tff_fedfish.run.tables import MetricsLog\n'
    'with MetricsLog(sys.argv[1], None, metric_names=["a"],\n'
    '                timing_names=[]) as log:\n'
    '  log.log_round(0, {"a": 1.5}, {})\n'
    '  assert "tensorflow" not in sys.modules\n'
    '  os.kill(os.getpid(), signal.SIGKILL)\n'
  )
  done = subprocess.run([sys.executable, '-c', script, str(tmp_path)])
  assert done.returncode == -9
  rows = tables.read_metrics(tmp_path / 'metrics.csv')
  assert rows == [{'round': 0, 'a': 1.5}]


def test_names_and_values_are_checked(tmp_path):
  with _open(tmp_path) as log:
    _log(log, 0)
    before = (tmp_path / 'metrics.csv').read_bytes()
    with pytest.raises(ValueError, match="'train/los' must be a column of met"):
      log.log_round(1, {'train/los': 1.0}, {})
    with pytest.raises(ValueError, match="'x' must be a column of timings.csv"):
      log.log_round(1, {}, {'x': 1.0})
    with pytest.raises(TypeError, match="'train/loss' must be .* found True"):
      log.log_round(1, {'train/loss': np.bool_(True)}, {})
    assert (tmp_path / 'metrics.csv').read_bytes() == before
    assert (tmp_path / 'timings.csv').read_bytes().count(b'\n') == 2


def test_resuming_over_other_columns(tmp_path):
  with _open(tmp_path) as log:
    _log(log, 0, 1, 2)
  before = (tmp_path / 'metrics.csv').read_bytes()
  with pytest.raises(
    UserError,
    match=r"metrics.csv' must have the columns .* but it lacks "
    r"\['train/accuracy'\], has \['train/num_tokens', 'held_out/loss'\] besi",
  ):
    _open(tmp_path, 1, metric_names=('train/loss', 'train/accuracy'))
  # Another order alone is another file too.
  with pytest.raises(UserError, match='it lacks none, has none besides, or'):
    _open(tmp_path, 1, metric_names=_METRICS[::-1])
  assert (tmp_path / 'metrics.csv').read_bytes() == before


@pytest.mark.parametrize(
  ('timings', 'kept'),
  [
    (None, b''),
    (b'round,round_seconds\n0,1\n1,one\n', b''),
    (b'round,another,round_seconds\n0,7,1\n1,7,2\n', b'0,1\n1,2\n'),
  ],
  ids=['missing', 'damaged', 'other columns'],
)
def test_timings_are_of_no_consequence(tmp_path, timings, kept):
  with _open(tmp_path) as log:
    _log(log, 0, 1)
  path = tmp_path / 'timings.csv'
  path.unlink() if timings is None else path.write_bytes(timings)
  with _open(tmp_path, 1) as log:
    _log(log, 2)
  assert path.read_bytes() == b'round,round_seconds\n' + kept + b'2,0.5\n'


def test_resuming_without_the_rows_before(tmp_path):
  with pytest.raises(UserError, match="metrics.csv' .* but it does not exist"):
    _open(tmp_path, 1)
  assert not list(tmp_path.iterdir())
  with _open(tmp_path) as log:
    _log(log, 0, 1)
  with pytest.raises(
    UserError, match='a row for round 5, from which .* its last before is 1'
  ):
    _open(tmp_path, 5)
  (tmp_path / 'metrics.csv').write_text('round,' + ','.join(_METRICS) + '\n')
  with pytest.raises(UserError, match='for round 0, .* its last before is non'):
    _open(tmp_path, 0)


@pytest.mark.parametrize(
  'content',
  [
    b'round,a\n0,1.5\n1,high\n',
    b'round,a\n0,1,2\n',
    b'round,a\nx,1\n',
    b'time,a\n0,1\n',
    b'',
    b'round,a\n0,\xff\n',
    b'round,a\n-1,1\n',
    b'round,a\n2,1\n1,1\n',
    b'round,a\n1,1\n1,1\n',
  ],
)
def test_damaged_files(tmp_path, content):
  (tmp_path / 'metrics.csv').write_bytes(content)
  with pytest.raises(
    UserError, match="metrics.csv' must hold one number per column in every"
  ) as caught:
    tables.read_metrics(tmp_path / 'metrics.csv')
  assert '\n' not in str(caught.value)


@pytest.mark.parametrize(
  ('line', 'words'),
  [
    ('1', r'line 3 \(columns: found 1, the header has 2\)'),
    ('1,2,3', r'line 3 \(columns: found 3, the header has 2\)'),
  ],
)
def test_a_line_of_other_columns_is_named(tmp_path, line, words):
  path = tmp_path / 'metrics.csv'
  path.write_text(f'round,a\n0,1.5\n{line}\n2,3\n')
  with pytest.raises(UserError, match=words):
    tables.read_metrics(path)


@pytest.mark.parametrize('cut_off', [b'1', b'1\n', b'1,2'])
def test_a_last_line_that_is_cut_off_is_left_out(tmp_path, cut_off):
  path = tmp_path / 'metrics.csv'
  path.write_bytes(b'round,a\n0,1.5\n' + cut_off)
  assert tables.read_metrics(path) == [{'round': 0, 'a': 1.5}]
  assert tables.logged_rounds(path) == {0}


def test_a_file_that_is_not_there(tmp_path):
  with pytest.raises(UserError, match='must be a file that `fedfish train` wr'):
    tables.read_metrics(tmp_path / 'absent.csv')


def test_a_disk_error_names_the_file(tmp_path):
  with _open(tmp_path) as log:
    full = open('/dev/full', 'ab')
    for table in (log._metrics, log._timings):
      table.file.close()
      table.file = full
    with pytest.raises(OSError, match="No space left .*timings.csv'"):
      _log(log, 0)
    log._timings.file = open(tmp_path / 'timings.csv', 'ab')
    with pytest.raises(OSError, match="No space left .*metrics.csv'"):
      _log(log, 0)

"""The parts of `make bench-grouping` that can be right or wrong."""

import collections
import gzip
import json
import pathlib
import subprocess
import sys
import time

import pytest
from benchmarks import compare_groups, grouping, measured_process
from benchmarks.grouping import OURS, THEIRS, Runs
from benchmarks.grouping_arms import run_ours
from benchmarks.measured_process import run_measured
from benchmarks.shared import ENVIRONMENT
from benchmarks.synthetic_c4 import SyntheticC4, make_corpus


@pytest.fixture(scope='module')
def small_corpus(tmp_path_factory):
  directory = tmp_path_factory.mktemp('synthetic')
  corpus = SyntheticC4(num_records=3001, num_files=2, mean_text_bytes=300)
  return make_corpus(corpus, directory)


def _records(paths):
  for path in paths:
    with gzip.open(path, 'rt', encoding='utf-8') as file:
      yield from map(json.loads, file)


def test_synthetic_corpus_has_the_shape_of_c4(small_corpus):
  assert [pathlib.Path(path).name for path in small_corpus] == [
    'c4-train.00000-of-00002.json.gz',
    'c4-train.00001-of-00002.json.gz',
  ]
  found = list(_records(small_corpus))
  assert len(found) == 3001
  assert {tuple(record) for record in found} == {('text', 'timestamp', 'url')}
  lengths = sorted(len(record['text'].encode()) for record in found)
  assert 270 < sum(lengths) / 3001 < 330
  # A log-normal median is mean / exp(1.1 ** 2 / 2), so 300 / 1.83 = 164.
  assert 145 < lengths[1500] < 185
  hosts = collections.Counter(
    record['url'].split('/')[2] for record in found
  ).values()
  # 3001 // 23 = 130 hosts, of which some get no document.
  assert 115 < len(hosts) <= 130
  assert sorted(hosts)[len(hosts) // 2] < 23 < 300 < max(hosts)


def test_measured_process_sees_memory_and_failure(tmp_path, monkeypatch):
  # Holds 64 MiB, as does the process that it starts, until the file is there.
  code = (
    'import os, subprocess, sys, time\n'
    'held = bytearray(b"x") * (64 << 20)\n'
    'if len(sys.argv) < 3: subprocess.run([*sys.orig_argv, "second"])\n'
    'for _ in range(3000):\n'
    '  if os.path.exists(sys.argv[1]): break\n'
    '  time.sleep(0.01)\n'
  )
  tree_bytes = measured_process._tree_bytes

  def sample(process_id):
    num_bytes = tree_bytes(process_id)
    if num_bytes > 128 << 20:
      (tmp_path / 'seen').touch()
    return num_bytes

  monkeypatch.setattr(measured_process, '_tree_bytes', sample)
  start = time.perf_counter()
  measured = run_measured([sys.executable, '-c', code, str(tmp_path / 'seen')])
  seconds = time.perf_counter() - start
  assert 128 << 20 < measured.peak_tree_bytes < 256 << 20
  assert measured.max_rss_bytes > 64 << 20
  assert 0 < measured.processor_seconds < measured.seconds < seconds
  with pytest.raises(RuntimeError, match=r'(?s)ended with 3:.*what is wrong'):
    code = 'import sys; print("what is wrong"); sys.exit(3)'
    run_measured([sys.executable, '-c', code])


def test_difference_is_found(tmp_path, small_corpus):
  first, second = small_corpus
  run_ours(first, tmp_path / 'a', 2)
  run_ours(first, tmp_path / 'b', 3)
  assert compare_groups.difference(tmp_path / 'a', tmp_path / 'b') == ''
  run_ours(second, tmp_path / 'c', 2)
  assert 'groups differ' in compare_groups.difference(
    tmp_path / 'a', tmp_path / 'c'
  )


def test_ratios_by_hand():
  runs = {
    ('small', OURS): Runs(
      'small', OURS, 100, [1.0, 2.0, 4.0], [2, 3, 5], [2, 2, 2]
    ),
    ('small', THEIRS): Runs(
      'small', THEIRS, 100, [8.0, 9.0, 8.0], [12, 9, 15], [7, 9, 8]
    ),
    ('large', OURS): Runs('large', OURS, 1000, [30.0]),
    ('workers', OURS): Runs('workers', OURS, 1000, [20.0]),
  }
  # Medians: 8 / 2, 12 / 3 and 8 / 2; turns: 8 / 1, 9 / 2, 8 / 4, then 12 / 2,
  # 9 / 3, 15 / 5, then 7 / 2, 9 / 2, 8 / 2. A record takes 2 / 100 s at first
  # and 30 / 1000 s of many: 1.5.
  assert grouping.ratios(runs) == [
    ['small: records/s, ours over dataset_grouper', '4.00', '2.00-8.00'],
    ['small: likewise, with imports', '4.00', '3.00-6.00'],
    ['small: processor time, with imports', '4.00', '3.50-4.50'],
    ['cost of a record, large over small', '1.50', ''],
    ['records/s, two worker processes over one', '1.50', ''],
  ]


@pytest.mark.benchmark
def test_quick_benchmark():
  # Not in this process, whose memory would count for the jobs'.
  command = ['-m', 'benchmarks.grouping', '--parts', 'quick', '--repeats', '1']
  subprocess.run([sys.executable, *command], check=True, env=ENVIRONMENT)

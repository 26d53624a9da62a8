"""How fast a grouped corpus opens, streams and is read at random.

Prints tables; a slow machine fails nothing. Dataset Grouper reads the same
files in the same process, its turns between ours.
"""

import json
import pathlib
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import pytest
from benchmarks import synthetic_index

from tff_fedfish.data.grouped_corpus import GroupedCorpus

_ROOT = pathlib.Path(__file__).parents[2]
_REPEATS = 3

# In a process of its own, after all imports: what opening takes and keeps. The
# peak is that since `clear_refs`.
_OPEN = """
import json, sys, time
import pyarrow.parquet
from tff_fedfish.data import grouped_corpus, records

def resident(name):
  with open('/proc/self/status') as file:
    (line,) = (line for line in file if line.startswith(name))
  return int(line.split()[1]) / 1024

with open('/proc/self/clear_refs', 'w') as file:
  file.write('5')
before = resident('VmRSS')
start = time.perf_counter()
corpus = grouped_corpus.GroupedCorpus(sys.argv[1])
seconds = time.perf_counter() - start
print(json.dumps({
  'seconds': seconds,
  'kept': resident('VmRSS') - before,
  'peak': resident('VmHWM') - before,
}))
"""


@pytest.mark.benchmark
@pytest.mark.parametrize('num_groups', [1_000_000, 15_600_000])
def test_opening(tmp_path, num_groups):
  directory = tmp_path / 'corpus'
  synthetic_index.write_index_only(directory, num_groups)
  found = []
  for _ in range(_REPEATS):
    output = subprocess.check_output(
      [sys.executable, '-c', _OPEN, str(directory)], cwd=_ROOT
    )
    found.append(json.loads(output))
  index_bytes = (directory / 'index.parquet').stat().st_size
  print(f'\n\nopening {num_groups:,} groups, index of {index_bytes:,} bytes')
  for name, unit in (('seconds', 's'), ('kept', 'MiB'), ('peak', 'MiB')):
    print(f'  {name:8}', _spread([run[name] for run in found]), unit)


@pytest.mark.benchmark
def test_reading(tmp_path):
  directory = tmp_path / 'corpus'
  num_groups = 300
  synthetic_index.write_corpus(directory, num_groups, num_shards=4)
  arms = _arms(directory)
  seconds = {name: [] for name in arms}
  results = {}
  # The first turn fills caches and counts for nothing.
  for repeat in range(_REPEATS + 1):
    for name, read in arms.items():
      start = time.perf_counter()
      results[name] = read()
      if repeat:
        seconds[name].append(time.perf_counter() - start)
  (theirs, expected), *ours = results.items()
  for name, found in ours:
    assert sorted(found) == sorted(expected), name
  num_examples = sum(map(len, expected))
  print(f'\n\nreading {num_groups:,} groups of {num_examples:,} examples')
  print(f'  {"":34} {"groups/s":>24} {"us/group":>9}  times as fast')
  for name, times in seconds.items():
    rates = [num_groups / t for t in times]
    ratios = [t / ours for t, ours in zip(seconds[theirs], times, strict=True)]
    print(
      f'  {name:34} {_spread(rates, ".0f"):>24}'
      f' {1e6 / statistics.median(rates):9.0f}  {_spread(ratios, ".1f")}'
    )


def _arms(
  directory: pathlib.Path,
) -> dict[str, Callable[[], list[list[tuple[bytes, ...]]]]]:
  """Returns functions that read all groups; the first is Dataset Grouper's."""
  import tensorflow_datasets as tfds
  from dataset_grouper import data_loaders

  dataset = data_loaders.PartitionedDataset(
    str(directory / 'groups-*.tfrecord'),
    tfds.features.FeaturesDict(
      {name: tfds.features.Text() for name in synthetic_index.FEATURE_NAMES}
    ),
  )
  corpus = GroupedCorpus(directory)
  shuffled = list(corpus.client_ids)
  random.Random(0).shuffle(shuffled)

  def values(examples):
    return [
      tuple(map(example.get, corpus.manifest.feature_names))
      for example in examples
    ]

  return {
    'dataset_grouper build_group_stream': lambda: [
      values(group.as_numpy_iterator())
      for group in dataset.build_group_stream()
    ],
    'GroupedCorpus.stream': lambda: [
      values(examples) for _, examples in corpus.stream()
    ],
    'examples, in random order': lambda: [
      values(corpus.examples(client_id)) for client_id in shuffled
    ],
    'client_dataset, in random order': lambda: [
      values(corpus.client_dataset(client_id).as_numpy_iterator())
      for client_id in shuffled
    ],
  }


def _spread(values: list[float], form: str = '.2f') -> str:
  """Returns the median, and the smallest and the largest value."""
  low, high = min(values), max(values)
  return f'{statistics.median(values):{form}} ({low:{form}}-{high:{form}})'

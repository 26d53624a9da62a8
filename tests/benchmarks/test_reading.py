"""How fast a grouped corpus streams and is read at random.

Prints tables; a slow machine fails nothing. Dataset Grouper reads the same
files in the same process, its turns between ours.
"""

import pathlib
import random
import statistics
import time
from collections.abc import Callable

import pytest
from benchmarks.grouping_arms import FEATURE_NAMES, run_ours
from benchmarks.shared import spread
from benchmarks.synthetic_c4 import SyntheticC4, make_corpus

from tff_fedfish.data.grouped_corpus import GroupedCorpus

_REPEATS = 3


@pytest.mark.benchmark
def test_reading(tmp_path):
  directory = tmp_path / 'corpus'
  shape = SyntheticC4(num_records=2000, num_files=1, mean_group_size=5)
  (raw,) = make_corpus(shape, tmp_path)
  run_ours(raw, directory, num_shards=4)
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
  num_groups, num_examples = len(expected), sum(map(len, expected))
  print(f'\n\nreading {num_groups:,} groups of {num_examples:,} examples')
  print(f'  {"":34} {"groups/s":>24} {"us/group":>9}  times as fast')
  for name, times in seconds.items():
    rates = [num_groups / t for t in times]
    ratios = [t / ours for t, ours in zip(seconds[theirs], times, strict=True)]
    print(
      f'  {name:34} {spread(rates, ".0f"):>24}'
      f' {1e6 / statistics.median(rates):9.0f}  {spread(ratios, ".1f")}'
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
      {name: tfds.features.Text() for name in FEATURE_NAMES}
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

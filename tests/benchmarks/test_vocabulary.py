"""How long a vocabulary takes to learn where a corpus also has base64.

Prints a table; a slow machine fails nothing. The goal: twice the base64 takes
at most 1.3 times the time.
"""

import base64
import collections
import gzip
import json
import random
import time

import pytest

from tff_fedfish import corpora
from tff_fedfish.data import vocabulary_training

_KILOBYTES = (0, 76, 152, 304)
_REPEATS = 3


@pytest.mark.benchmark
def test_base64():
  words = collections.Counter()
  with gzip.open(corpora.sotu_by_president() / 'sotu.json.gz') as lines:
    for line in lines:
      words.update(json.loads(line)['text'].encode().split())
  print('\n\nlearning 2,048 pieces from addresses and base64')
  print('  base64 (kB)  CPU (s)  times the one before')
  before = None
  for size in _KILOBYTES:
    data = random.Random(1).randbytes(1000 * size * 3 // 4)
    counts = words + collections.Counter(base64.encodebytes(data).split())
    times = []
    for _ in range(_REPEATS):
      start = time.process_time()
      vocabulary_training.train_vocabulary(counts, vocabulary_size=2048)
      times.append(time.process_time() - start)
    seconds = min(times)
    ratio = f'{seconds / before:.2f}' if before else ''
    print(f'  {size:11,}  {seconds:7.1f}  {ratio}')
    before = seconds

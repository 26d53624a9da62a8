"""A synthetic corpus in C4's layout, the same bytes for the same numbers.

What a grouping job meets in C4 (English: 365 million documents of 15.6 million
domains, 23 each) is imitated: few hosts with very many documents and many with
one, in random order; texts of log-normal length, whose median is 1.2 kB where
the mean is 2.2 kB; line ends and quotation marks, which JSON escapes, and
apostrophes beyond ASCII; words so distributed that `gzip -1` divides the size
by 2.3, as it does C4's.
"""

import argparse
import dataclasses
import gzip
import json
import math
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator

import numpy as np

# Of the log of a text's length: C4's mean over median, 2.2 / 1.2, is
# exp(1.1 ** 2 / 2) = 1.83.
_LENGTH_DEVIATION = 1.1
# The tail of the number of documents of a host; at 1 the mean is infinite.
_TAIL_EXPONENT = 1.1
# Zipf's law; more than 1, so that single words compress as sentences do.
_WORD_EXPONENT = 1.3
_NUM_WORDS = 30_000
# Of the text from which all texts are cut; a smaller corpus needs fewer.
_POOL_WORDS = (20_000, 3_000_000)
_LINES_AT_ONCE = 4096
# To be raised with any change of what is written.
_VERSION = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class SyntheticC4:
  """Options of the synthetic corpus.

  Attributes:
    num_records: How many documents.
    num_files: Over how many files they are spread.
    mean_text_bytes: Mean length of a text, as it is written in JSON.
    mean_group_size: Documents over hosts; a bit more in fact, because hosts
      without a document do not count.
    seed: Another one gives another corpus.
    largest_percent: Share of one host, beside what it has by chance.
  """

  num_records: int
  num_files: int = 4
  mean_text_bytes: int = 2200
  mean_group_size: int = 23
  seed: int = 1
  largest_percent: int = 0

  @property
  def name(self) -> str:
    """A directory name that tells it from every other corpus."""
    numbers = '-'.join(str(n) for n in dataclasses.astuple(self))
    return f'synthetic-c4-v{_VERSION}-{numbers}'


def make_corpus(
  corpus: SyntheticC4, directory: str | os.PathLike
) -> tuple[str, ...]:
  """Returns the corpus's files, which are written if they are not there.

  Args:
    corpus: What to write.
    directory: Where corpora are kept, each in a directory of its own, which
      appears when it is complete.
  """
  final = pathlib.Path(directory) / corpus.name
  if not final.is_dir():
    final.parent.mkdir(parents=True, exist_ok=True)
    staging = pathlib.Path(tempfile.mkdtemp(dir=final.parent))
    try:
      _write(corpus, staging)
      staging.rename(final)
    finally:
      shutil.rmtree(staging, ignore_errors=True)
  return tuple(sorted(map(str, final.glob('*.json.gz'))))


def _write(corpus: SyntheticC4, directory: pathlib.Path) -> None:
  texts = _TextPool(corpus, np.random.default_rng([corpus.seed, 0]))
  hosts = _Hosts(corpus, np.random.default_rng([corpus.seed, 1]))
  bounds = np.linspace(0, corpus.num_records, corpus.num_files + 1).astype(int)
  for i in range(corpus.num_files):
    random = np.random.default_rng([corpus.seed, 2, i])
    name = f'c4-train.{i:05d}-of-{corpus.num_files:05d}.json.gz'
    # Neither a name nor a time in the header, so that the bytes are the same.
    with (
      open(directory / name, 'wb') as raw,
      gzip.GzipFile('', 'wb', 1, raw, mtime=0) as file,
    ):
      left = int(bounds[i + 1] - bounds[i])
      while left:
        num_lines = min(left, _LINES_AT_ONCE)
        file.writelines(_lines(corpus, num_lines, texts, hosts, random))
        left -= num_lines


def _lines(
  corpus: SyntheticC4,
  num_lines: int,
  texts: '_TextPool',
  hosts: '_Hosts',
  random: np.random.Generator,
) -> Iterator[bytes]:
  median = corpus.mean_text_bytes / math.exp(_LENGTH_DEVIATION**2 / 2)
  lengths = random.lognormal(math.log(median), _LENGTH_DEVIATION, num_lines)
  for text, host, page, second in zip(
    texts.draw(lengths, random),
    hosts.draw(num_lines, random),
    random.integers(1 << 40, size=num_lines).tolist(),
    random.integers(86_400, size=num_lines).tolist(),
    strict=True,
  ):
    time = f'{second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}'
    yield (
      b'{"text":"%b","timestamp":"2019-04-%02dT%bZ","url":"https://%b/%x"}\n'
      % (text, page % 30 + 1, time.encode(), host, page)
    )


class _TextPool:
  """A long text, already escaped for JSON, of which every text is a piece."""

  def __init__(self, corpus: SyntheticC4, random: np.random.Generator):
    # A word and its space take six bytes.
    num_words = corpus.num_records * corpus.mean_text_bytes // 6
    num_words = int(np.clip(num_words, *_POOL_WORDS))
    words = _make_words(random)
    ranks = np.arange(len(words))
    frequencies = (ranks + 2.7) ** -_WORD_EXPONENT
    cumulative = np.cumsum(frequencies / frequencies.sum())
    drawn = np.searchsorted(cumulative[:-1], random.random(num_words))
    pieces = [words[rank] for rank in drawn.tolist()]
    # As often as in C4: every 70th word has a character beyond ASCII, every
    # 50th ends a line, every 300th has a quotation mark.
    for i in np.flatnonzero(random.random(num_words) < 1 / 70).tolist():
      pieces[i] += b'\xe2\x80\x99s'
    for i in np.flatnonzero(random.random(num_words) < 1 / 50).tolist():
      pieces[i] += b'.\\n'
    for i in np.flatnonzero(random.random(num_words) < 1 / 300).tolist():
      pieces[i] = b'\\"' + pieces[i]
    lengths = np.fromiter(map(len, pieces), np.int64, len(pieces))
    self._starts = np.concatenate([[0], np.cumsum(lengths + 1)])
    self._text = b' '.join(pieces)

  def draw(
    self, lengths: np.ndarray, random: np.random.Generator
  ) -> Iterator[bytes]:
    """Yields texts of about these lengths: whole words, at least one."""
    lengths = np.minimum(lengths, len(self._text) // 2)
    start_bytes = random.random(len(lengths)) * (len(self._text) - lengths)
    first = np.searchsorted(self._starts[:-2], start_bytes, 'right') - 1
    last = np.searchsorted(self._starts, self._starts[first] + lengths)
    last = np.clip(last, first + 1, len(self._starts) - 1)
    begins, ends = self._starts[first], self._starts[last] - 1
    for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
      yield self._text[begin:end]


class _Hosts:
  """Hosts, each with its own share of the documents."""

  def __init__(self, corpus: SyntheticC4, random: np.random.Generator):
    num_hosts = max(1, corpus.num_records // corpus.mean_group_size)
    # Pareto's quantiles, because of single draws the largest may be anything.
    quantiles = (np.arange(num_hosts) + 0.5) / num_hosts
    weights = (1 - quantiles) ** (-1 / _TAIL_EXPONENT)
    self._cumulative = np.cumsum(weights / weights.sum())
    self._largest_share = corpus.largest_percent / 100
    words = _make_words(random)
    endings = (b'.com', b'.org', b'.net', b'.co.uk', b'.de')
    self._names = [
      b'%b%b%x%b'
      % (b'www.' * (i % 2), words[i % len(words)], i, endings[i % len(endings)])
      for i in range(num_hosts)
    ]

  def draw(
    self, num_records: int, random: np.random.Generator
  ) -> Iterator[bytes]:
    """Yields the hosts of some documents."""
    drawn = np.searchsorted(self._cumulative[:-1], random.random(num_records))
    if self._largest_share:
      drawn[random.random(num_records) < self._largest_share] = -1
    return (self._names[i] for i in drawn.tolist())


def _make_words(random: np.random.Generator) -> list[bytes]:
  """Returns different words; the frequent ones, at the front, are shorter."""
  lengths = 1 + random.poisson(1.5 + 0.6 * np.log1p(np.arange(_NUM_WORDS)))
  ends = np.cumsum(lengths)
  letters = random.choice(
    np.frombuffer(b'eeeetttaaaoooiinnsshhrrddlcumwfgypbvk', 'S1'), ends[-1]
  ).tobytes()
  words = {}
  for begin, end in zip((ends - lengths).tolist(), ends.tolist(), strict=True):
    word = letters[begin:end]
    # Repeated ones are told apart.
    words[word if word not in words else word + b'%d' % begin] = None
  return list(words)


def main() -> None:
  """Writes one corpus and prints its files, as JSON."""
  parser = argparse.ArgumentParser(description=main.__doc__)
  parser.add_argument('--directory', required=True)
  for field in dataclasses.fields(SyntheticC4):
    required = field.default is dataclasses.MISSING
    default = None if required else field.default
    parser.add_argument(
      f'--{field.name}', type=int, required=required, default=default
    )
  values = vars(parser.parse_args())
  directory = values.pop('directory')
  print(json.dumps(make_corpus(SyntheticC4(**values), directory)))


if __name__ == '__main__':
  main()

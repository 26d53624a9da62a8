"""Example corpus: 20 passages of each of 30 presidents, as JSON lines.

  python docs/examples/notes.py notes.jsonl

Each line is such as {"writer": "Abraham Lincoln", "text": "..."}. The passages
are four sentences of State of the Union addresses.
"""

import argparse
import collections
import gzip
import json

from tff_fedfish import corpora

NUM_WRITERS = 30
PASSAGES_PER_WRITER = 20
SENTENCES_PER_PASSAGE = 4


def passages():
  """Returns {president: passages}."""
  found = collections.defaultdict(list)
  path = corpora.sotu_by_president() / 'sotu.json.gz'
  with gzip.open(path, 'rt', encoding='utf-8') as lines:
    for line in map(json.loads, lines):
      sentences = line['text'].split('. ')
      for i in range(0, len(sentences), SENTENCES_PER_PASSAGE):
        passage = '. '.join(sentences[i : i + SENTENCES_PER_PASSAGE])
        found[line['author']].append(passage)
  return found


def main(path):
  """Writes the corpus to a file."""
  writers = [
    (writer, texts[:PASSAGES_PER_WRITER])
    for writer, texts in passages().items()
    if len(texts) >= PASSAGES_PER_WRITER
  ][:NUM_WRITERS]
  with open(path, 'w', encoding='utf-8') as file:
    for writer, texts in writers:
      for text in texts:
        file.write(json.dumps({'writer': writer, 'text': text}) + '\n')


if __name__ == '__main__':
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('path', help='the file to write')
  main(parser.parse_args().path)

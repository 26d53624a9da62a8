"""The library of exported models, and texts for its tokenizers."""

import gzip
import json
import os
import pathlib
import random

import pytest

_CORPORA = pathlib.Path(__file__).parents[2] / 'tff_fedfish/corpora'
_PARTS = 'debian_descriptions/c4-train.*.json.gz'
_ODD_TEXTS = [
  '',
  ' ',
  '  two\n\n\tlines\r\n',
  'Straße, ΣΊΣΥΦΟΣ, ᾳ, ﬁ, İstanbul, Zażółć gęślą jaźń – „cytat“…',
  'Äpfel, 你好 😀👩‍👩‍👧 한국어 조선글 हिन्दी العربية กรุงเทพ',
  'zero\u200bwidth\ufeff, soft\xadhyphen, nul\x00, bell\x07, e\u0301',
  '[END] [UNK] [PAD] </s> <s> <unk> <0x41> ▁▁a ##b',
  'x' * 101,
  'ab ' * 3 + "don't e-mail: a@b.example/c?d=e&f#g",
]


@pytest.fixture(scope='session', name='transformers')
def _transformers():
  """The library, which looks nothing up on the network."""
  os.environ['HF_HUB_OFFLINE'] = '1'
  import transformers

  assert transformers.__version__ == '4.49.0'
  assert transformers.is_tf_available()
  assert not transformers.is_torch_available()
  return transformers


@pytest.fixture(scope='session', name='texts')
def _texts():
  """1,000 documents, some odd ones, one of 100 kB, and drawn characters."""
  texts = []
  for path in sorted(_CORPORA.glob(_PARTS)):
    with gzip.open(path, 'rt', encoding='utf-8') as file:
      texts += [json.loads(line)['text'] for line in file]
  texts = texts[:1000]
  assert len(texts) == 1000
  long = ' '.join(texts)[:100_000]
  assert len(long) == 100_000
  draw = random.Random(7)
  ranges = [(32, 127), (160, 0x250), (0x370, 0x61C), (0x3040, 0xA000)]
  drawn = [
    ''.join(chr(draw.randrange(*draw.choice(ranges))) for _ in range(50))
    for _ in range(200)
  ]
  return [*_ODD_TEXTS, *texts, long, *drawn]

"""Exported models in transformers, and its models here.

With TensorFlow's classes of transformers 4.49: no later version has them, and
the wheel of torch 2.13.0 that pip is offered has 527 MB and needs CUDA's. What
they read, `model.safetensors` in PyTorch's layout, is what PyTorch's read.
"""

import csv
import gzip
import json
import os
import pathlib
import random

import numpy as np
import pytest
import small_runs
import tensorflow as tf
import tokenizers

from models import transformer
from tff_fedfish.cli.main import main
from tff_fedfish.data import sentencepiece
from tff_fedfish.data.client_sequences import ClientSequences
from tff_fedfish.data.grouped_corpus import GroupedCorpus
from tff_fedfish.data.tokenizers import WordPieceTokenizer, load_tokenizer
from tff_fedfish.evaluation.clients import choose_clients
from tff_fedfish.exporting import export
from tff_fedfish.exporting.trained_model import load_trained_model
from tff_fedfish.huggingface import pretrained, tokenizer_files

pytestmark = pytest.mark.huggingface
_ROOT = pathlib.Path(__file__).parents[2]
_CORPUS = _ROOT / 'tff_fedfish' / 'corpora' / 'debian_descriptions'
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


@pytest.fixture(scope='module', name='transformers')
def _transformers():
  """The library, which looks nothing up on the network."""
  os.environ['HF_HUB_OFFLINE'] = '1'
  import transformers

  assert transformers.__version__ == '4.49.0'
  assert transformers.is_tf_available()
  assert not transformers.is_torch_available()
  return transformers


@pytest.fixture(scope='module', name='texts')
def _texts():
  """1,000 documents, some odd ones, one of 100 kB, and drawn characters."""
  texts = []
  for path in sorted(_CORPUS.glob('c4-train.*.json.gz')):
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


def _sentencepiece(texts, model_type):
  """A SentencePiece model of byte pairs (2) or unigrams (1), as its bytes."""
  normalizer = tokenizers.normalizers.Replace(' ', '▁')
  if model_type == 2:
    trained = tokenizers.Tokenizer(tokenizers.models.BPE())
    trainer = tokenizers.trainers.BpeTrainer(
      vocab_size=600, show_progress=False, max_token_length=16
    )
  else:
    trained = tokenizers.Tokenizer(tokenizers.models.Unigram())
    trainer = tokenizers.trainers.UnigramTrainer(
      vocab_size=600, show_progress=False
    )
  trained.normalizer = normalizer
  trained.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
  trained.train_from_iterator(texts, trainer)
  model = json.loads(trained.to_str())['model']
  if model_type == 2:
    # The score falls with the order of the merges; letters come last.
    merges = {''.join(pair): -i for i, pair in enumerate(model['merges'])}
    pieces = [
      (piece, merges.get(piece, -len(merges) - i))
      for piece, i in model['vocab'].items()
    ]
  else:
    pieces = [tuple(piece) for piece in model['vocab']]
  special = [('<unk>', 0.0, 2), ('<s>', 0.0, 3), ('</s>', 0.0, 3)]
  special += [(f'<0x{byte:02X}>', 0.0, 6) for byte in range(256)]
  if model_type == 1:
    special = special[:3]
  # SentencePiece ends at a NUL.
  names = {'\0', *(piece for piece, _, _ in special)}
  proto = sentencepiece.model_class()()
  for piece, score, kind in [
    *special,
    *((piece, score, 1) for piece, score in pieces if piece not in names),
  ]:
    proto.pieces.add(piece=piece, score=score, type=kind)
  proto.trainer_spec.model_type = model_type
  proto.trainer_spec.byte_fallback = int(model_type == 2)
  return proto.SerializeToString()


def _require_equal_ids(transformers, tokenizer, directory, texts):
  directory.mkdir()
  tokenizer_files.write(tokenizer, directory, sequence_length=10**6)
  found = transformers.AutoTokenizer.from_pretrained(directory)
  assert found.eos_token_id == tokenizer.end_of_text_id
  assert len(found) == tokenizer.size
  for text, expected in zip(texts, tokenizer.encode_batch(texts), strict=True):
    assert found(text)['input_ids'] == expected.tolist(), text[:80]


@pytest.mark.parametrize('lower_case', [True, False])
def test_ids_of_wordpiece(transformers, texts, tmp_path, lower_case):
  vocabulary = _ROOT / 'tff_fedfish' / 'corpora' / 'demo_vocabulary'
  pieces = (vocabulary / 'vocab.txt').read_bytes()
  # Letters of the odd texts, too.
  known = {*pieces.decode().split('\n')}
  more = {*''.join(texts).lower()} | {*''.join(texts)}
  more = sorted(c for c in more if c.isprintable() and not c.isspace())
  more = [p for c in more for p in (c, f'##{c}') if p not in known]
  pieces += ''.join(f'{piece}\n' for piece in more).encode()
  tokenizer = WordPieceTokenizer(pieces, 'v', lower_case=lower_case)
  _require_equal_ids(transformers, tokenizer, tmp_path / 'v', texts)


def test_ids_of_byte_pairs(transformers, texts, tmp_path):
  path = tmp_path / 'v.model'
  path.write_bytes(_sentencepiece(texts[:300], 2))
  tokenizer = load_tokenizer(path)
  _require_equal_ids(transformers, tokenizer, tmp_path / 'v', texts)


def test_ids_of_unigrams(transformers, texts, tmp_path):
  """Equal but for divisions of equal score, such as 0 00 and 00 0.

  SentencePiece adds scores up in float32, so that rounding decides between
  them; the library does in float64.
  """
  path = tmp_path / 'v.model'
  path.write_bytes(_sentencepiece(texts[:300], 1))
  tokenizer = load_tokenizer(path)
  tokenizer_files.write(tokenizer, tmp_path, sequence_length=10**6)
  found = transformers.AutoTokenizer.from_pretrained(tmp_path)
  model = sentencepiece.model_class().FromString(path.read_bytes())
  scores = np.array([piece.score for piece in model.pieces], np.float64)
  # A text that spells a special piece is read as that piece.
  texts = [text for text in texts if '</s>' not in text]
  num_different = 0
  for text, expected in zip(texts, tokenizer.encode_batch(texts), strict=True):
    ids = found(text)['input_ids']
    if ids != expected.tolist():
      num_different += 1
      assert len(ids) == len(expected)
      assert scores[ids].sum() == pytest.approx(
        scores[expected].sum(), abs=1e-3
      )
      assert tokenizer.decode(ids) == tokenizer.decode(expected)
  assert num_different <= 0.02 * len(texts)


def test_ids_of_a_published_vocabulary(
  transformers, texts, tmp_path, shared_data
):
  path = shared_data('vocab') / 'mistral-tokenizer.model.v1'
  tokenizer = load_tokenizer(path)
  _require_equal_ids(transformers, tokenizer, tmp_path / 'v', texts)


def test_logits(transformers, small_export, small_run):
  model = load_trained_model(small_run)
  length, size = model.shape.sequence_length, model.shape.vocabulary_size
  tokens = np.random.RandomState(3).randint(size, size=(4, length))
  found = transformers.TFAutoModelForCausalLM.from_pretrained(small_export)
  expected = transformer.logits(
    model.shape, tuple(model.weights.values()), tf.constant(tokens, tf.int32)
  )
  np.testing.assert_allclose(
    found(tokens).logits.numpy(), expected.numpy(), rtol=0, atol=1e-4
  )


def test_generation(transformers, small_export):
  model = transformers.TFAutoModelForCausalLM.from_pretrained(small_export)
  tokenizer = transformers.AutoTokenizer.from_pretrained(small_export)
  # A type of a token would be embedded, too.
  prompt = tokenizer('library', return_tensors='tf')
  assert {*prompt} == {'input_ids', 'attention_mask'}
  start = prompt['input_ids'].shape[1]
  rows = model.generate(**prompt, max_new_tokens=3, do_sample=False)
  # The likeliest token each time.
  tokens = prompt['input_ids'].numpy()
  for _ in range(3):
    step = model(tokens).logits.numpy()[:, -1].argmax(-1)
    tokens = np.concatenate([tokens, step[:, np.newaxis]], axis=1)
    if step[0] == tokenizer.eos_token_id:
      break
  np.testing.assert_array_equal(rows.numpy()[0, : tokens.shape[1]], tokens[0])
  assert rows.shape[1] > start


def test_round_trip_is_bit_equal(transformers, small_export, tmp_path):
  """Through the library's classes, which save in their own layout."""
  model = transformers.TFAutoModelForCausalLM.from_pretrained(small_export)
  model.save_pretrained(tmp_path, safe_serialization=True)
  shape = pretrained.read_shape(small_export, '--x')
  assert pretrained.read_shape(tmp_path, '--x') == shape
  given = pretrained.read_weights(small_export, shape)
  for name, weight in pretrained.read_weights(tmp_path, shape).items():
    np.testing.assert_array_equal(weight, given[name])


@pytest.fixture(scope='module', name='theirs')
def _theirs(transformers, texts, tmp_path_factory):
  """A GPT-2 with a byte-level BPE of 5,000 tokens, made by the library."""
  directory = tmp_path_factory.mktemp('theirs')
  tokenizer = tokenizers.ByteLevelBPETokenizer()
  tokenizer.train_from_iterator(
    texts[:1000],
    vocab_size=5000,
    special_tokens=['<|endoftext|>'],
    show_progress=False,
  )
  transformers.GPT2TokenizerFast(
    tokenizer_object=tokenizer._tokenizer
  ).save_pretrained(directory)
  tf.keras.utils.set_random_seed(5)
  model = transformers.TFGPT2LMHeadModel(
    transformers.GPT2Config(
      n_layer=2, n_embd=16, n_head=2, vocab_size=5000, n_positions=16
    )
  )
  model(tf.constant([[1, 2]]))
  model.save_pretrained(directory, safe_serialization=True)
  return directory


def _losses(transformers, directory, corpus):
  """Client -> mean loss of its scored half, in nats per token."""
  model = transformers.TFAutoModelForCausalLM.from_pretrained(directory)
  tokenizer = load_tokenizer(directory)
  length = model.config.n_positions
  corpus = GroupedCorpus(corpus)
  sample = choose_clients(
    corpus.client_ids,
    ClientSequences(corpus, tokenizer, sequence_length=length),
    split_seed=3,
    split_unit='documents',
    max_clients=None,
    fractions=(0.0,),
  )
  losses = {}
  for client_id, halves in sample.clients:
    rows = halves.evaluation
    logits = model(rows.tokens[:, :-1]).logits
    nats = tf.keras.losses.sparse_categorical_crossentropy(
      rows.tokens[:, 1:], logits, from_logits=True
    ).numpy()
    is_real = np.arange(length) < rows.num_targets[:, np.newaxis]
    losses[client_id.decode()] = nats[is_real].mean()
  return losses


def test_a_model_of_theirs_is_evaluated_trained_and_exported(
  transformers, theirs, small_inputs, tmp_path
):
  corpus = small_inputs[0]
  argv = ['evaluate', '--checkpoint', str(theirs), '--data', str(corpus)]
  scores = tmp_path / 'scores'
  assert main([*argv, '--output', str(scores), '--fractions', '0']) == 0
  with open(scores / 'per_client.csv', newline='') as file:
    found = {
      r['client_id']: float(r['loss_before']) for r in csv.DictReader(file)
    }
  expected = _losses(transformers, theirs, corpus)
  assert found.keys() == expected.keys() and len(found) > 2
  for client, loss in expected.items():
    assert found[client] == pytest.approx(loss, abs=1e-4)
  settings = small_runs.FROM_DIRECTORY | {
    'data__sequence_length': 16,
    'training__start_from': theirs,
    'training__num_rounds': 1,
  }
  run = tmp_path / 'run'
  assert small_runs.train((corpus, theirs), run, **settings) == 0
  export.export(run, tmp_path / 'again', ['huggingface'])
  model = load_trained_model(run)
  loaded = transformers.TFAutoModelForCausalLM.from_pretrained(
    tmp_path / 'again'
  )
  tokens = np.arange(32).reshape(2, 16) % 5000
  np.testing.assert_allclose(
    loaded(tokens).logits.numpy(),
    transformer.logits(
      model.shape, tuple(model.weights.values()), tf.constant(tokens, tf.int32)
    ).numpy(),
    rtol=0,
    atol=1e-4,
  )
  tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / 'again')
  before = transformers.AutoTokenizer.from_pretrained(theirs)
  for text in _ODD_TEXTS:
    assert tokenizer(text)['input_ids'] == before(text)['input_ids']
  # It was trained.
  start = pretrained.read_weights(theirs, model.shape)
  assert any(np.any(start[n] != w) for n, w in model.weights.items())

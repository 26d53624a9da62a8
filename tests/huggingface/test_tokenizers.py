"""Exported vocabularies in transformers give our ids."""

import json
import pathlib

import numpy as np
import pytest
import tokenizers

from tff_fedfish.data import sentencepiece
from tff_fedfish.data.tokenizers import WordPieceTokenizer, load_tokenizer
from tff_fedfish.huggingface import tokenizer_files

pytestmark = pytest.mark.huggingface
_VOCABULARY = (
  pathlib.Path(__file__).parents[2] / 'tff_fedfish/corpora/demo_vocabulary'
)


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
  pieces = (_VOCABULARY / 'vocab.txt').read_bytes()
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

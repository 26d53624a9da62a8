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


def _sentencepiece(texts):
  """A SentencePiece model of unigrams, as its bytes."""
  trained = tokenizers.Tokenizer(tokenizers.models.Unigram())
  trained.normalizer = tokenizers.normalizers.Replace(' ', '▁')
  trained.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
  trainer = tokenizers.trainers.UnigramTrainer(
    vocab_size=600, show_progress=False
  )
  trained.train_from_iterator(texts, trainer)
  special = [('<unk>', 0.0, 2), ('<s>', 0.0, 3), ('</s>', 0.0, 3)]
  # SentencePiece ends at a NUL.
  names = {'\0', *(piece for piece, _, _ in special)}
  pieces = json.loads(trained.to_str())['model']['vocab']
  proto = sentencepiece.model_class()()
  for piece, score, kind in [
    *special,
    *((piece, score, 1) for piece, score in pieces if piece not in names),
  ]:
    proto.pieces.add(piece=piece, score=score, type=kind)
  proto.trainer_spec.model_type = 1
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


def test_ids_of_unigrams(transformers, texts, tmp_path):
  """Equal but for divisions of equal score, such as 0 00 and 00 0.

  SentencePiece adds scores up in float32, so that rounding decides between
  them; the library does in float64.
  """
  path = tmp_path / 'v.model'
  path.write_bytes(_sentencepiece(texts[:300]))
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


def test_ids_of_byte_pairs_that_were_published(
  transformers, texts, tmp_path, shared_data
):
  path = shared_data('vocab') / 'mistral-tokenizer.model.v1'
  tokenizer = load_tokenizer(path)
  _require_equal_ids(transformers, tokenizer, tmp_path / 'v', texts)

"""Tokenizers: ids by hand, files that come back, files that are refused."""

import gzip
import json

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_text as tf_text
from hypothesis import given, settings
from hypothesis import strategies as st

from tff_fedfish import corpora
from tff_fedfish.data import sentencepiece, tokenizers

#            0        1        2
_PIECES = ['[PAD]', '[UNK]', '[END]', 'un', '##want', '##ed', 'run', '##ning']
_PIECES += [',', 'a', '##a', 'b', 'c', 'cafe', '你']  # 8 to 14
_END_TYPE, _UNKNOWN_TYPE, _NORMAL_TYPE = 3, 2, 1


def _wordpiece(pieces=_PIECES, **kwargs):
  return tokenizers.WordPieceTokenizer(
    ''.join(f'{piece}\n' for piece in pieces).encode(), 'v.txt', **kwargs
  )


def _sentencepiece_model(pieces, **trainer):
  """A SentencePiece unigram model in which longer pieces score higher."""
  model = sentencepiece.model_class()()
  for name, value in trainer.items():
    setattr(model.trainer_spec, name, value)
  for piece, kind in pieces:
    model.pieces.add(piece=piece, score=-10.0 / len(piece), type=kind)
  return model.SerializeToString()


_SENTENCEPIECE_PIECES = [
  ('<unk>', _UNKNOWN_TYPE),
  ('<s>', _END_TYPE),
  ('</s>', _END_TYPE),
  ('▁', _NORMAL_TYPE),
  ('▁ab', _NORMAL_TYPE),
  ('c', _NORMAL_TYPE),
]


@pytest.fixture(name='model_file')
def _model_file(tmp_path):
  path = tmp_path / 'tiny.model'
  path.write_bytes(_sentencepiece_model(_SENTENCEPIECE_PIECES))
  return path


def test_longest_pieces_first():
  tokenizer = _wordpiece()
  assert tokenizer.encode_batch([]) == []
  # Bytes and characters that are not UTF-8 are unknown.
  texts = [b'unwanted,running', 'a b', b'', b'a \xff b', 'a \ud800 b']
  found = tokenizer.encode_batch(texts)
  words, unknown = [3, 4, 5, 8, 6, 7], [9, 1, 11]
  assert [list(i) for i in found] == [words, [9, 11], [], unknown, unknown]
  assert all(ids.dtype == np.int32 for ids in found)


def test_what_cannot_be_spelled_is_one_unknown_word():
  # 'unx' starts with a known piece, but has no whole spelling. Each ideograph
  # is a word. A word of 101 bytes is too long, one of 100 is not.
  # [ and ] are no pieces, nor are pad and end: special names are text.
  texts = ['unx b', '你好', 'a' * 101, 'a' * 100, '[PAD] [END]']
  found = [list(ids) for ids in _wordpiece().encode_batch(texts)]
  assert found == [[1, 11], [14, 1], [1], [9] + [10] * 99, [1] * 6]


def test_case_and_accents():
  lower, cased = _wordpiece(lower_case=True), _wordpiece(lower_case=False)
  texts = ['RUN', 'Café', 'run\u00a0b']
  assert [list(i) for i in lower.encode_batch(texts)] == [[6], [13], [6, 11]]
  assert [list(i) for i in cased.encode_batch(texts)] == [[1], [1], [6, 11]]
  # Detected from the pieces, without special ones.
  for word, lower_case in (('Run2', False), ('[Run]', True), ('##N', False)):
    assert _wordpiece([*_PIECES, word]).lower_case == lower_case


def test_decode():
  tokenizer = _wordpiece()
  assert tokenizer.decode([3, 4, 5, 8, 1, 2, 0, 0]) == 'unwanted , [UNK]'
  # A sequence may start within a word.
  assert tokenizer.decode([4, 5, 9]) == '##wanted a'
  assert tokenizer.decode([2, 0]) == ''
  assert tokenizer.pieces([2, 4]) == ['[END]', '##want']


@settings(max_examples=40)
@given(st.lists(st.text(max_size=40) | st.binary(max_size=40), max_size=4))
def test_any_text_gives_ids_in_range_whatever_else_is_encoded(texts):
  tokenizer = _shared_wordpiece
  together = tokenizer.encode_batch(texts)
  assert len(together) == len(texts)
  for text, ids in zip(texts, together, strict=True):
    np.testing.assert_array_equal(tokenizer.encode_batch([text])[0], ids)
    assert ((0 <= ids) & (ids < tokenizer.size)).all()
    # Special tokens are never added, nor written by a text.
    assert not np.isin(ids, [0, 2]).any()


_shared_wordpiece = _wordpiece()


def test_sentencepiece_by_hand(model_file):
  tokenizer = tokenizers.load_tokenizer(model_file)
  assert (tokenizer.kind, tokenizer.size) == ('sentencepiece', 6)
  assert (tokenizer.unknown_id, tokenizer.end_of_text_id) == (0, 2)
  # No padding piece: the end of text serves.
  assert tokenizer.padding_id == 2
  found = tokenizer.encode_batch([b'abc', 'c ab', b'', b'\xff'])
  assert [list(ids) for ids in found] == [[4, 5], [3, 5, 4], [], [3, 0]]
  assert tokenizer.decode([4, 5, 2, 2]) == 'abc'
  assert tokenizer.pieces([4, 2]) == ['▁ab', '</s>']
  # Special pieces of its own.
  pieces = [*_SENTENCEPIECE_PIECES, ('<pad>', _END_TYPE), ('<eot>', _END_TYPE)]
  model_file.write_bytes(_sentencepiece_model(pieces, eos_piece='<eot>'))
  tokenizer = tokenizers.load_tokenizer(model_file)
  assert (tokenizer.end_of_text_id, tokenizer.padding_id) == (7, 6)


@pytest.mark.parametrize(
  ('present', 'kind', 'text', 'sizes'),
  [
    # Parts of a character, which by themselves are decoded as one of 3 bytes.
    (range(256), 6, 'cйc', [0, 1, 1, 1, 1]),
    # A piece that its maker defined: six characters.
    ([0x0A], 4, 'c<0x0A>c', [0, 1, 6, 1]),
    # 255 pieces: the unknown piece is decoded as ' \u2047 ', 5 bytes.
    (range(1, 256), 4, 'cйc', [0, 1, 5, 1]),
  ],
)
def test_bytes_of_sentencepiece(model_file, present, kind, text, sizes):
  pieces = [(f'<0x{byte:02X}>', kind) for byte in present]
  model_file.write_bytes(
    _sentencepiece_model(
      [*_SENTENCEPIECE_PIECES, *pieces], byte_fallback=int(kind == 6)
    )
  )
  tokenizer = tokenizers.load_tokenizer(model_file)
  [ids] = tokenizer.encode_batch([text])
  # The space before the text is not decoded.
  assert [tokenizer.num_bytes([token_id]) for token_id in ids] == sizes
  assert tokenizer.num_bytes(ids) == sum(sizes)


def _saved(tokenizer, path):
  tokenizer.save(path)
  loaded = tokenizers.load_tokenizer(path)
  for name in (
    *('kind', 'size', 'lower_case', 'sha256'),
    *('end_of_text_id', 'padding_id', 'unknown_id'),
  ):
    assert getattr(loaded, name) == getattr(tokenizer, name)
  return loaded


@pytest.mark.parametrize('lower_case', [True, False])
def test_a_saved_vocabulary_comes_back(tmp_path, lower_case, model_file):
  loaded = _saved(_wordpiece(lower_case=lower_case), tmp_path / 'v')
  names = sorted(path.name for path in (tmp_path / 'v').iterdir())
  assert names == ['tokenizer.json', 'vocab.txt']
  assert list(loaded.encode_batch(['Run a'])[0]) == [6 if lower_case else 1, 9]
  _saved(tokenizers.load_tokenizer(model_file), tmp_path / 's')
  model = tmp_path / 's' / 'sentencepiece.model'
  assert model.read_bytes() == model_file.read_bytes()


def test_it_is_saved_as_by_earlier_versions(tmp_path):
  # Reports compare the vocabularies of runs by this file.
  tokenizers.load_tokenizer(corpora.demo_vocabulary()).save(tmp_path / 'v')
  for name in ('tokenizer.json', 'vocab.txt'):
    earlier = (corpora.demo_vocabulary() / name).read_bytes()
    assert (tmp_path / 'v' / name).read_bytes() == earlier


def test_berts_vocabulary_and_slower_tokenizer(shared_data, tmp_path):
  path = tmp_path / 'v.txt'
  original = shared_data('vocab') / 'bert-base-uncased-vocab.txt'
  # As in a file of Windows.
  path.write_bytes(original.read_bytes().replace(b'\n', b'\r\n'))
  tokenizer = tokenizers.load_tokenizer(path)
  assert (tokenizer.size, tokenizer.lower_case) == (30522, True)
  ids = tokenizer.padding_id, tokenizer.unknown_id, tokenizer.end_of_text_id
  assert ids == (0, 100, 102)
  file = shared_data('c4_en_sample_a') / 'c4-train.00000-of-00001.json.gz'
  with gzip.open(file) as lines:
    texts = [json.loads(line)['text'].encode() for line in lines][:100]
  for lower_case in (True, False):
    reference = tf_text.BertTokenizer(
      str(shared_data('vocab') / 'bert-base-uncased-vocab.txt'),
      token_out_type=tf.int32,
      lower_case=lower_case,
    )
    expected = reference.tokenize(texts).merge_dims(1, 2)
    found = tokenizers.WordPieceTokenizer(
      path.read_bytes(), 'v.txt', lower_case
    ).encode_batch(texts)
    np.testing.assert_array_equal(np.concatenate(found), expected.flat_values)
    np.testing.assert_array_equal(list(map(len, found)), expected.row_lengths())


def test_a_published_sentencepiece_model(shared_data):
  path = shared_data('vocab') / 'mistral-tokenizer.model.v1'
  tokenizer = tokenizers.load_tokenizer(path)
  assert tokenizer.size == 32000
  assert (tokenizer.unknown_id, tokenizer.end_of_text_id) == (0, 2)
  text = 'Äpfel, 你好 😀\nand\x00\ttabs'
  [ids] = tokenizer.encode_batch([text])
  assert tokenizer.decode([*ids, 2, 2]) == text

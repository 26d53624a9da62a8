"""Tokenizers: ids by hand, files that come back, files that are refused."""

import concurrent.futures
import gzip
import json
import types

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_text as tf_text
from hypothesis import given
from hypothesis import strategies as st

from tff_fedfish.data import tokenizers, unknown_tokens
from tff_fedfish.errors import UserError

#            0        1        2
_PIECES = ['[PAD]', '[UNK]', '[END]', 'un', '##want', '##ed', 'run', '##ning']
_PIECES += [',', 'a', '##a', 'b', 'c', 'cafe', '你']  # 8 to 14
_END_TYPE, _UNKNOWN_TYPE, _NORMAL_TYPE = 3, 2, 1


def _wordpiece(pieces=_PIECES, **kwargs):
  return tokenizers.wordpiece_tokenizer(
    ''.join(f'{piece}\n' for piece in pieces).encode(), 'v.txt', **kwargs
  )


def _field(number, wire_type, data):
  """One protobuf field; lengths and values here stay below 128."""
  high, low = divmod(number * 8 + wire_type, 128)
  return (bytes([low + 128, high]) if high else bytes([low])) + data


def _sentencepiece_model(pieces, end_piece=None):
  """A SentencePiece unigram model in which longer pieces score higher."""
  model = b''
  for piece, kind in pieces:
    text = piece.encode()
    score = np.float32(-10.0 / len(piece)).tobytes()
    body = _field(1, 2, bytes([len(text)]) + text)
    body += _field(2, 5, score) + _field(3, 0, bytes([kind]))
    model += _field(1, 2, bytes([len(body)]) + body)
  if end_piece:
    body = _field(47, 2, bytes([len(end_piece)]) + end_piece.encode())
    model += _field(2, 2, bytes([len(body)]) + body)
  return model


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
  found = _wordpiece().encode_batch([b'unwanted,running', 'a b', b''])
  assert [list(ids) for ids in found] == [[3, 4, 5, 8, 6, 7], [9, 11], []]
  assert all(ids.dtype == np.int32 for ids in found)


def test_no_texts():
  assert _wordpiece().encode_batch([]) == []


def test_what_cannot_be_spelled_is_one_unknown_word():
  # 'unx' starts with a known piece, but has no whole spelling. Each ideograph
  # is a word. A word of 101 bytes is too long, one of 100 is not.
  found = _wordpiece().encode_batch(['unx b', '你好', 'a' * 101, 'a' * 100])
  assert [list(ids) for ids in found] == [
    [1, 11],
    [14, 1],
    [1],
    [9] + [10] * 99,
  ]


def test_case_and_accents():
  lower, cased = _wordpiece(lower_case=True), _wordpiece(lower_case=False)
  texts = ['RUN', 'Café', 'run\u00a0b']
  assert [list(i) for i in lower.encode_batch(texts)] == [[6], [13], [6, 11]]
  assert [list(i) for i in cased.encode_batch(texts)] == [[1], [1], [6, 11]]


@pytest.mark.parametrize(
  ('word', 'lower_case'), [('Run2', False), ('[Run]', True), ('##N', False)]
)
def test_case_is_detected_from_the_pieces(word, lower_case):
  assert _wordpiece([*_PIECES, word]).lower_case == lower_case


def test_special_names_in_a_text_are_text():
  # [ and ] are no pieces of this vocabulary, "pad" and "end" are not either.
  assert list(_wordpiece().encode_batch(['[PAD] [END]'])[0]) == [1] * 6


def test_bytes_that_are_not_utf8():
  assert list(_wordpiece().encode_batch([b'a \xff b'])[0]) == [9, 1, 11]
  assert list(_wordpiece().encode_batch(['a \ud800 b'])[0]) == [9, 1, 11]


def test_decode():
  tokenizer = _wordpiece()
  assert tokenizer.decode([3, 4, 5, 8, 1, 2, 0, 0]) == 'unwanted , [UNK]'
  # A sequence may start within a word.
  assert tokenizer.decode([4, 5, 9]) == '##wanted a'
  assert tokenizer.decode([2, 0]) == ''
  assert tokenizer.pieces([2, 4]) == ['[END]', '##want']
  for token_id in (-1, 15):
    with pytest.raises(ValueError, match=f'0 to 14, found {token_id}'):
      tokenizer.decode([token_id])


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


def test_threads_share_a_tokenizer():
  texts = [b'unwanted,running', b'a b c', b'x'] * 50
  expected = [list(ids) for ids in _shared_wordpiece.encode_batch(texts)]
  with concurrent.futures.ThreadPoolExecutor(4) as pool:
    for found in pool.map(_shared_wordpiece.encode_batch, [texts] * 20):
      assert [list(ids) for ids in found] == expected


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


def test_unknown_tokens_of_sentencepiece(model_file):
  tokenizer = tokenizers.load_tokenizer(model_file)
  # '▁ab' '▁' UNK '▁' 'c' and the end of text: 1 of 6.
  documents = [{'text': 'ab и c'.encode()}]
  corpus = types.SimpleNamespace(stream=lambda: iter([(b'x', documents)]))
  assert unknown_tokens.fraction_of_corpus(corpus, tokenizer) == 1 / 6


def test_sentencepiece_with_its_own_special_pieces(tmp_path):
  pieces = [*_SENTENCEPIECE_PIECES, ('<pad>', _END_TYPE), ('<eot>', _END_TYPE)]
  path = tmp_path / 'tiny.model'
  path.write_bytes(_sentencepiece_model(pieces, end_piece='<eot>'))
  tokenizer = tokenizers.load_tokenizer(path)
  assert (tokenizer.end_of_text_id, tokenizer.padding_id) == (7, 6)


@pytest.mark.parametrize('lower_case', [True, False])
def test_a_saved_vocabulary_comes_back(tmp_path, lower_case):
  saved = _wordpiece(lower_case=lower_case)
  saved.save(tmp_path / 'v')
  assert sorted(path.name for path in (tmp_path / 'v').iterdir()) == [
    'tokenizer.json',
    'vocab.txt',
  ]
  loaded = tokenizers.load_tokenizer(tmp_path / 'v')
  assert repr(loaded) == repr(saved)
  assert loaded.sha256 == saved.sha256
  assert list(loaded.encode_batch(['Run a'])[0]) == [6 if lower_case else 1, 9]


def test_a_saved_sentencepiece_model_comes_back(tmp_path, model_file):
  saved = tokenizers.load_tokenizer(model_file)
  saved.save(tmp_path / 'v')
  loaded = tokenizers.load_tokenizer(tmp_path / 'v')
  assert repr(loaded) == repr(saved)
  assert (
    tmp_path / 'v' / 'sentencepiece.model'
  ).read_bytes() == model_file.read_bytes()


def test_windows_line_ends(tmp_path):
  path = tmp_path / 'v.txt'
  path.write_bytes('\r\n'.join(_PIECES).encode())
  assert list(tokenizers.load_tokenizer(path).encode_batch(['a b'])[0]) == [
    9,
    11,
  ]


def _refuse(path, message):
  with pytest.raises(UserError, match=message) as caught:
    tokenizers.load_tokenizer(path)
  assert '\n' not in str(caught.value)
  assert path.name in str(caught.value)


def test_paths_that_hold_no_vocabulary(tmp_path):
  message = 'A vocabulary must be a directory with tokenizer.json.* '
  _refuse(tmp_path / 'nowhere', message + 'does not exist. Name one')
  _refuse(tmp_path, message + 'is a directory without tokenizer.json')
  (tmp_path / 'v.pdf').write_bytes(b'')
  _refuse(tmp_path / 'v.pdf', message + 'is another file')


@pytest.mark.parametrize(
  ('data', 'message'),
  [
    (b'', r'must hold the piece \[END\] or \[SEP\], but none of its 0 lines'),
    (b'[PAD]\n[END]\na\n', r'must hold the piece \[UNK\].* its 3 lines does'),
    (b'[UNK]\n[SEP]\na\n', r'must hold the piece \[PAD\]'),
    (b'[PAD]\na\nb\na\n', "'a' stands in lines 2 and 4"),
    (b'[PAD]\n\nb\n', 'line 2 is empty'),
    (b'[PAD]\n\xff\n', 'byte 6 is not UTF-8'),
    (b'[PAD]\n[UNK]\n[END]\n', 'no tokenizer can be built from it'),
    (
      b'[PAD]\n[UNK]\n[END]\n' + b'x' * 500,
      r'no tokenizer can be built from it \(.{1,200}\)\. Name another file',
    ),
  ],
)
def test_wordpiece_files_that_are_refused(tmp_path, data, message):
  path = tmp_path / 'v.txt'
  path.write_bytes(data)
  _refuse(path, message)


def test_sentencepiece_files_that_are_refused(tmp_path):
  path = tmp_path / 'v.model'
  path.write_bytes(b'no model')
  _refuse(path, 'must be a SentencePiece model, but it cannot be parsed')
  path.write_bytes(_sentencepiece_model(_SENTENCEPIECE_PIECES[:2]))
  _refuse(
    path, "end-of-text piece '</s>'; of its 2 pieces 1 are unknown .* 0 end"
  )
  path.write_bytes(b'')
  _refuse(path, 'of its 0 pieces 0 are unknown')
  twice = [*_SENTENCEPIECE_PIECES, ('c', _NORMAL_TYPE)]
  path.write_bytes(_sentencepiece_model(twice))
  _refuse(path, r'cannot be loaded as one \(.*c is already defined')


def test_case_is_settled_by_other_files(tmp_path, model_file):
  _wordpiece().save(tmp_path / 'v')
  for path in (tmp_path / 'v', model_file):
    with pytest.raises(ValueError, match='`lower_case` may be set for a Word'):
      tokenizers.load_tokenizer(path, lower_case=True)


@pytest.mark.parametrize(
  ('change', 'message'),
  [
    ({'schema_version': 2}, 'has schema version 2, but .* reads up to 1'),
    ({'schema_version': None}, 'has no `schema_version`'),
    (
      {'kind': 'bpe'},
      "`kind` of wordpiece or sentencepiece or tokenizer_json, found 'bpe'",
    ),
    ({'size': '15'}, "must state `size` as int, found '15'"),
    ({'lower_case': 1}, 'must state `lower_case` as bool, found 1'),
    ({'padding_id': 3}, 'states `padding_id` 3, but vocab.txt has 0'),
    ({'size': 16}, 'states `size` 16, but vocab.txt has 15'),
    ({'sha256': '0' * 64}, 'must have the sha256 0000000000000000 that'),
  ],
)
def test_metadata_that_is_refused(tmp_path, change, message):
  path = tmp_path / 'v'
  _wordpiece().save(path)
  metadata = json.loads((path / 'tokenizer.json').read_text())
  (path / 'tokenizer.json').write_text(json.dumps(metadata | change))
  _refuse(path, message)


def test_directories_that_are_damaged(tmp_path):
  path = tmp_path / 'v'
  _wordpiece().save(path)
  with (path / 'vocab.txt').open('a') as file:
    file.write('d\n')
  _refuse(path, 'is damaged: vocab.txt must have the sha256')
  (path / 'vocab.txt').unlink()
  _refuse(path, r'must hold vocab\.txt, but does not')
  (path / 'tokenizer.json').write_text('{')
  _refuse(path, 'must be JSON, but cannot be parsed')
  (path / 'tokenizer.json').write_text('[]')
  _refuse(path, 'has no `schema_version`')


def test_berts_vocabulary(shared_data):
  path = shared_data('vocab') / 'bert-base-uncased-vocab.txt'
  tokenizer = tokenizers.load_tokenizer(path)
  assert (tokenizer.size, tokenizer.lower_case) == (30522, True)
  assert tokenizer.padding_id == 0
  assert tokenizer.unknown_id == 100
  assert tokenizer.end_of_text_id == 102
  [ids] = tokenizer.encode_batch(['UNwanted,running unaffable'])
  # Greedy: 'un', '##aff', '##able' are pieces too, but 'una' is longer.
  assert tokenizer.pieces(ids) == [
    *('unwanted', ',', 'running'),
    *('una', '##ffa', '##ble'),
  ]


def test_the_ids_are_those_of_the_slower_reference(shared_data):
  path = shared_data('vocab') / 'bert-base-uncased-vocab.txt'
  file = shared_data('c4_en_sample_a') / 'c4-train.00000-of-00001.json.gz'
  with gzip.open(file) as lines:
    texts = [json.loads(line)['text'].encode() for line in lines][:300]
  for lower_case in (True, False):
    reference = tf_text.BertTokenizer(
      str(path), token_out_type=tf.int32, lower_case=lower_case
    )
    expected = reference.tokenize(texts).merge_dims(1, 2)
    found = tokenizers.load_tokenizer(path, lower_case=lower_case).encode_batch(
      texts
    )
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

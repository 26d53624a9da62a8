"""Vocabularies of Hugging Face's `tokenizers`."""

import functools
import json

import numpy as np
import pytest
import tokenizers as huggingface

from tff_fedfish import files
from tff_fedfish.data import tokenizers
from tff_fedfish.errors import UserError

# Each stands for a byte.
_SIGNS = sorted(huggingface.pre_tokenizers.ByteLevel.alphabet())


def _sign(byte):
  plain = {ord(sign) for sign in _SIGNS if ord(sign) < 256}
  # The other signs follow, in the order of their bytes.
  others = [i for i in range(256) if i not in plain]
  return chr(byte if byte in plain else 256 + others.index(byte))


def _byte_level(end='<|endoftext|>', signs=_SIGNS):
  """256 bytes, one merge and the piece that ends a text."""
  vocabulary = {piece: i for i, piece in enumerate([*signs, 'ab', end])}
  tokenizer = huggingface.Tokenizer(
    huggingface.models.BPE(vocabulary, [('a', 'b')])
  )
  tokenizer.pre_tokenizer = huggingface.pre_tokenizers.ByteLevel(
    add_prefix_space=False
  )
  tokenizer.decoder = huggingface.decoders.ByteLevel()
  tokenizer.add_special_tokens([end])
  return tokenizer


def _loaded(tokenizer, tmp_path):
  """Returns our tokenizer of one that the library saves there."""
  tokenizer.save(str(tmp_path / 'tokenizer.json'))
  return tokenizers.load_tokenizer(tmp_path)


def test_bytes_and_merges(tmp_path):
  tokenizer = _byte_level()
  # They are not of the vocabulary.
  tokenizer.enable_truncation(1)
  tokenizer.enable_padding(length=9)
  tokenizer = _loaded(tokenizer, tmp_path)
  assert (tokenizer.kind, tokenizer.size) == ('tokenizer_json', 258)
  assert tokenizer.end_of_text_id == tokenizer.padding_id == 257
  # It expresses every byte.
  assert tokenizer.unknown_id is None
  found = tokenizer.encode_batch(['abc', b'', 'é', b'a\xffb'])
  assert list(map(len, found)) == [2, 0, 2, 5]
  assert found[0][0] == 256
  assert all(ids.dtype == np.int32 for ids in found)
  assert [tokenizer.decode(ids) for ids in found] == ['abc', '', 'é', 'a�b']
  assert tokenizer.pieces([256, 257]) == ['ab', '<|endoftext|>']


def test_configuration_names_the_end_of_text(tmp_path):
  with pytest.raises(UserError, match='Name it as `eos_token` in tokenizer_c'):
    _loaded(_byte_level(end='<stop>'), tmp_path)
  path = tmp_path / 'tokenizer_config.json'
  for piece in ('<stop>', {'content': '<stop>', 'lstrip': False}):
    path.write_text(json.dumps({'eos_token': piece}))
    tokenizer = tokenizers.load_tokenizer(tmp_path)
    assert tokenizer.end_of_text_id == 257
  # Kept by a run, which has no such file.
  tokenizer.save(tmp_path / 'saved')
  saved = tokenizers.load_tokenizer(tmp_path / 'saved')
  assert (saved.end_of_text_id, saved.unknown_id) == (257, None)
  assert saved.vocabulary == tokenizer.vocabulary
  for piece in ({'content': [1]}, {}, True, 257, '\ud800'):
    path.write_text(json.dumps({'eos_token': piece}))
    with pytest.raises(UserError, match="config.json' must hold a JSON object"):
      tokenizers.load_tokenizer(tmp_path)


def test_unknown_pieces(tmp_path):
  tokenizer = huggingface.Tokenizer(
    huggingface.models.WordPiece(
      {'[UNK]': 0, 'a': 1, '[SEP]': 2}, unk_token='[UNK]'
    )
  )
  tokenizer.pre_tokenizer = huggingface.pre_tokenizers.Whitespace()
  loaded = _loaded(tokenizer, tmp_path)
  assert (loaded.unknown_id, loaded.end_of_text_id) == (0, 2)
  assert [list(ids) for ids in loaded.encode_batch(['a é'])] == [[1, 0]]
  pieces = [('</s>', 0.0), ('<unk>', 0.0), ('a', -1.0)]
  unigram = huggingface.models.Unigram(pieces, 1)
  loaded = _loaded(huggingface.Tokenizer(unigram), tmp_path)
  assert loaded.unknown_id == 1
  # Only unigrams have an id of it.
  value = json.loads(_byte_level().to_str())
  value['model']['unk_id'] = 'x'
  (tmp_path / 'tokenizer.json').write_text(json.dumps(value))
  assert tokenizers.load_tokenizer(tmp_path).unknown_id is None


_BYTE_PIECES = ['</s>', *(f'<0x{byte:02X}>' for byte in range(256))]
_byte_pieces = functools.partial(
  huggingface.models.BPE,
  {piece: i for i, piece in enumerate(_BYTE_PIECES)},
  [],
  unk_token='<unk>',
)
_TINY = {'a': 0, '</s>': 1}


def _named_unknown(tokenizer, **parts):
  tokenizer.model.unk_token = '<unk>'
  for name, part in parts.items():
    setattr(tokenizer, name, part)
  return tokenizer


# Bytes that UTF-8 does not use.
_UNUSED = map(_sign, (0xC0, 0xC1, *range(0xF5, 0x100)))


@pytest.mark.parametrize(
  ('tokenizer', 'num_tokens'),
  [
    (_named_unknown(_byte_level()), 2),
    (_named_unknown(_byte_level(signs=sorted({*_SIGNS} - {*_UNUSED}))), 2),
    (huggingface.Tokenizer(_byte_pieces(byte_fallback=True)), 2),
  ],
)
def test_all_bytes_need_no_unknown_piece(tmp_path, tokenizer, num_tokens):
  [ids] = _loaded(tokenizer, tmp_path).encode_batch(['é'])
  assert len(ids) == num_tokens


@pytest.mark.parametrize(
  'tokenizer',
  [
    *map(
      huggingface.Tokenizer,
      (
        huggingface.models.WordPiece(_TINY, unk_token='<unk>'),
        huggingface.models.Unigram([('a', 0.0), ('</s>', 0.0)], None),
        _byte_pieces(byte_fallback=False),
      ),
    ),
    # A byte that is missing.
    *(
      _named_unknown(_byte_level(signs=[s for s in _SIGNS if s != _sign(byte)]))
      for byte in (0, 0xF4)
    ),
    # A model that is not given the bytes.
    _named_unknown(
      _byte_level(), pre_tokenizer=huggingface.pre_tokenizers.Whitespace()
    ),
  ],
)
def test_vocabularies_that_do_not_encode_every_text(tmp_path, tokenizer):
  # Models do not find a piece that is only added to them.
  tokenizer.add_special_tokens(['<unk>'])
  with pytest.raises(
    UserError,
    match="tokenizer.json' must encode every text, but does not .* Use a "
    'vocabulary whose `unk_token` or `unk_id` is a piece',
  ) as raised:
    _loaded(tokenizer, tmp_path)
  assert '\n' not in str(raised.value)


def test_saved_vocabularies_without_unknown_piece(tmp_path):
  """Runs of earlier versions knew all words of their corpora."""
  path = tmp_path / 'huggingface.json'
  model = huggingface.models.WordLevel(_TINY, unk_token='<unk>')
  huggingface.Tokenizer(model).save(str(path))
  metadata = {
    'schema_version': 1,
    'kind': 'tokenizer_json',
    'size': 2,
    'lower_case': False,
    'end_of_text_id': 1,
    'padding_id': 1,
    'unknown_id': None,
    'sha256': files.sha256_of(path),
  }
  (tmp_path / 'tokenizer.json').write_text(json.dumps(metadata))
  tokenizer = tokenizers.load_tokenizer(tmp_path)
  assert [list(ids) for ids in tokenizer.encode_batch(['a'])] == [[0]]
  with pytest.raises(UserError, match="huggingface.json' must encode every"):
    tokenizer.encode_batch(['a', 'b'])


_STEP = huggingface.decoders.ByteLevel()


class TestNumBytes:
  """A part of a character is decoded as another character."""

  @pytest.mark.parametrize(
    'decoder',
    [
      _STEP,
      huggingface.decoders.Sequence([huggingface.decoders.Sequence([_STEP])]),
    ],
  )
  def test_bytes_of_byte_level_pieces(self, tmp_path, decoder):
    tokenizer = _byte_level()
    tokenizer.decoder = decoder
    tokenizer = _loaded(tokenizer, tmp_path)
    [ids] = tokenizer.encode_batch(['é ab'])
    # Two bytes of é, the space, and 'ab'; the end of a text has none.
    sizes = [tokenizer.num_bytes([token_id]) for token_id in [*ids, 257]]
    assert sizes == [1, 1, 1, 2, 0]

  def test_added_pieces_are_texts(self, tmp_path):
    tokenizer = _byte_level()
    # The first has a sign that stands for no byte; each letter of the second
    # is also the sign of a byte.
    tokenizer.add_tokens(['\u20acx', 'na\xefve'])
    tokenizer = _loaded(tokenizer, tmp_path)
    [ids] = tokenizer.encode_batch(['é\u20acxna\xefvey'])
    sizes = [tokenizer.num_bytes([token_id]) for token_id in ids]
    assert sizes == [1, 1, 3 + 1, 4 + 2, 1]

  def test_byte_pieces(self, tmp_path):
    pieces = ['<unk>', 'a', *_BYTE_PIECES]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    tokenizer = huggingface.Tokenizer(
      huggingface.models.BPE(
        vocabulary, [], unk_token='<unk>', byte_fallback=True
      )
    )
    tokenizer.decoder = huggingface.decoders.ByteFallback()
    tokenizer = _loaded(tokenizer, tmp_path)
    [ids] = tokenizer.encode_batch(['aéa'])
    assert tokenizer.pieces(ids) == ['a', '<0xC3>', '<0xA9>', 'a']
    assert [tokenizer.num_bytes([token_id]) for token_id in ids] == [1] * 4


@pytest.mark.parametrize(
  ('data', 'words'),
  [
    ({'model': {'type': 'Magic'}}, r'be loaded as one \('),
    (
      {
        'model': {
          'type': 'WordPiece',
          'vocab': {'[UNK]': 0, '[SEP]': 7},
          'unk_token': '[UNK]',
          'continuing_subword_prefix': '##',
          'max_input_chars_per_word': 9,
        }
      },
      'their number less 1, but has 2 up to 7',
    ),
  ],
)
def test_files_that_are_refused(tmp_path, data, words):
  (tmp_path / 'tokenizer.json').write_text(json.dumps(data))
  with pytest.raises(UserError, match=words):
    tokenizers.load_tokenizer(tmp_path)

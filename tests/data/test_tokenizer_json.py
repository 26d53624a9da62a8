"""Vocabularies of Hugging Face's `tokenizers`."""

import functools
import json

import numpy as np
import pytest
import tokenizers as huggingface

from tff_fedfish import files
from tff_fedfish.data import scored_bytes, tokenizer_json, tokenizers
from tff_fedfish.data.sequences import Sequences
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


@pytest.fixture(name='directory')
def _directory(tmp_path):
  _byte_level().save(str(tmp_path / 'tokenizer.json'))
  return tmp_path


def test_bytes_and_merges(directory):
  tokenizer = tokenizers.load_tokenizer(directory)
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


def test_a_saved_vocabulary_comes_back(directory):
  first = tokenizers.load_tokenizer(directory)
  first.save(directory / 'saved')
  second = tokenizers.load_tokenizer(directory / 'saved')
  for name in ('kind', 'size', 'end_of_text_id', 'unknown_id', 'vocabulary'):
    assert getattr(second, name) == getattr(first, name)


def test_configuration_names_the_end_of_text(tmp_path):
  _byte_level(end='<stop>').save(str(tmp_path / 'tokenizer.json'))
  with pytest.raises(UserError, match='Name it as `eos_token` in tokenizer_c'):
    tokenizers.load_tokenizer(tmp_path)
  path = tmp_path / 'tokenizer_config.json'
  for piece in ('<stop>', {'content': '<stop>', 'lstrip': False}):
    path.write_text(json.dumps({'eos_token': piece}))
    tokenizer = tokenizers.load_tokenizer(tmp_path)
    assert tokenizer.end_of_text_id == 257
  # Kept by a run, which has no such file.
  tokenizer.save(tmp_path / 'saved')
  assert tokenizers.load_tokenizer(tmp_path / 'saved').end_of_text_id == 257
  for text in ('{', '["<stop>"]'):
    path.write_text(text)
    with pytest.raises(UserError, match="config.json' must be a JSON object"):
      tokenizers.load_tokenizer(tmp_path)
  for wrong in (
    *(['<stop>'], {'content': [1]}, {}, True, 1.5, 257),
    *('', {'content': ''}, '\ud800', '<stop>\udfff'),
  ):
    path.write_text(json.dumps({'eos_token': wrong}))
    with pytest.raises(UserError) as error:
      tokenizers.load_tokenizer(tmp_path)
    assert f'a piece as `eos_token`, found {wrong!r}. W' in str(error.value)


def test_a_file_is_parsed_once(directory, monkeypatch):
  parse, parsed = files.parse_json, []
  monkeypatch.setattr(
    files, 'parse_json', lambda data: parsed.append(data) or parse(data)
  )
  data = (directory / 'tokenizer.json').read_bytes()
  first = tokenizers.load_tokenizer(directory)
  assert parsed == [data]
  first.save(directory / 'saved')
  parsed.clear()
  tokenizers.load_tokenizer(directory / 'saved')
  assert parsed.count(data) == 1


def test_unknown_piece(tmp_path):
  vocabulary = {'[UNK]': 0, 'a': 1, '[SEP]': 2}
  tokenizer = huggingface.Tokenizer(
    huggingface.models.WordPiece(vocabulary, unk_token='[UNK]')
  )
  tokenizer.pre_tokenizer = huggingface.pre_tokenizers.Whitespace()
  loaded = _loaded(tokenizer, tmp_path)
  assert (loaded.unknown_id, loaded.end_of_text_id) == (0, 2)
  assert [list(ids) for ids in loaded.encode_batch(['a é'])] == [[1, 0]]


_WITHOUT_UNKNOWN = [
  huggingface.models.WordPiece({'a': 0, '</s>': 1}, unk_token='<unk>'),
  huggingface.models.WordLevel({'a': 0, '</s>': 1}, unk_token='<unk>'),
  huggingface.models.BPE({'a': 0, '</s>': 1}, [], unk_token='<unk>'),
  huggingface.models.Unigram([('a', 0.0), ('</s>', 0.0)], None),
]


@pytest.mark.parametrize('model', _WITHOUT_UNKNOWN)
# All but ASCII, and next to nothing.
@pytest.mark.parametrize('removed', ['[^ -~]', 'x'])
def test_unknown_piece_that_is_missing(tmp_path, model, removed):
  tokenizer = huggingface.Tokenizer(model)
  tokenizer.normalizer = huggingface.normalizers.Replace(
    huggingface.Regex(removed), ''
  )
  # Models do not find pieces that are added to them.
  tokenizer.add_special_tokens(['<unk>'])
  tokenizer.save(str(tmp_path / 'tokenizer.json'))
  with pytest.raises(UserError) as error:
    tokenizers.load_tokenizer(tmp_path)
  found = "(`unk_token` is '<unk>', which is no piece)"
  remedy = '`unk_token` is the name'
  if isinstance(model, huggingface.models.Unigram):
    found = '(Encountered an unknown token but `unk_id` is missing)'
    remedy = '`unk_id` is the number'
  assert (
    f"tokenizer.json' must encode every text, but does not {found}. Use a "
    f'vocabulary whose {remedy} of a piece in its `model.vocab`.'
  ) in str(error.value)
  # The library does not encode such texts.
  with pytest.raises(Exception, match='(?i)unk'):
    tokenizer.encode('bé')


@pytest.mark.parametrize('model', _WITHOUT_UNKNOWN)
def test_saved_vocabularies_without_unknown_piece(tmp_path, model):
  """Runs of earlier versions knew all words of their corpora."""
  path = tmp_path / 'huggingface.json'
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
  # The parentheses hold the library's reason.
  words = (
    r"huggingface.json' must encode every text, but does not \(.*(?i:unk).*\)"
    r'\. Use a vocabulary whose `unk_'
  )
  with pytest.raises(UserError, match=words):
    tokenizer.encode_batch(['a', 'b'])


def test_all_bytes_need_no_unknown_piece(tmp_path):
  tokenizer = _byte_level()
  tokenizer.model.unk_token = '<unk>'
  loaded = _loaded(tokenizer, tmp_path)
  assert len(loaded.encode_batch(['é'])[0]) == 2
  # Not used by UTF-8.
  missing = map(_sign, (0xC0, 0xC1, *range(0xF5, 0x100)))
  tokenizer = _byte_level(signs=sorted({*_SIGNS}.difference(missing)))
  tokenizer.model.unk_token = '<unk>'
  loaded = _loaded(tokenizer, tmp_path)
  [ids] = loaded.encode_batch(['\U0010ffff'])
  assert loaded.pieces(ids) == list(map(_sign, (0xF4, 0x8F, 0xBF, 0xBF)))


def _refuse(tokenizer, tmp_path):
  with pytest.raises(UserError, match='must encode every text, but does not'):
    _loaded(tokenizer, tmp_path)


@pytest.mark.parametrize('byte', [0, 0x41, 0xAD, 0xC2, 0xED, 0xF0, 0xF4])
def test_a_byte_that_is_missing(tmp_path, byte):
  tokenizer = _byte_level(signs=[s for s in _SIGNS if s != _sign(byte)])
  tokenizer.model.unk_token = '<unk>'
  _refuse(tokenizer, tmp_path)


_ALL_BYTES = {piece: i for i, piece in enumerate([*_SIGNS, '</s>'])}


@pytest.mark.parametrize(
  'model',
  [
    huggingface.models.WordLevel(_ALL_BYTES, unk_token='<unk>'),
    huggingface.models.WordPiece(_ALL_BYTES, unk_token='<unk>'),
    *(
      huggingface.models.BPE(_ALL_BYTES, [], unk_token='<unk>', **affix)
      for affix in (
        {'end_of_word_suffix': '</w>'},
        {'continuing_subword_prefix': '##'},
      )
    ),
  ],
)
def test_models_that_do_not_find_the_bytes(tmp_path, model):
  tokenizer = _byte_level()
  tokenizer.model = model
  _refuse(tokenizer, tmp_path)


def test_bytes_that_are_only_decoded(tmp_path):
  tokenizer = _byte_level()
  tokenizer.model.unk_token = '<unk>'
  tokenizer.pre_tokenizer = huggingface.pre_tokenizers.Whitespace()
  _refuse(tokenizer, tmp_path)


def test_byte_pieces_that_are_only_added(tmp_path):
  tokenizer = huggingface.Tokenizer(
    huggingface.models.BPE(
      {'</s>': 0}, [], unk_token='<unk>', byte_fallback=True
    )
  )
  tokenizer.add_tokens([f'<0x{byte:02X}>' for byte in range(256)])
  _refuse(tokenizer, tmp_path)


def test_byte_pieces_need_no_unknown_piece(tmp_path):
  pieces = ['</s>', *(f'<0x{byte:02X}>' for byte in range(256))]
  vocabulary = {piece: i for i, piece in enumerate(pieces)}
  bpe = functools.partial(
    huggingface.models.BPE, vocabulary, [], unk_token='<unk>'
  )
  # Bytes C3 and A9, after the end of a text.
  huggingface.Tokenizer(bpe(byte_fallback=True)).save(
    str(tmp_path / 'tokenizer.json')
  )
  [ids] = tokenizers.load_tokenizer(tmp_path).encode_batch(['é'])
  assert ids.tolist() == [1 + 0xC3, 1 + 0xA9]
  for model in (
    bpe(byte_fallback=False),
    # It fails before it falls back.
    huggingface.models.Unigram([(p, 0.0) for p in pieces], None, True),
  ):
    _refuse(huggingface.Tokenizer(model), tmp_path)


def test_only_unigrams_have_an_id_of_the_unknown_piece(tmp_path):
  value = json.loads(_byte_level().to_str())
  value['model']['unk_id'] = 'x'
  (tmp_path / 'tokenizer.json').write_text(json.dumps(value))
  tokenizer = tokenizers.load_tokenizer(tmp_path)
  assert tokenizer.unknown_id is None
  tokenizer.save(tmp_path / 'saved')
  assert tokenizers.load_tokenizer(tmp_path / 'saved').unknown_id is None


def test_unknown_unigram(tmp_path):
  pieces = [('</s>', 0.0), ('<unk>', 0.0), ('a', -1.0)]
  huggingface.Tokenizer(huggingface.models.Unigram(pieces, 1)).save(
    str(tmp_path / 'tokenizer.json')
  )
  assert tokenizers.load_tokenizer(tmp_path).unknown_id == 1


def test_truncation_and_padding_are_not_of_the_vocabulary(tmp_path):
  tokenizer = _byte_level()
  tokenizer.enable_truncation(1)
  tokenizer.enable_padding(length=4)
  found = _loaded(tokenizer, tmp_path).encode_batch(['abc'])
  assert list(map(len, found)) == [2]


def test_scored_bytes_of_pieces(directory):
  tokenizer = tokenizers.load_tokenizer(directory)
  [ids] = tokenizer.encode_batch(['abé'])
  rows = Sequences(
    tokens=np.array([[*ids, 257]]), num_targets=np.array([3], np.int32)
  )
  # 'ab' is not a target, 'é' has 2 bytes, the end of a text none.
  assert scored_bytes.num_scored_bytes(rows, tokenizer) == 2


def test_scored_bytes_of_parts_of_characters(tmp_path):
  tokenizer = _byte_level()
  # Not bytes, but a text, in which is a sign that stands for no byte.
  tokenizer.add_tokens(['\u20acx'])
  tokenizer = _loaded(tokenizer, tmp_path)
  [ids] = tokenizer.encode_batch(['é\u20acxü'])
  # Two bytes of é, the added text, two of ü.
  assert len(ids) == 5
  rows = Sequences(
    tokens=np.array([ids[:4], [*ids[3:], 257, 257]]),
    num_targets=np.array([3, 1], np.int32),
  )
  # The second byte of é, 3 + 1 of the added text, the first of ü; and its
  # second.
  assert scored_bytes.num_scored_bytes(rows, tokenizer) == 1 + 4 + 1 + 1


_STEP = huggingface.decoders.ByteLevel()


@pytest.mark.parametrize(
  'decoder',
  [
    huggingface.decoders.Sequence([_STEP]),
    huggingface.decoders.Sequence(
      [_STEP, huggingface.decoders.Strip(' ', 1, 0)]
    ),
    huggingface.decoders.Sequence([huggingface.decoders.Sequence([_STEP])]),
  ],
)
def test_scored_bytes_of_a_step_of_a_decoder(tmp_path, decoder):
  tokenizer = _byte_level()
  tokenizer.decoder = decoder
  tokenizer = _loaded(tokenizer, tmp_path)
  [ids] = tokenizer.encode_batch(['é a'])
  assert len(ids) == 4
  rows = Sequences(
    tokens=np.array([[*ids[:2], 257], ids[1:]]),
    num_targets=np.array([1, 2], np.int32),
  )
  # The second byte of é; then the space and a. The first byte by itself is
  # decoded as 3 bytes.
  assert scored_bytes.num_scored_bytes(rows, tokenizer) == 1 + 2


def test_scored_bytes_of_added_pieces_of_signs(tmp_path):
  tokenizer = _byte_level()
  # Each of its letters is also the sign of a byte.
  tokenizer.add_tokens(['na\xefve'])
  tokenizer = _loaded(tokenizer, tmp_path)
  [ids] = tokenizer.encode_batch(['xna\xefvey'])
  assert len(ids) == 3
  rows = Sequences(tokens=np.array([ids]), num_targets=np.array([2], np.int32))
  # Four letters of a byte, one of two, and y.
  assert scored_bytes.num_scored_bytes(rows, tokenizer) == 4 + 2 + 1


def test_scored_bytes_of_byte_pieces(tmp_path):
  pieces = ['<unk>', '</s>', 'a', *(f'<0x{byte:02X}>' for byte in range(256))]
  tokenizer = huggingface.Tokenizer(
    huggingface.models.BPE(
      {piece: i for i, piece in enumerate(pieces)},
      [],
      unk_token='<unk>',
      byte_fallback=True,
    )
  )
  tokenizer.decoder = huggingface.decoders.ByteFallback()
  tokenizer = _loaded(tokenizer, tmp_path)
  [ids] = tokenizer.encode_batch(['aéa'])
  assert tokenizer.pieces(ids) == ['a', '<0xC3>', '<0xA9>', 'a']
  rows = Sequences(
    tokens=np.array([ids[:3], ids[1:]]), num_targets=np.array([2, 2], np.int32)
  )
  # é; its second byte and a. The first by itself is decoded as 3 bytes.
  assert scored_bytes.num_scored_bytes(rows, tokenizer) == 2 + 2


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


def test_a_file_that_only_the_library_reads(directory):
  data = (directory / 'tokenizer.json').read_bytes()
  with pytest.raises(UserError, match='it is no JSON object with a `model`'):
    tokenizer_json.TokenizerJsonCodec(data, None, 'v')

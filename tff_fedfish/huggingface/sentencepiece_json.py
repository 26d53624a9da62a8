"""SentencePiece models as a `tokenizer.json`."""

from typing import Any

from google.protobuf.unknown_fields import UnknownFieldSet
from tokenizers import Regex, Tokenizer, decoders, models, normalizers

from tff_fedfish.data import sentencepiece
from tff_fedfish.errors import UserError

_UNIGRAM, _BPE = 1, 2
_NORMAL, _UNKNOWN = 1, 2
# With pieces of control and of bytes.
_KINDS = {_NORMAL, _UNKNOWN, 3, 6}
_WHITESPACE_AS_SUFFIX = 24
# SentencePiece's sign for a space.
_SPACE = '▁'


def build(data: bytes) -> Tokenizer:
  """Returns a tokenizer that gives the ids of a `SentencePieceTokenizer`.

  Args:
    data: The bytes of the `.model` file.

  Raises:
    UserError: If the model is neither of unigrams nor of byte pairs, has pieces
      that users defined, or puts spaces at the end of words.
  """
  model = sentencepiece.model_class().FromString(data)
  kinds = {piece.type or _NORMAL for piece in model.pieces}
  kind = model.trainer_spec.model_type or _UNIGRAM
  has_suffixes = any(
    field.field_number == _WHITESPACE_AS_SUFFIX and field.data
    for field in UnknownFieldSet(model.trainer_spec)
  )
  if kind not in (_UNIGRAM, _BPE) or kinds - _KINDS or has_suffixes:
    raise UserError(
      "`--format` 'huggingface' needs a SentencePiece model of unigrams or of "
      'byte pairs without pieces that users defined or that are not used and '
      'without `treat_whitespace_as_suffix`; the vocabulary is of model type '
      f'{kind} with pieces of the types {", ".join(map(str, sorted(kinds)))}, '
      f'its `treat_whitespace_as_suffix` is {has_suffixes}. Export it as '
      'safetensors.'
    )
  tokenizer = Tokenizer((_unigram if kind == _UNIGRAM else _bpe)(model))
  tokenizer.normalizer = _normalizer(model.normalizer_spec)
  tokenizer.decoder = _decoder(model.normalizer_spec)
  return tokenizer


def _unigram(model: Any) -> models.Unigram:
  unknown = [
    i for i, piece in enumerate(model.pieces) if piece.type == _UNKNOWN
  ]
  return models.Unigram(
    [(piece.piece, piece.score) for piece in model.pieces],
    unknown[0],
    bool(model.trainer_spec.byte_fallback),
  )


def _bpe(model: Any) -> models.BPE:
  """Finds the merges: SentencePiece keeps only the pieces that they make."""
  ids = {piece.piece: i for i, piece in enumerate(model.pieces)}
  merged = {
    piece.piece: piece.score
    for piece in model.pieces
    if (piece.type or _NORMAL) == _NORMAL
  }
  merges = []
  for whole, score in merged.items():
    pairs = [
      (whole[:i], whole[i:])
      for i in range(1, len(whole))
      if whole[:i] in merged and whole[i:] in merged
    ]
    pairs.sort(key=lambda pair: (ids[pair[0]], ids[pair[1]]))
    merges += [(-score, pair) for pair in pairs]
  merges.sort(key=lambda merge: merge[0])
  unknown = next(p.piece for p in model.pieces if p.type == _UNKNOWN)
  return models.BPE(
    ids,
    [pair for _, pair in merges],
    unk_token=unknown,
    fuse_unk=True,
    byte_fallback=bool(model.trainer_spec.byte_fallback),
  )


def _is_set(spec: Any, name: str) -> bool:
  # All flags are on unless the model says otherwise.
  return [*getattr(spec, name)] != [0]


def _normalizer(spec: Any) -> normalizers.Normalizer:
  steps = []
  is_escaped = _is_set(spec, 'escape_whitespaces')
  if spec.precompiled_charsmap:
    steps.append(normalizers.Precompiled(spec.precompiled_charsmap))
  if _is_set(spec, 'remove_extra_whitespaces'):
    last = f'[ {_SPACE}]' if is_escaped else ' '
    steps += [
      # No other white space.
      normalizers.Replace(Regex(rf'\A +|{last}+\z'), ''),
      normalizers.Replace(Regex(' {2,}'), ' '),
    ]
  if _is_set(spec, 'add_dummy_prefix'):
    steps.append(normalizers.Prepend(' '))
  if is_escaped:
    steps.append(normalizers.Replace(' ', _SPACE))
  return normalizers.Sequence(steps)


def _decoder(spec: Any) -> decoders.Decoder:
  """Removes the signs before a text that the flags say are none of its own.

  With `remove_extra_whitespaces` that is one sign of each of the first pieces,
  with `add_dummy_prefix` alone one in all. Older versions of SentencePiece,
  such as that of tensorflow-text, do the former in both cases.
  """
  steps = [
    # The first sign of a piece stays: it may have to go.
    decoders.Replace(Regex(rf'(?<!\A){_SPACE}'), ' '),
    decoders.ByteFallback(),
    decoders.Fuse(),
  ]
  if _is_set(spec, 'remove_extra_whitespaces'):
    steps.append(decoders.Replace(Regex(rf'\A{_SPACE}+'), ''))
  elif _is_set(spec, 'add_dummy_prefix'):
    steps.append(decoders.Replace(Regex(rf'\A{_SPACE}'), ''))
  return decoders.Sequence([*steps, decoders.Replace(_SPACE, ' ')])

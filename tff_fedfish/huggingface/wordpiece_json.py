"""WordPiece vocabularies as a `tokenizer.json`."""

from collections.abc import Sequence

from tokenizers import (
  Regex,
  Tokenizer,
  decoders,
  models,
  normalizers,
  pre_tokenizers,
)

from tff_fedfish.data.wordpiece import MAX_WORD_BYTES, UNKNOWN_PIECE

# Characters that stand for nothing by themselves: Default_Ignorable_Code_Point
# of Unicode, which NFKC_Casefold removes.
_IGNORABLE = (
  r'[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f'
  r'\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8'
  r'\x{1bca0}-\x{1bca3}\x{1d173}-\x{1d17a}\x{e0000}-\x{e0fff}]'
)
# Ideographs, each of which is a word, as in BERT.
_IDEOGRAPHS = (
  r'\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\x{20000}-\x{2a6df}'
  r'\x{2a700}-\x{2ceaf}\x{2f800}-\x{2fa1f}'
)
_ASCII_SIGNS = r'\x21-\x2f\x3a-\x40\x5b-\x60\x7b-\x7e'


def build(pieces: Sequence[str], *, lower_case: bool) -> Tokenizer:
  """Returns a tokenizer that gives the ids of a `WordPieceTokenizer`.

  They differ in a word of more than 100 bytes but at most 100 characters, which
  is unknown there and divided here; in letters that case folding does not turn
  into their lower case, such as those of Cherokee; and in signs that a later
  version of Unicode added. `lower_case` also strips texts of accents.
  """
  tokenizer = Tokenizer(
    models.WordPiece(
      {piece: i for i, piece in enumerate(pieces)},
      unk_token=UNKNOWN_PIECE,
      max_input_chars_per_word=MAX_WORD_BYTES,
    )
  )
  if lower_case:
    tokenizer.normalizer = normalizers.Sequence(
      [
        normalizers.Replace(Regex(_IGNORABLE), ''),
        normalizers.NFKC(),
        # What case folding does beyond lower-casing.
        normalizers.Replace('ß', 'ss'),
        normalizers.Replace('ẞ', 'ss'),
        normalizers.Lowercase(),
        normalizers.Replace('ς', 'σ'),
        normalizers.NFD(),
        normalizers.Replace('\N{COMBINING GREEK YPOGEGRAMMENI}', 'ι'),
        normalizers.Replace(Regex(r'\p{Mn}'), ''),
      ]
    )
  tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
    [
      pre_tokenizers.Split(Regex(r'[\s\p{Cc}\p{Cf}]+'), 'removed'),
      pre_tokenizers.Split(
        Regex(rf'[{_ASCII_SIGNS}\p{{P}}{_IDEOGRAPHS}]'), 'isolated'
      ),
    ]
  )
  tokenizer.decoder = decoders.WordPiece(cleanup=False)
  return tokenizer

"""Configs and vocabularies that a run refuses, and words of what is said."""

from refused_inputs import (
  Case,
  changed,
  damaged,
  edited,
  from_settings,
  path_in,
  removed,
)

from tff_fedfish.data import sentencepiece


def _sentencepiece_model(*pieces):
  """Returns a model file of (piece, type)."""
  model = sentencepiece.model_class()()
  for piece, kind in pieces:
    model.pieces.add(piece=piece, type=kind)
  return model.SerializeToString()


_NORMAL, _UNKNOWN, _CONTROL = 1, 2, 3
_SPECIAL = b'[PAD]\n[UNK]\n[END]\n'


def _vocabulary(words, name, content):
  return Case(
    words,
    lambda place: place.arguments(
      data__vocabulary=place.file(name, content), model__vocabulary_size=None
    ),
  )


def _unreadable_vocabulary(place):
  link = place.directory / 'v.txt'
  # A file that nobody can read from its beginning, not even root.
  link.symlink_to('/proc/self/mem')
  return place.arguments(data__vocabulary=link)


_METADATA = 'vocabulary/tokenizer.json'


def _make_unreadable(place):
  path = path_in(place, _METADATA)
  path.unlink()
  path.symlink_to('/proc/self/mem')


_PIECES = 'vocabulary/vocab.txt'
CASES = (
  from_settings(
    "fisher_reduction` must be 'sum' with fisher_estimator 'second_moment'",
    algorithm__fisher_estimator='second_moment',
    algorithm__fisher_reduction='mean',
  ),
  from_settings(
    'groups of',
    # Nor is the corpus tokenized.
    num_errors=3,
    partition__scheme='merge',
    partition__num_clients=50,
    cohorts__cohort_size=60,
  ),
  from_settings(
    "`--config.partition.scheme` 'merge' must be given the tokens of a corpus",
    partition__scheme='merge',
    partition__num_clients=2,
    cohorts__cohort_size=2,
  ),
  from_settings(
    'none is held out. Raise', client_splits__held_out_fraction=1e-09
  ),
  from_settings(
    'has the 4 sequences that an evaluation needs', data__sequence_length=2000
  ),
  from_settings(
    'must be local, auto or the HOST:PORT of a running Ray cluster',
    engine__kind='ray',
    engine__ray_address='nowhere',
  ),
  from_settings(
    "nowhere/v.txt' does not exist. Name one (of `train`: `--config.data.voc",
    data__vocabulary='nowhere/v.txt',
  ),
  # Vocabularies that are files.
  _vocabulary('is neither. Name one', 'v.pdf', b''),
  _vocabulary('byte 6 is not UTF-8', 'v.txt', b'[PAD]\n\xff\n'),
  _vocabulary('line 2 is empty', 'v.txt', b'[PAD]\n\nb\n'),
  _vocabulary('must hold the piece [UNK]', 'v.txt', b'[PAD]\n[END]\na\n'),
  _vocabulary('no tokenizer can be built from it', 'v.txt', _SPECIAL),
  _vocabulary(
    'must be a SentencePiece model, but it cannot be parsed', 'v.model', b'no'
  ),
  _vocabulary("end-of-text piece '</s>'; of its 0 pieces", 'v.model', b''),
  _vocabulary(
    'cannot be loaded as one',
    'v.model',
    _sentencepiece_model(
      ('<unk>', _UNKNOWN), ('</s>', _CONTROL), *[('c', _NORMAL)] * 2
    ),
  ),
  Case('must hold a vocabulary, but cannot be read', _unreadable_vocabulary),
  # Vocabularies that are directories.
  edited('must hold a vocabulary', _METADATA, schema_version=None),
  edited('found 99. Update fedfish', _METADATA, schema_version=99),
  edited('(`lower_case` must be', _METADATA, lower_case=1),
  edited("its `kind` is 'bpe'", _METADATA, kind='bpe'),
  removed('No such file or directory', _PIECES),
  changed("vocab.txt' must have the sha256", _PIECES, b'a'),
  changed('must hold a vocabulary', _METADATA, b'{'),
  damaged("tokenizer.json' must hold a vocabulary, but", _make_unreadable),
)

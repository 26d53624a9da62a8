"""Inputs that a run refuses, and words of what is said: configs, text, runs.

Images are in `refused_images`.
"""

import contextlib
import functools
import hashlib
import json
import pathlib
import re
import shutil
from collections.abc import Callable, Iterator
from typing import NamedTuple

import damaged_corpora
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import small_runs

from tff_fedfish.data import records, sentencepiece
from tff_fedfish.data.corpus_index import INDEX_SCHEMA
from tff_fedfish.training import run_directory, run_inputs


class Place:
  """Where one case prepares its input; copies are made when first asked for.

  Attributes:
    directory: An empty directory.
    workdir: What the run is given as `--workdir`.
    stack: Ends when the dry run has ended.
  """

  def __init__(self, directory, corpus, vocabulary, run, stack):
    self.directory = self.workdir = directory
    self.workdir = directory / 'new'
    self.stack: contextlib.ExitStack = stack
    self._sources = dict(corpus=corpus, vocabulary=vocabulary, run=run)

  @functools.cached_property
  def corpus(self) -> pathlib.Path:
    """A grouped corpus of 12 clients."""
    return self._copy('corpus')

  @functools.cached_property
  def vocabulary(self) -> pathlib.Path:
    """A vocabulary of 256 pieces."""
    return self._copy('vocabulary')

  @functools.cached_property
  def run(self) -> pathlib.Path:
    """A run of 4 rounds of which only the last checkpoint is left."""
    self.workdir = self._copy('run')
    for number in range(4):
      shutil.rmtree(self.workdir / f'checkpoints/round_{number:08d}')
    return self.workdir

  @property
  def checkpoint(self) -> pathlib.Path:
    """The run's only checkpoint."""
    return self.run / 'checkpoints/round_00000004'

  def file(self, name: str, content: bytes | str = b'') -> pathlib.Path:
    """Writes a file."""
    path = self.directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path

  def arguments(self, *, config: object = small_runs.CONFIG, **settings):
    """Returns those of a run on the corpus and vocabulary, damaged or not."""
    inputs = [
      self.__dict__.get(name, self._sources[name])
      for name in ('corpus', 'vocabulary')
    ]
    # The run can go on; without one it does not matter.
    settings = {'training__num_rounds': 5} | settings
    return ['--config', str(config), *small_runs.overrides(*inputs, **settings)]

  def _copy(self, name):
    return shutil.copytree(self._sources[name], self.directory / name)


class Case(NamedTuple):
  """An input that is refused."""

  words: str
  """Part of the line that says so."""
  prepare: Callable[[Place], list[str]]
  """Makes it; returns the arguments of `fedfish train`."""
  num_errors: int = 1


def cases() -> Iterator[Case]:
  """Yields all of this module."""
  for words, settings in _SETTINGS.items():
    yield Case(words, lambda place, s=settings: place.arguments(**s))
  yield Case(
    'The model has 300 token ids',
    lambda place: place.arguments(
      cohorts__cohort_size=50, model__vocabulary_size=300
    ),
    num_errors=2,
  )
  yield Case(
    "unrecognized argument 'fast'", lambda place: [*place.arguments(), 'fast']
  )
  for words, text in _CONFIG_FILES.items():
    yield Case(
      words, lambda place, t=text: place.arguments(config=place.file('c.py', t))
    )
  for words, (edited, change) in _EDITS.items():
    yield Case(words, functools.partial(_edit, edited=edited, change=change))
  for words, (name, content) in _VOCABULARIES.items():
    yield Case(
      words,
      lambda place, n=name, c=content: place.arguments(
        data__vocabulary=place.file(n, c)
      ),
    )
  for words, damage in _DAMAGES:
    yield Case(words, functools.partial(_damaged, damage=damage))
  yield Case('cannot be read (Input/output error)', _unreadable_vocabulary)
  yield Case(
    'has done 4 rounds',
    lambda place: place.run and place.arguments(training__num_rounds=2),
  )


_SETTINGS = {
  'which squares no gradients of batches': dict(
    algorithm__fisher_estimator='example_sq', algorithm__ragged_correction=True
  ),
  '`config.model.preset` must be one of': dict(model__preset='huge'),
  "is read with corpus 'image_folder' only": dict(data__image_width=28),
  'is read with a `scheme` alone': dict(partition__alpha=1),
  '`config.partition.scheme` must be one of': dict(
    partition__scheme='even', partition__num_clients=2
  ),
  "is required by the scheme 'fixed_classes'": dict(
    partition__scheme='fixed_classes', partition__num_clients=2
  ),
  'must be 0 when': dict(client_splits__held_out_fraction=0),
  '`config.cohorts.cohort_size` must be at least 1': dict(
    cohorts__cohort_size=0
  ),
  '`--config` must name a Python file or a shipped config': dict(
    config='nowhere.py'
  ),
  '`--config.cohorts.cohort_size` is 50, but only': dict(
    cohorts__cohort_size=50
  ),
  'none is held out. Raise': dict(client_splits__held_out_fraction=1e-9),
  'has the 4 sequences that an evaluation needs': dict(
    data__sequence_length=2000
  ),
  'must be local, auto or the HOST:PORT of a running Ray cluster': dict(
    engine__kind='ray', engine__ray_address='nowhere'
  ),
  'nowhere/v.txt': dict(data__vocabulary='nowhere/v.txt'),
}

_CONFIG_FILES = {
  'must run without errors, but raised ZeroDivisionError': '1 / 0',
  'must define a function `get_config()`': '',
  'must return an ml_collections.ConfigDict, found int': (
    'def get_config():\n  return 1'
  ),
  'reading them raised RequiredValueError': (
    'from ml_collections import ConfigDict, config_dict as c\n'
    f'exec(open({small_runs.CONFIG!r}).read(), globals())\n'
    'whole = get_config\n'
    'def get_config():\n'
    '  config = whole().unlock()\n'
    '  config.seeds = dict(model_seed=c.required_placeholder(int))\n'
    '  return config\n'
  ),
}


def _damaged(place, *, damage):
  damage(place)
  return place.arguments()


def _path(place, name):
  """Returns a file in a copy of something, such as 'corpus/manifest.json'."""
  kind, _, name = name.partition('/')
  return getattr(place, kind) / name


def _edit(place, *, edited, change):
  """Applies a change to a JSON file."""
  path = _path(place, edited)
  value = json.loads(path.read_text())
  if callable(change):
    change(value)
  else:
    value |= change
  path.write_text(json.dumps(value))
  return place.arguments()


_MANIFEST = 'corpus/manifest.json'
_METADATA = 'vocabulary/tokenizer.json'
_CONFIG = 'run/config.json'
_DESCRIPTION = 'checkpoint/checkpoint.json'
_EDITS = {
  'Upgrade fedfish, or group the corpus again': (
    _MANIFEST,
    dict(schema_version=99),
  ),
  'it has an unreadable manifest.json': (
    _MANIFEST,
    lambda manifest: manifest.pop('counts'),
  ),
  'states `padding_id` 3, but vocab.txt has': (_METADATA, dict(padding_id=3)),
  'has no `schema_version`': (_METADATA, dict(schema_version=None)),
  'has schema version 99, but this version of fedfish': (
    _METADATA,
    dict(schema_version=99),
  ),
  "must state `size` as int, found '256'": (_METADATA, dict(size='256')),
  'must state a `kind` of wordpiece or sentencepiece': (
    _METADATA,
    dict(kind='bpe'),
  ),
  'with an integer `schema_version` of at least 1': (
    _CONFIG,
    dict(schema_version=None),
  ),
  'has `schema_version` 99': (_CONFIG, dict(schema_version=99)),
  'holds a run with another config, different in seeds.model_seed': (
    _CONFIG,
    lambda config: config['seeds'].update(model_seed=77),
  ),
  'has schema version 99, but this fedfish reads': (
    _DESCRIPTION,
    dict(schema_version=99),
  ),
  "checkpoint.json has no 'round'": (
    _DESCRIPTION,
    lambda description: description.pop('round'),
  ),
  "checkpoint.json has a wrong 'contents'": (_DESCRIPTION, dict(contents=7)),
  'checkpoint.json is of round 3': (_DESCRIPTION, dict(round=3)),
  "model_weights/trainable/0' must be": (
    _DESCRIPTION,
    lambda d: d['tensors'].update(
      {'global_model_weights/trainable/0': dict(dtype='int8', shape=[1])}
    ),
  ),
  'The run was trained on another corpus': (
    _DESCRIPTION,
    lambda d: d['contents'].update(corpus_fingerprint='another'),
  ),
  'was made with other settings than': (
    _DESCRIPTION,
    lambda d: d['contents'].update(settings_fingerprint='another'),
  ),
  'was made with another vocabulary than': (
    _DESCRIPTION,
    lambda d: d['contents'].update(vocabulary_fingerprint='another'),
  ),
}


def _sentencepiece_model(*pieces):
  """Returns a model file of (piece, type)."""
  model = sentencepiece._model_class()()
  for piece, kind in pieces:
    model.pieces.add(piece=piece, type=kind)
  return model.SerializeToString()


_NORMAL, _UNKNOWN, _CONTROL = 1, 2, 3
_SPECIAL = b'[PAD]\n[UNK]\n[END]\n'
_VOCABULARIES = {
  'is another file. Name one': ('v.pdf', b''),
  'byte 6 is not UTF-8': ('v.txt', b'[PAD]\n\xff\n'),
  'line 2 is empty': ('v.txt', b'[PAD]\n\nb\n'),
  "'a' stands in lines 2 and 4": ('v.txt', b'[PAD]\na\nb\na\n'),
  'must hold the piece [UNK]': ('v.txt', b'[PAD]\n[END]\na\n'),
  'no tokenizer can be built from it': ('v.txt', _SPECIAL),
  'must be a SentencePiece model, but it cannot be parsed': ('v.model', b'no'),
  "end-of-text piece '</s>'; of its 0 pieces": ('v.model', b''),
  'cannot be loaded as one': (
    'v.model',
    _sentencepiece_model(
      ('<unk>', _UNKNOWN), ('</s>', _CONTROL), *[('c', _NORMAL)] * 2
    ),
  ),
}


def _rewrite(corpus, payload_of, *, offset=None, damage=lambda data: data):
  """Replaces all records, and index and manifest to fit.

  Args:
    corpus: Its directory.
    payload_of: From a client id to the payload of its record.
    offset: What the index says of every record; None: what is right.
    damage: From a shard's bytes to those that are written.
  """
  rows = damaged_corpora.index_rows(corpus)
  sizes = {}
  for number in range(2):
    path = damaged_corpora.shard_path(corpus, number)
    with open(path, 'wb') as file:
      for row in rows:
        if row['shard'] == number:
          row['offset'] = file.tell() if offset is None else offset
          records.write_record(file, payload_of(row['group_id']))
    path.write_bytes(damage(path.read_bytes()))
    sizes[path.name] = path.stat().st_size
  damaged_corpora.write_index(corpus, rows)

  def edit(manifest):
    for shard in manifest['shards']:
      shard['num_bytes'] = sizes[shard['name']]

  damaged_corpora.edit_manifest(corpus, edit)


def _record(client_id, *examples):
  encoded = [records.encode_example(example) for example in examples]
  return records.encode_group_record(client_id, encoded)


def _change_index(corpus, change):
  path = corpus / 'index.parquet'
  pq.write_table(change(pq.read_table(path)), path)


def _rows_disagree(place):
  """Makes the index state one row more than its only group of rows has."""
  path = place.corpus / 'index.parquet'
  content = path.read_bytes()
  num_rows = pq.read_metadata(path).num_rows
  for position, byte in enumerate(content):
    # Parquet writes n as 2 n.
    if byte != 2 * num_rows:
      continue
    damaged = bytearray(content)
    damaged[position] += 2
    path.write_bytes(damaged)
    with contextlib.suppress(pa.ArrowException, OSError):
      found = pq.read_metadata(path)
      sizes = [found.row_group(i).num_rows for i in range(found.num_row_groups)]
      if (found.num_rows, sizes) == (num_rows + 1, [num_rows]):
        return
  raise AssertionError('the index does not state its number of rows')


def _replace_while_open(place):
  """Another process replaces the index once it was opened."""
  corpus, read = place.corpus, run_inputs.open_tokenizer

  def open_tokenizer(*arguments):
    _change_index(corpus, lambda table: table.slice(1))
    return read(*arguments)

  patch = place.stack.enter_context(pytest.MonkeyPatch.context())
  patch.setattr(run_inputs, 'open_tokenizer', open_tokenizer)


def _unreadable_vocabulary(place):
  link = place.directory / 'v.txt'
  # A file that nobody can read from its beginning, not even root.
  link.symlink_to('/proc/self/mem')
  return place.arguments(data__vocabulary=link)


def _replace_state(place):
  """Another file in place of the tensors, by the sum that is stated."""
  path = place.checkpoint / 'state.safetensors'
  path.write_bytes(b'no tensors')
  state = dict(
    num_bytes=10, sha256=hashlib.sha256(path.read_bytes()).hexdigest()
  )
  _edit(place, edited=_DESCRIPTION, change=dict(state=state))


def _change(name, change):
  """Returns what changes the bytes of a file."""

  def prepare(place):
    path = _path(place, name)
    path.write_bytes(change(path.read_bytes()))

  return prepare


def _write(name, content):
  return lambda place: _path(place, name).write_text(content)


def _remove(name):
  return lambda place: _path(place, name).unlink()


def _be_directory(name):
  def prepare(place):
    _path(place, name).unlink()
    _path(place, name).mkdir()

  return prepare


def _workdir(make):
  def prepare(place):
    place.workdir = make(place)

  return prepare


def _index(change):
  return lambda place: _change_index(place.corpus, change)


def _records(payload_of, **options):
  return lambda place: _rewrite(place.corpus, payload_of, **options)


_STATE = 'checkpoint/state.safetensors'
_METRICS = 'run/metrics.csv'
_INDEX = 'corpus/index.parquet'
_PIECES = 'vocabulary/vocab.txt'
_DAMAGES = (
  # The directory of the run.
  ('`--workdir` must be a directory', _workdir(lambda p: p.file('workdir'))),
  (
    '`--workdir` must be empty or new, or hold config.json, but',
    _workdir(lambda place: place.file('other/notes.txt').parent),
  ),
  (
    '`--workdir` must be writable',
    _workdir(lambda place: place.file('file') / 'below'),
  ),
  ('must hold the config of a run, but cannot be read', _write(_CONFIG, '{')),
  (
    'is in use by another `fedfish train`',
    lambda place: place.stack.enter_context(run_directory.lock(place.run)),
  ),
  # Its checkpoint.
  ('checkpoint.json is missing', _remove(_DESCRIPTION)),
  (
    'checkpoint.json cannot be read (Is a directory)',
    _be_directory(_DESCRIPTION),
  ),
  ('checkpoint.json is not readable', _write(_DESCRIPTION, '{')),
  ('state.safetensors is missing', _remove(_STATE)),
  (
    'state.safetensors must have SHA-256',
    _change(_STATE, lambda data: data[:-1] + bytes([data[-1] ^ 1])),
  ),
  (
    'must hold an undamaged checkpoint to resume from',
    _change(_STATE, lambda data: data[:-1]),
  ),
  ('state.safetensors cannot be read', _replace_state),
  # Its metrics.
  ('but it does not exist. Name a run directory', _remove(_METRICS)),
  ("codec can't decode byte", _change(_METRICS, lambda data: b'\xff' + data)),
  (
    "the first column must be 'round'",
    _change(_METRICS, lambda data: b'a' + data),
  ),
  (
    'must have the columns that this run writes',
    _change(_METRICS, lambda data: data.replace(b'train/loss', b'train/other')),
  ),
  (
    "line 2 does not (found ['0'])",
    _change(_METRICS, lambda data: re.sub(rb'\n0,.*', b'\n0', data)),
  ),
  (
    "line 3 does not (could not convert string to float: 'many')",
    _change(_METRICS, lambda data: re.sub(rb'\n1,[^,]*', b'\n1,many', data)),
  ),
  (
    'must have a row for round 4, from which the run',
    _change(_METRICS, lambda data: data[: data.index(b'\n') + 1]),
  ),
  # The vocabulary.
  ('must hold vocab.txt, but does not', _remove(_PIECES)),
  ('vocab.txt must have the sha256', _write(_PIECES, 'a')),
  ('must be JSON, but cannot be parsed', _write(_METADATA, '{')),
  # The corpus.
  (
    'is not a grouped corpus: it has no manifest.json',
    _remove(_MANIFEST),
  ),
  ('it has an unreadable manifest.json', _write(_MANIFEST, '{')),
  (
    'must hold the shard groups-00000-of-00002.tfrecord',
    _remove('corpus/groups-00000-of-00002.tfrecord'),
  ),
  ('must hold index.parquet, but it is missing', _remove(_INDEX)),
  ('must hold index.parquet, but it is unreadable', _rows_disagree),
  (
    'must hold index.parquet, but it is unreadable',
    _index(lambda table: table.drop_columns(['offset'])),
  ),
  (
    'must hold index.parquet, but it is unreadable',
    _index(
      lambda table: table.set_column(
        table.column_names.index('offset'),
        INDEX_SCHEMA.field('offset'),
        pa.nulls(len(table), pa.int64()),
      )
    ),
  ),
  ('records, but that has 11 rows', _index(lambda table: table.slice(1))),
  ('was replaced by another one. Start again', _replace_while_open),
  (
    'index.parquet belongs to another corpus. Run',
    _records(lambda _: _record(b'nobody', {'text': b'a'})),
  ),
  (
    'has an example without the feature `text`',
    _records(lambda client_id: _record(client_id, {'title': b'a'})),
  ),
  (
    'is not readable as one (not a SequenceExample)',
    _records(lambda _: b'\xff'),
  ),
  ('no file can be so long', _records(lambda _: b'', offset=2**63 - 1)),
  ('the file ends there', _records(lambda _: b'', offset=10**6)),
  (
    'the record is cut off',
    _records(lambda _: b'', offset=0, damage=lambda data: data[:5]),
  ),
  (
    'the record is cut off',
    _records(lambda _: b'long', offset=0, damage=lambda data: data[:14]),
  ),
  (
    'its length fails the checksum',
    _records(lambda _: b'', offset=0, damage=lambda data: b'1' + data[1:]),
  ),
  (
    'its content fails the checksum',
    _records(
      lambda _: b'long',
      offset=0,
      damage=lambda data: data.replace(b'long', b'lung'),
    ),
  ),
)

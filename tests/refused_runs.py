"""Runs that cannot go on, and words of what is said."""

import json
import os
import re
import shutil

import own_trackers
import pyarrow.parquet as pq
import pytest
import small_runs
from refused_inputs import (
  Case,
  changed,
  damaged,
  edited,
  path_in,
  removed,
)

from tff_fedfish.run import client_data, trackers


def _absent_tracker(place):
  patch = place.stack.enter_context(pytest.MonkeyPatch.context())
  patch.setitem(trackers.TRACKERS, 'absent', own_trackers.Absent)
  return [*place.arguments(), '--tracker', 'absent']


_CONFIG = 'run/config.json'
_MANIFEST = 'checkpoint/manifest.json'
_STATE = 'checkpoint/state.safetensors'
_METRICS = 'run/metrics.csv'


def _workdir(words, make):
  def damage(place):
    place.workdir = make(place)

  return damaged(words, damage)


def _contents(words, **contents):
  """Returns the case of a checkpoint that keeps other values."""
  return damaged(
    words,
    lambda place: small_runs.edit_manifest(
      path_in(place, _MANIFEST), **contents
    ),
  )


def _start(words, damage=lambda place: None, **settings):
  """Returns the case of a new run that begins with the model of another."""

  def prepare(place):
    run = place.run
    place.workdir = place.directory / 'new'
    damage(place)
    return place.arguments(training__start_from=run, **settings)

  return Case(words, prepare)


def _change_case(place):
  """Makes the vocabulary another one of the same pieces."""
  path = path_in(place, 'vocabulary/tokenizer.json')
  value = json.loads(path.read_text())
  path.write_text(json.dumps(value | {'lower_case': not value['lower_case']}))


def _replace_while_open(place):
  """Another process replaces the corpus's index once it was opened."""
  path, read = place.corpus / 'index.parquet', client_data.open_tokenizer

  def open_tokenizer(*arguments):
    pq.write_table(pq.read_table(path).slice(1), path)
    return read(*arguments)

  patch = place.stack.enter_context(pytest.MonkeyPatch.context())
  patch.setattr(client_data, 'open_tokenizer', open_tokenizer)


CASES = (
  # The model that a new run begins with.
  _start(
    '`--config.training.start_from` must be a checkpoint (.../',
    lambda place: shutil.rmtree(place.run / 'checkpoints'),
  ),
  _start(
    "`--config.training.start_from`: '",
    lambda place: os.truncate(path_in(place, _STATE), 9),
  ),
  _start(
    'must be the directory of a run, but config.json is not in it',
    lambda place: path_in(place, _CONFIG).unlink(),
  ),
  _start("tensor 'token_embedding' must have shape [256, 32]", model__width=32),
  _start('model.num_heads` must be 2, as in ', model__num_heads=4),
  _start('was trained with another vocabulary than', _change_case),
  _workdir('`--workdir` must be a directory', lambda p: p.file('workdir')),
  _workdir(
    '`--workdir` must be empty or new, or hold config.json, but',
    lambda place: place.file('other/notes.txt').parent,
  ),
  _workdir(
    '`--workdir` must be writable', lambda place: place.file('file') / 'below'
  ),
  Case(
    'has done 4 rounds',
    lambda place: place.run and place.arguments(training__num_rounds=2),
  ),
  changed('must hold the config of a run, but cannot be read', _CONFIG, b'{'),
  edited(
    'must be the config.json of a run with `schema_version` 3, found',
    _CONFIG,
    schema_version=None,
  ),
  edited('found 99. Update fedfish', _CONFIG, schema_version=99),
  edited(
    'holds a run with another config: server.learning_rate 0.77 there',
    _CONFIG,
    lambda config: config['server'].update(learning_rate=0.77),
  ),
  # Its corpus; tests/data has what may be wrong with one.
  removed(
    'is not a grouped corpus: it has no manifest.json', 'corpus/manifest.json'
  ),
  damaged('was replaced by another one. Start again', _replace_while_open),
  # Its checkpoint.
  removed("manifest.json' is damaged: it cannot be read (No such", _MANIFEST),
  changed(
    "manifest.json' is damaged: it cannot be read (`sha256` must be",
    _MANIFEST,
    lambda data: data.replace(b'"round": 4', b'"round": 5'),
  ),
  removed("state.safetensors' is damaged: it cannot be read", _STATE),
  changed(
    "state.safetensors' is damaged: it must have SHA-256",
    _STATE,
    lambda data: data[:-1] + bytes([data[-1] ^ 1]),
  ),
  changed(
    'must hold an undamaged checkpoint to resume from',
    _STATE,
    lambda data: data[:-1],
  ),
  _contents(
    'The run was trained on another corpus', corpus_fingerprint='another'
  ),
  _contents(
    'seeds.model_seed 9, not 1. Restore that', settings={'seeds.model_seed': 9}
  ),
  _contents(
    'was made with another vocabulary than', vocabulary_fingerprint='another'
  ),
  damaged(
    'was made with another vocabulary than',
    lambda place: (place.run, _change_case(place)),
  ),
  damaged(
    'holds a run that has done round 4, but no checkpoint to continue from',
    lambda place: shutil.rmtree(place.run / 'checkpoints'),
  ),
  # Its metrics.
  removed('but it does not exist. Name a run directory', _METRICS),
  changed(
    r"line 3 (could not convert string to float: '\\xff",
    _METRICS,
    lambda data: data.replace(b'\n1,', b'\n1,\xff'),
  ),
  changed(
    "the first column must be 'round'", _METRICS, lambda data: b'a' + data
  ),
  changed(
    'must have the columns that this run writes',
    _METRICS,
    lambda data: data.replace(b'train/loss', b'train/other'),
  ),
  changed(
    'but does not in line 2 (columns: found 1, ',
    _METRICS,
    lambda data: re.sub(rb'\n0,.*', b'\n0', data),
  ),
  changed(
    "but does not in line 3 (could not convert string to float: 'many')",
    _METRICS,
    lambda data: re.sub(rb'\n1,[^,]*', b'\n1,many', data),
  ),
  Case('or leave the option out.', _absent_tracker),
)

"""Corpora are known by their fingerprints, and named by their manifests."""

import json

import pytest

from tff_fedfish.errors import UserError
from tff_fedfish.reporting.loading import load_runs
from tff_fedfish.reporting.page import build_sections
from tff_fedfish.reporting.repetitions import pool_repetitions
from tff_fedfish.reporting.runs import HELD_OUT, Subject, subjects
from tff_fedfish.reporting.settings import reproduction_commands


def _identity(name, part, grouping='g'):
  return {
    'name': name,
    'key': 'author' if name == 'stack_overflow' else 'domain',
    'part': part,
    'grouping': grouping,
    'fingerprint': f'{name}-{part}-{grouping}',
  }


_TRAIN = _identity('stack_overflow', 'train')
_HELD_OUT = _identity('stack_overflow', 'held_out')
_NEWS = _identity('cc_news', 'held_out')


@pytest.fixture
def write_scored(tmp_path, write_run, write_evaluation):
  """Writes a run on Stack Overflow's train part with some evaluations."""

  def write(name, evaluations, *, seed=1, identity=_TRAIN):
    run = write_run(
      tmp_path / name,
      settings={
        'data.directory': 'corpora/stack_overflow/train',
        'seeds.model_seed': seed,
      },
    )
    if identity:
      values = {'schema_version': 1, **identity}
      (run / 'corpus.json').write_text(json.dumps(values))
    for directory, (kind, corpus, found) in evaluations.items():
      write_evaluation(
        run,
        directory,
        kind=kind,
        corpus=corpus,
        facts={'corpus_identity': found} if found else {},
      )
    return run

  return write


def test_directories_of_one_name_are_corpora_of_their_own(write_scored):
  # As `fedfish group --split_by source` lays them out.
  run = write_scored(
    'run',
    {
      'news': ('transfer', 'cc_news, held_out', _NEWS),
      'posts': ('held_out', 'stack_overflow, held_out', _HELD_OUT),
    },
  )
  [loaded] = load_runs([run])
  news = Subject('transfer', 'cc_news, held_out')
  assert subjects([loaded]) == [HELD_OUT, news]
  assert loaded.evaluation(news).name == 'news'
  # No client of the train part was scored: the other part's are held out.
  assert loaded.evaluation(HELD_OUT).name == 'posts'


def test_seeds_on_different_corpora_are_not_pooled(write_scored):
  other = _identity('cc_news', None, 'other')
  runs = load_runs(
    [
      write_scored('a', {'x': ('transfer', 'held_out', other)}, seed=1),
      write_scored(
        'b', {'x': ('transfer', 'held_out', _identity('c4', None))}, seed=2
      ),
    ]
  )
  [pooled] = pool_repetitions(runs)
  assert pooled.num_seeds == 2
  names = [e.corpus for e in pooled.evaluations]
  assert names == ['held_out (cc_news, cc_news-)', 'held_out (c4, c4-None-)']
  assert [e.num_seeds for e in pooled.evaluations] == [1, 1]


def test_one_corpus_in_two_directories_is_pooled(write_scored):
  runs = load_runs(
    [
      write_scored('a', {'x': ('transfer', 'here', _NEWS)}, seed=1),
      write_scored('b', {'x': ('transfer', 'there', _NEWS)}, seed=2),
    ]
  )
  [pooled] = pool_repetitions(runs)
  [evaluation] = pooled.evaluations
  assert (evaluation.corpus, evaluation.num_seeds) == ('here', 2)


def test_a_further_part_is_shown_beside_the_own_held_out_clients(write_scored):
  run = write_scored(
    'run',
    {
      'own': ('held_out', 'stack_overflow, train', _TRAIN),
      'part': ('held_out', 'stack_overflow, held_out', _HELD_OUT),
    },
  )
  [loaded] = load_runs([run])
  part = Subject('held_out', 'stack_overflow, held_out')
  assert subjects([loaded]) == [HELD_OUT, part]
  assert str(part) == 'held-out clients of stack_overflow, held_out'
  assert loaded.held_out().name == 'own'
  assert loaded.evaluation(part).name == 'part'
  figures = {
    figure.name
    for section in build_sections([loaded]).values()
    for figure in section
  }
  assert {'held_out_loss', 'part_loss'} <= figures
  data = [
    part.removeprefix('--data ')
    for command in reproduction_commands([loaded])
    for part in command
    if part.startswith('--data ')
  ]
  assert data == [
    'corpora/stack_overflow/train',
    "'CORPUS_stack_overflow, held_out'",
  ]


def test_older_runs_are_known_by_the_name_of_a_directory(write_scored):
  run = write_scored(
    'run', {'x': ('transfer', 'held_out', None)}, identity=None
  )
  [loaded] = load_runs([run])
  assert subjects([loaded]) == [HELD_OUT, Subject('transfer', 'held_out')]


def test_a_damaged_identity_is_an_error(write_scored):
  run = write_scored('run', {'x': ('transfer', 'x', {'name': 3})})
  with pytest.raises(UserError, match='`corpus_identity` must be a corpus'):
    load_runs([run])

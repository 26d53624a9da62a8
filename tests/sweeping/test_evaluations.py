"""Requests for evaluations: their directories, commands and errors."""

import pathlib

import pytest

from tff_fedfish.sweeping import sweep_file

_RUN = pathlib.Path('w/arms/x')


def _parse(*entries):
  problems = []
  return sweep_file.parse_evaluations(list(entries), problems), problems


def test_defaults_are_those_of_the_command():
  [request], problems = _parse({})
  assert not problems
  # R = 30: the last checkpoint alone, in the directory of the corpus.
  assert request.command(_RUN, 30, 'corpora/c4') == (
    _RUN / 'evaluations' / 'c4',
    [
      *('evaluate', '--checkpoint', 'w/arms/x/checkpoints/round_00000030'),
      *('--data', 'corpora/c4', '--output', 'w/arms/x/evaluations/c4'),
    ],
  )


def test_all_options():
  [request], problems = _parse(
    {
      'fractions': [0, 0.25, 0.5],
      'personalization_epochs': 3,
      'barrier': True,
      'max_clients': 24,
      'max_sequences_per_client': None,
      'learning_rate': 0.05,
    }
  )
  assert not problems
  _, command = request.command(_RUN, 30, 'corpora/c4')
  assert command[7:] == [
    '--fractions=0.0,0.25,0.5',
    '--max_clients=24',
    '--personalization_epochs=3',
    '--learning_rate=0.05',
    '--barrier',
  ]


def test_another_corpus_under_a_name():
  [request], problems = _parse({'data': 'corpora/sotu', 'name': 'transfer'})
  assert not problems
  path, command = request.command(_RUN, 8, 'corpora/c4')
  assert path.name == 'transfer'
  assert command[2].endswith('round_00000008')
  assert 'corpora/sotu' in command


def test_commands_are_understood():
  from tff_fedfish.cli import evaluate
  from tff_fedfish.cli.main import _Parser

  parser = _Parser()
  evaluate.add_arguments(parser)
  every = {
    'fractions': [0.5],
    'client_split': 'participating',
    'max_clients': 5,
    'max_sequences_per_client': 6,
    'sequence_length': 7,
    'split_unit': 'documents',
    'personalization_epochs': 8,
    'learning_rate': 9.5,
    'barrier': True,
  }
  [request], problems = _parse(every)
  assert not problems
  _, command = request.command(_RUN, 1, 'c')
  arguments = vars(parser.parse_args(command[1:]))
  assert arguments['fractions'] == (0.5,)
  for name in every.keys() - {'fractions'}:
    assert arguments[name] == every[name]
  # Nothing that the command takes is missing here.
  assert set(every) == arguments.keys() - {'checkpoint', 'data', 'output'}


def test_json_names_every_option():
  [request], _ = _parse({'max_clients': 2})
  assert request.to_json_dict() == {
    'data': None,
    'name': None,
    'fractions': [0.0, 0.25, 0.5],
    'client_split': 'held_out',
    'max_clients': 2,
    'max_sequences_per_client': None,
    'sequence_length': None,
    'split_unit': None,
    'personalization_epochs': 4,
    'learning_rate': None,
    'barrier': False,
  }


@pytest.mark.parametrize(
  ('entry', 'words'),
  [
    (3, 'must be a dictionary, found 3'),
    ({'dta': 'x'}, "'dta' is unknown; known are data, name, fractions"),
    ({'data': 3}, '`data` must be a string or None, found 3'),
    ({'name': ''}, "`name` must be a string or None, found ''"),
    ({'name': 'a/b'}, "a directory's name without '/' and without a dot in"),
    ({'name': '.a'}, "found '.a'"),
    ({'fractions': [0.75]}, '`fractions` must be numbers from 0 to 0.5'),
    (
      {'fractions': ['a']},
      "`fractions` must be a list of numbers, found ['a']",
    ),
    ({'fractions': 0.5}, '`fractions` must be a list of numbers, found 0.5'),
    ({'max_clients': 0}, '`max_clients` must be at least 1, found 0'),
    ({'max_clients': 2.5}, '`max_clients` must be an int or None, found 2.5'),
    (
      {'personalization_epochs': None},
      '`personalization_epochs` must be an int, found None',
    ),
    ({'learning_rate': 'a'}, '`learning_rate` must be a number or None'),
    ({'learning_rate': -1}, '`learning_rate` must be finite and above 0'),
    ({'barrier': 1}, '`barrier` must be true or false, found 1'),
    (
      {'client_split': 'all'},
      '`client_split` must be one of held_out, participating, own_test, '
      "own_validation, found 'all'",
    ),
    (
      {'client_split': 'own_validation'},
      "`client_split` must not be 'own_validation', by which "
      '`learning_rate_search` chooses',
    ),
    (
      {'data': 'x', 'barrier': True},
      '`barrier` is of the corpus that the run was trained on; set `data` to',
    ),
    (
      {'data': 'x', 'client_split': 'participating'},
      '`client_split` is of the',
    ),
  ],
)
def test_what_is_wrong_with_a_request(entry, words):
  requests, problems = _parse({}, entry)
  assert len(requests) == 1
  assert len(problems) == 1
  assert problems[0].startswith('`evaluate`, number 2: ')
  assert words in problems[0]


def test_requests_must_be_a_list():
  problems = []
  assert sweep_file.parse_evaluations({'data': 'x'}, problems) == ()
  assert problems == [
    "`evaluate` must be a list of evaluations, found {'data': 'x'}"
  ]

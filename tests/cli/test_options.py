"""Options that a dataclass declares arrive in it."""

import pytest

from tff_fedfish.evaluation import evaluate
from tff_fedfish.evaluation.options import EvaluationOptions

COMMANDS = {'evaluate': 'tff_fedfish.cli.evaluate'}


@pytest.fixture
def asked(monkeypatch):
  calls = []

  def record(*arguments):
    calls.append(arguments)
    # Or else a summary would be printed.
    raise KeyboardInterrupt

  monkeypatch.setattr(evaluate, 'evaluate', record)
  return calls


def test_defaults(fedfish, asked):
  fedfish('evaluate', '--checkpoint', 'run', '--data', 'corpus')
  assert asked == [('run', 'corpus', None, EvaluationOptions())]


def test_every_option_arrives(fedfish, asked):
  fedfish(
    'evaluate', '--checkpoint', 'run', '--data', 'c', '--output', 'o',
    '--fractions', '0,0.5', '--client_split', 'own_test', '--max_clients', 2,
    '--max_sequences_per_client', 'all', '--sequence_length', 8,
    '--split_unit', 'sequences', '--personalization_epochs', 3,
    '--learning_rate', 0.25, '--barrier',
  )  # fmt: skip
  options = EvaluationOptions(
    fractions=(0.0, 0.5),
    client_split='own_test',
    max_clients=2,
    max_sequences_per_client=None,
    sequence_length=8,
    split_unit='sequences',
    personalization_epochs=3,
    learning_rate=0.25,
    barrier=True,
  )
  assert asked == [('run', 'c', 'o', options)]


def test_help_has_every_default(fedfish):
  code, out, _ = fedfish('evaluate', '--help')
  assert code == 0
  text = ' '.join(out.split())
  for default in ('0,0.25,0.5', '4', '64', 'held_out'):
    assert f'(default: {default})' in text
  assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize(
  ('option', 'words'),
  [
    (
      '--fractions=0,half',
      "--fractions: must be numbers separated by commas, found '0,half'",
    ),
    ('--fractions=0.75', '`--fractions` must be numbers from 0 to 0.5'),
    ('--fractions=0,25,50', '(0.25 means 25 %; '),
    ('--learning_rate=inf', '`--learning_rate` must be finite and above 0'),
    ('--max_clients=0', '`--max_clients` must be at least 1, found 0'),
    (
      '--max_clients=few',
      "--max_clients: must be a whole number or all, found 'few'",
    ),
    ('--client_split=all', "--client_split: invalid choice: 'all'"),
    ('--split_unit=None', "--split_unit: invalid choice: 'None'"),
  ],
)
def test_refused(fedfish, option, words):
  code, out, err = fedfish(
    'evaluate', '--checkpoint', 'a', '--data', 'b', option
  )
  assert (code, out, err.count('\n')) == (2, '', 1)
  assert words in err

"""`fedfish generate` as a user meets it."""

import pytest

from tff_fedfish.exporting import generate
from tff_fedfish.exporting.generate import Samples

COMMANDS = {'generate': 'tff_fedfish.cli.generate'}


@pytest.fixture
def generated(monkeypatch):
  """Sets what the model writes, and returns the options it was asked with."""
  asked = []

  def set_samples(samples):
    def found(checkpoint, options):
      asked.append((checkpoint, options))
      return samples

    monkeypatch.setattr(generate, 'generate', found)
    return asked

  return set_samples


def test_a_real_run(fedfish, small_run):
  code, out, err = fedfish(
    'generate', '--checkpoint', small_run, '--prompt', 'the file',
    '--num_tokens', 5, '--temperature', 0,
  )  # fmt: skip
  assert (code, err) == (0, '')
  assert out.startswith('the file')
  assert out.count('\n') == 1


def test_every_argument_arrives(fedfish, generated):
  asked = generated(Samples(4, ['a']))
  code, out, _ = fedfish(
    'generate', '--checkpoint', 'run', '--prompt', 'p', '--num_tokens', 5,
    '--temperature', 0.5, '--top_k', 7, '--seed', 9, '--num_samples', 3,
    '--personalize_on', 'c', '--client', 'i', '--personalization_epochs', 2,
    '--learning_rate', 0.25,
  )  # fmt: skip
  assert (code, out) == (0, 'a\n')
  assert asked == [
    (
      'run',
      generate.GenerationOptions(
        prompt='p',
        num_tokens=5,
        temperature=0.5,
        top_k=7,
        seed=9,
        num_samples=3,
        personalize_on='c',
        client='i',
        personalization_epochs=2,
        learning_rate=0.25,
      ),
    )
  ]


def test_several_samples_are_counted(fedfish, generated):
  generated(Samples(4, ['one', 'two']))
  _, out, _ = fedfish('generate', '--checkpoint', 'run')
  assert out == 'Sample 1 of 2:\none\nSample 2 of 2:\ntwo\n'


def test_before_and_after(fedfish, generated):
  generated(Samples(4, ['old 1', 'old 2'], ['new 1', 'new 2'], 'host[1]', 7))
  _, out, _ = fedfish('generate', '--checkpoint', 'run')
  before, after = 'Before (round 4):', 'After (7 sequences of host[1]):'
  assert out.splitlines() == [
    *('Sample 1 of 2:', before, 'old 1', after, 'new 1'),
    *('Sample 2 of 2:', before, 'old 2', after, 'new 2'),
  ]


@pytest.mark.parametrize('after', [None, ['\x1b]0;x\x07 [bold]:smile:']])
def test_a_model_writes_no_control_characters(fedfish, generated, after):
  generated(Samples(4, ['\x1b[31mred\n[bold]:smile:'], after, 'c', 1))
  _, out, _ = fedfish('generate', '--checkpoint', 'run')
  assert '\x1b' not in out and '\x07' not in out
  assert '\N{REPLACEMENT CHARACTER}[31mred' in out
  # Neither styles nor pictures.
  assert '[bold]:smile:' in out


@pytest.mark.parametrize(
  ('arguments', 'words'),
  [
    (['--checkpoint', 'a', '--client', 'b'], '`--client` needs `--personalize'),
    (['--checkpoint', 'nowhere'], '`--checkpoint` must be a checkpoint ('),
  ],
)
def test_arguments(fedfish, arguments, words):
  code, out, err = fedfish('generate', *arguments)
  assert (code, out) == (2, '')
  assert words in err
  assert err.count('\n') == 1

"""Text of a real run's model, before and after personalization."""

import shutil
import types

import numpy as np
import pytest

from tff_fedfish.data.client_sequences import ClientSequences
from tff_fedfish.data.grouped_corpus import GroupedCorpus
from tff_fedfish.data.tokenizers import load_tokenizer
from tff_fedfish.errors import UserError
from tff_fedfish.exporting import generate
from tff_fedfish.exporting.generate import GenerationOptions
from tff_fedfish.exporting.trained_model import find_client
from tff_fedfish.run import checkpoint_writer, checkpoints

_CLIENT = 'host4.org'  # Has 5 documents.


@pytest.mark.parametrize(
  ('options', 'words'),
  [
    (dict(temperature=float('nan')), 'be finite and at least 0, found nan'),
    (dict(temperature=1e-38), 'or at least 0.001, found 1e-38'),
    (dict(seed=2**31), 'below 2147483648, found 2147483648'),
    (dict(personalize_on='x'), '`--personalize_on` needs `--client`, which is'),
    (dict(client='x'), '`--client` needs `--personalize_on`, which is not'),
    (dict(learning_rate=0.1), '`--learning_rate` needs `--personalize_on`'),
    # All at once.
    (dict(num_tokens=0, seed=-1), '`--num_tokens` must be at least 1, found 0'),
    (dict(num_tokens=0, seed=-1), 'found 0; `--seed` must be'),
  ],
)
def test_options_that_are_refused(options, words):
  with pytest.raises(UserError) as error:
    GenerationOptions(**options)
  assert words in str(error.value)
  assert '\n' not in str(error.value)


def test_clients_by_their_text():
  clients = [b'a%b\xff\n', b'host3.org']
  for client, text in zip(clients, ('a%25b%FF%0A', 'host3.org'), strict=True):
    assert find_client(clients, text, '--client', '') == client
  for text in ('100%', 'host.org'):
    words = f"one of the 2 clients of 'x', found '{text}'. Copy an id"
    with pytest.raises(UserError, match=words):
      find_client(clients, text, '--client', "of 'x'")


def _generate(run, **options):
  options = dict(num_samples=2, num_tokens=10) | options
  return generate.generate(run, GenerationOptions(**options))


class TestText:
  _OPTIONS = dict(prompt='Free library', seed=3)

  @pytest.fixture(scope='class')
  def samples(self, small_run):
    return _generate(small_run, **self._OPTIONS)

  def test_same_seed_same_text(self, small_run, samples):
    assert samples.round_num == 4
    assert samples.after is None
    # The vocabulary is of lower case.
    assert all(text.startswith('free library') for text in samples.before)
    assert samples.before[0] != samples.before[1]
    assert _generate(small_run, **self._OPTIONS) == samples
    other = _generate(small_run, **self._OPTIONS | dict(seed=4))
    assert other.before != samples.before

  def test_fewer_tokens_are_the_beginning_of_more(self, small_run, samples):
    fewer = _generate(small_run, **self._OPTIONS, num_tokens=4)
    for short, whole in zip(fewer.before, samples.before, strict=True):
      assert whole.startswith(short)
      assert len('free library') < len(short) < len(whole)

  def test_no_special_pieces(self, small_run):
    # Hot enough that each of the 256 tokens is about as likely.
    samples = _generate(
      small_run, num_samples=4, num_tokens=40, temperature=1000.0
    )
    words = {word for text in samples.before for word in text.split()}
    assert len(words) > 50
    # '[unused7]', too, of which the vocabulary has many.
    assert not [word for word in words if '[' in word and len(word) > 1]

  def test_more_tokens_than_the_model_has(self, small_run):
    words = '`--top_k` must be at most 256, the token ids of the model, found 3'
    with pytest.raises(UserError, match=words):
      _generate(small_run, top_k=300)

  def test_a_diverged_model(self, small_run, tmp_path):
    run = shutil.copytree(
      small_run, tmp_path / 'run', ignore=shutil.ignore_patterns('round_*')
    )
    loaded = checkpoints.load_checkpoint(
      small_run / 'checkpoints' / 'round_00000004'
    )
    tensors = {
      name: tensor * np.nan if tensor.dtype == np.float32 else tensor
      for name, tensor in loaded.tensors.items()
    }
    checkpoint_writer.save_checkpoint(
      run / 'checkpoints', 4, tensors, loaded.contents
    )
    words = 'of the model of round 4 are not: .* Use another checkpoint.'
    with pytest.raises(UserError, match=words):
      _generate(run)


class TestPersonalization:
  def _generate(self, run, corpus, **options):
    options = dict(client=_CLIENT) | options
    return _generate(run, personalize_on=str(corpus), **options)

  def test_before_and_after(self, small_inputs, small_run):
    corpus = small_inputs[0]
    options = dict(learning_rate=0.5, personalization_epochs=8)
    samples = self._generate(small_run, corpus, **options)
    sequences = ClientSequences(
      GroupedCorpus(corpus),
      load_tokenizer(small_run / 'vocabulary'),
      sequence_length=8,
    ).sequences(_CLIENT.encode())
    assert samples.client == _CLIENT
    assert samples.num_sequences == len(sequences) > 20
    assert samples.after != samples.before
    # Steps of next to no size change nothing; both are the same draws.
    same = self._generate(small_run, corpus, learning_rate=1e-30)
    assert same.after == same.before == samples.before

  def test_steps_too_large(self, small_inputs, small_run):
    words = 'of the personalized model are not: .* Use a lower `--learning_rate'
    with pytest.raises(UserError, match=words):
      self._generate(small_run, small_inputs[0], learning_rate=1e30)

  def test_no_corpus(self, small_run, tmp_path):
    with pytest.raises(UserError, match='is not a grouped corpus'):
      self._generate(small_run, tmp_path)

  def test_client_without_a_token(self, small_run, monkeypatch):
    corpus = types.SimpleNamespace(
      client_ids=[b'mute'], directory='x', examples=lambda _: [{'text': b' '}]
    )
    monkeypatch.setattr(generate, 'open_text', lambda _: corpus)
    words = "must have text for a sequence of 8 tokens, but 'mute' has less"
    with pytest.raises(UserError, match=words):
      self._generate(small_run, 'x', client='mute')

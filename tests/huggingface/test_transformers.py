"""Exported models in transformers, and its models here.

With TensorFlow's classes of transformers 4.49: no later version has them, and
the wheel of torch 2.13.0 that pip is offered has 527 MB and needs CUDA's. What
they read, `model.safetensors` in PyTorch's layout, is what PyTorch's read; what
they save is given the names that PyTorch's save.
"""

import csv

import numpy as np
import pytest
import safetensors.numpy
import small_runs
import tensorflow as tf
import tokenizers

from models import transformer
from tff_fedfish.cli.main import main
from tff_fedfish.data.client_sequences import ClientSequences
from tff_fedfish.data.grouped_corpus import GroupedCorpus
from tff_fedfish.data.tokenizers import load_tokenizer
from tff_fedfish.evaluation.clients import choose_clients
from tff_fedfish.exporting import export
from tff_fedfish.exporting.trained_model import load_trained_model
from tff_fedfish.huggingface import pretrained

pytestmark = pytest.mark.huggingface


def test_generation(transformers, small_export):
  model = transformers.TFAutoModelForCausalLM.from_pretrained(small_export)
  tokenizer = transformers.AutoTokenizer.from_pretrained(small_export)
  # A type of a token would be embedded, too.
  prompt = tokenizer('library', return_tensors='tf')
  assert {*prompt} == {'input_ids', 'attention_mask'}
  start = prompt['input_ids'].shape[1]
  rows = model.generate(**prompt, max_new_tokens=3, do_sample=False)
  # The likeliest token each time.
  tokens = prompt['input_ids'].numpy()
  for _ in range(3):
    step = model(tokens).logits.numpy()[:, -1].argmax(-1)
    tokens = np.concatenate([tokens, step[:, np.newaxis]], axis=1)
    if step[0] == tokenizer.eos_token_id:
      break
  np.testing.assert_array_equal(rows.numpy()[0, : tokens.shape[1]], tokens[0])
  assert rows.shape[1] > start


def _save(model, directory):
  """Saves a model of TensorFlow's classes as PyTorch's would."""
  from transformers import modeling_tf_pytorch_utils as names

  model.save_pretrained(directory, safe_serialization=True)
  path = directory / 'model.safetensors'
  tensors = {}
  for name, tensor in safetensors.numpy.load_file(path).items():
    # Biases are rows of a matrix there.
    tensor = tensor[0] if name.endswith('/bias:0') else tensor
    # The library removes the name of the model, which the file lacks.
    name, _ = names.convert_tf_weight_name_to_pt_weight_name(
      f'model/{name}', tf_weight_shape=tensor.shape
    )
    tensors[name] = tensor
  safetensors.numpy.save_file(tensors, path, {'format': 'pt'})


def test_round_trip_is_bit_equal(transformers, small_export, tmp_path):
  model = transformers.TFAutoModelForCausalLM.from_pretrained(small_export)
  _save(model, tmp_path)
  tokenizer = transformers.AutoTokenizer.from_pretrained(small_export)
  tokenizer.save_pretrained(tmp_path)
  shape = pretrained.read_shape(small_export, '--x')
  assert pretrained.read_shape(tmp_path, '--x') == shape
  given = pretrained.read_weights(small_export, shape)
  for name, weight in pretrained.read_weights(tmp_path, shape).items():
    np.testing.assert_array_equal(weight, given[name])


@pytest.fixture(scope='module', name='theirs')
def _theirs(transformers, texts, tmp_path_factory):
  """A GPT-2 with a byte-level BPE of 5,000 tokens, made by the library."""
  directory = tmp_path_factory.mktemp('theirs')
  tokenizer = tokenizers.ByteLevelBPETokenizer()
  tokenizer.train_from_iterator(
    texts[:1000],
    vocab_size=5000,
    special_tokens=['<|endoftext|>'],
    show_progress=False,
  )
  transformers.GPT2TokenizerFast(
    tokenizer_object=tokenizer._tokenizer
  ).save_pretrained(directory)
  tf.keras.utils.set_random_seed(5)
  model = transformers.TFGPT2LMHeadModel(
    transformers.GPT2Config(
      n_layer=2, n_embd=16, n_head=2, vocab_size=5000, n_positions=16
    )
  )
  model(tf.constant([[1, 2]]))
  _save(model, directory)
  return directory


def _losses(transformers, directory, corpus):
  """Client -> mean loss of its scored half, in nats per token."""
  model = transformers.TFAutoModelForCausalLM.from_pretrained(directory)
  tokenizer = load_tokenizer(directory)
  length = model.config.n_positions
  corpus = GroupedCorpus(corpus)
  sample = choose_clients(
    corpus.client_ids,
    ClientSequences(corpus, tokenizer, sequence_length=length),
    split_seed=3,
    split_unit='documents',
    max_clients=None,
    fractions=(0.0,),
  )
  losses = {}
  for client_id, halves in sample.clients:
    rows = halves.evaluation
    logits = model(rows.tokens[:, :-1]).logits
    nats = tf.keras.losses.sparse_categorical_crossentropy(
      rows.tokens[:, 1:], logits, from_logits=True
    ).numpy()
    is_real = np.arange(length) < rows.num_targets[:, np.newaxis]
    losses[client_id.decode()] = nats[is_real].mean()
  return losses


def test_a_model_of_theirs_is_evaluated_trained_and_exported(
  transformers, texts, theirs, small_inputs, tmp_path
):
  corpus = small_inputs[0]
  argv = ['evaluate', '--checkpoint', str(theirs), '--data', str(corpus)]
  scores = tmp_path / 'scores'
  assert main([*argv, '--output', str(scores), '--fractions', '0']) == 0
  with open(scores / 'per_client.csv', newline='') as file:
    found = {
      r['client_id']: float(r['loss_before']) for r in csv.DictReader(file)
    }
  expected = _losses(transformers, theirs, corpus)
  assert found.keys() == expected.keys() and len(found) > 2
  for client, loss in expected.items():
    assert found[client] == pytest.approx(loss, abs=1e-4)
  settings = small_runs.FROM_DIRECTORY | {
    'data__sequence_length': 16,
    'training__start_from': theirs,
    'training__num_rounds': 1,
  }
  run = tmp_path / 'run'
  assert small_runs.train((corpus, theirs), run, **settings) == 0
  export.export(run, tmp_path / 'again', ['huggingface'])
  model = load_trained_model(run)
  loaded = transformers.TFAutoModelForCausalLM.from_pretrained(
    tmp_path / 'again'
  )
  tokens = np.arange(32).reshape(2, 16) % 5000
  np.testing.assert_allclose(
    loaded(tokens).logits.numpy(),
    transformer.logits(
      model.shape, tuple(model.weights.values()), tf.constant(tokens, tf.int32)
    ).numpy(),
    rtol=0,
    atol=1e-4,
  )
  tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / 'again')
  before = transformers.AutoTokenizer.from_pretrained(theirs)
  for text in texts[:20]:
    assert tokenizer(text)['input_ids'] == before(text)['input_ids']
  # It was trained.
  start = pretrained.read_weights(theirs, model.shape)
  assert any(np.any(start[n] != w) for n, w in model.weights.items())

"""The model card: what an exported model is, in words and numbers.

After Mitchell et al. (2019), "Model Cards for Model Reporting". What a run
cannot know, such as the licence of its data, is left to whoever publishes the
model, in so many words.
"""

import dataclasses
import json
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from models.transformer_config import num_parameters
from tff_fedfish.data import tokenizers
from tff_fedfish.exporting.run_facts import RunFacts
from tff_fedfish.exporting.trained_model import TrainedModel
from tff_fedfish.reporting.evaluations import Interval
from tff_fedfish.version import __version__

# Of the config, what fixes the weights beside model, data and length.
_SECTIONS = (
  'algorithm',
  'client_work',
  'server',
  'cohorts',
  'client_splits',
  'seeds',
)
# What one method or one optimizer alone reads.
_FISHER_NAMES = (
  'fisher_estimator',
  'fisher_reduction',
  'fisher_normalization',
  'relative_floor',
  'ragged_correction',
)
_ADAM_NAMES = ('beta_1', 'beta_2', 'epsilon')

_PRIVACY = """\
- Federated learning was simulated: the texts of all clients lay on the machines
  that trained the model. Nothing was hidden from whoever ran them.
- There is no formal guarantee: updates were not clipped and no noise was added,
  so the model is not differentially private.
- The server took sums over the clients of a round, of their weighted model
  deltas and, with FedFish, of their Fisher diagonals. The sums were formed in
  the clear, without secure aggregation.
- The model may have memorized parts of the texts, personal data among them, and
  may repeat them. Test for that before you publish it.
"""

_SAVED_MODEL = """\
With TensorFlow alone, from `saved_model/`:

```python
import tensorflow as tf

model = tf.saved_model.load('saved_model')
tokens = tf.constant([[5, 7, 6]])
# float32 [batch, length, {vocabulary_size}]: scores of the token to follow.
logits = model.next_token_logits(tokens)['logits']
# float32 [batch]: nats per token, here of the two tokens after the first.
losses = model.row_losses(tokens, tf.constant([2]))['loss']
```

Rows have at most {sequence_length} tokens, for `row_losses` one more. It is for
inference: gradients are not in it, as TensorFlow remarks when it loads it.
"""

_SAFETENSORS = """\
As arrays, from `model.safetensors`, whose metadata hold `config.json` as
`config`:

```python
from safetensors.numpy import load_file

weights = load_file('model.safetensors')
```

The weights of the blocks are stacked along their first axis. Logits are the
product of the last layer and the transposed `token_embedding`.
"""

_VOCABULARIES = {
  tokenizers.WORDPIECE: '`vocabulary/vocab.txt` is a WordPiece vocabulary in '
  "BERT's format.",
  tokenizers.SENTENCEPIECE: '`vocabulary/sentencepiece.model` is a '
  'SentencePiece model.',
}

_LICENCE = """\
A run does not record the licence of its data. It applies to the texts, and may
ask for attribution, or for the same licence, where something is made of them.
Look it up and name it here, and a licence for the weights, before you publish
the model.
"""


def model_card(
  model: TrainedModel, facts: RunFacts, formats: Sequence[str]
) -> str:
  """Returns the card, as Markdown.

  Args:
    model: The model.
    facts: What its run knows, at the model's round.
    formats: What it is exported as: 'saved_model', 'safetensors' or both.
  """
  sections = {
    f'# Language model: {facts.method}, round {model.round_num}': (
      _introduction(model)
    ),
    '## Data': _data(model, facts),
    '## Training': _training(model, facts),
    '## Scores': _scores(model, facts),
    '## Privacy': [_PRIVACY],
    '## How to load it': _loading(model, formats),
    '## Licence': [_LICENCE],
  }
  paragraphs = []
  for heading, section in sections.items():
    paragraphs += [heading, *(paragraph.rstrip('\n') for paragraph in section)]
  return '\n\n'.join(paragraphs) + '\n'


def _introduction(model) -> Iterator[str]:
  shape = model.transformer_config
  yield _prose(
    f'A decoder-only transformer of {num_parameters(shape):,} parameters, '
    'trained from scratch by simulated federated learning. Exported by fedfish '
    f'{__version__}.'
  )
  yield _table(
    ('layers', 'width', 'heads', 'token ids', 'positions', 'products in'),
    [
      (
        shape.num_layers,
        shape.width,
        shape.num_heads,
        shape.vocabulary_size,
        f'{shape.sequence_length:,}, {shape.position_embedding}',
        shape.compute_dtype,
      )
    ],
  )


def _data(model, facts) -> Iterator[str]:
  corpus = facts.corpus
  if corpus is None:
    yield _prose(
      f'The corpus `{facts.corpus_name}`. Nothing more is known of it: '
      f'{facts.remark}.'
    )
  else:
    part = f', part `{corpus.split}`' if corpus.split else ''
    yield _prose(
      f'The corpus `{facts.corpus_name}`, grouped from the layout '
      f'`{corpus.source}` by `{corpus.key}`{part}: '
      f'{corpus.num_documents:,} documents of '
      f'{corpus.num_participating + corpus.num_held_out:,} clients, '
      f'{corpus.num_participating:,} of them for training and '
      f'{corpus.num_held_out:,} held out.'
    )
  tokenizer = model.tokenizer
  yield _prose(
    'Sequences have at most '
    f'{model.transformer_config.sequence_length:,} tokens of a '
    f'{tokenizer.kind} vocabulary of {tokenizer.size:,} pieces'
    + (', in lower case.' if tokenizer.lower_case else '.')
  )


def _training(model, facts) -> Iterator[str]:
  yield _prose(
    f'{facts.method}, round {model.round_num:,} of '
    f'{model.config.training.num_rounds:,}. Until there '
    f'{facts.num_participations:,} clients took part, counted again in every '
    f'round, and {facts.num_tokens:,} tokens were trained on, over all local '
    'epochs.'
  )
  yield _table(('setting', 'value'), _settings(model.config))


def _settings(config) -> Iterator[tuple[str, Any]]:
  # Of images, which are no text.
  unused = {'partition_seed'}
  if config.algorithm.name != 'fed_fish':
    unused.update(_FISHER_NAMES)
  if config.server.optimizer != 'adam':
    unused.update(_ADAM_NAMES)
  for section in _SECTIONS:
    for name, value in dataclasses.asdict(getattr(config, section)).items():
      if name not in unused:
        yield f'`{section}.{name}`', value


def _scores(model, facts) -> Iterator[str]:
  yield f'From metrics.csv, at round {model.round_num:,}:'
  yield _table(('metric', 'value'), _metrics(facts.last_row))
  held_out = facts.held_out_row
  if held_out is not None and held_out['round'] != model.round_num:
    yield f'Held-out clients were last scored at round {held_out["round"]:,}:'
    yield _table(('metric', 'value'), _metrics(held_out, 'held_out/'))
  if facts.evaluations:
    yield _prose(
      'Means over clients, each of which fine-tuned the model on a share of '
      'its data; loss in nats per token, with its 95 % interval:'
    )
    yield _table(
      ('evaluation', 'clients', 'data used', 'loss', 'interval', 'accuracy'),
      _evaluations(facts.evaluations),
    )
  for evaluation in facts.evaluations:
    barrier = evaluation.barrier.get('loss')
    if barrier is not None:
      yield _prose(
        f'Client-Server Barrier (`{evaluation.name}`): {barrier.mean:.4f} nats '
        'per token; lower is better.'
      )
  if facts.num_other_evaluations:
    yield (
      f'Evaluations of other rounds in the run: {facts.num_other_evaluations}.'
    )


def _metrics(row, prefix='') -> Iterator[tuple[str, Any]]:
  for name, value in row.items():
    if value is not None and name != 'round' and name.startswith(prefix):
      yield f'`{name}`', value


def _evaluations(evaluations) -> Iterator[tuple]:
  for evaluation in evaluations:
    for fraction, score in evaluation.fractions.items():
      yield (
        f'`{evaluation.name}` ({evaluation.kind}, `{evaluation.corpus}`)',
        '-' if evaluation.num_clients is None else evaluation.num_clients,
        f'{fraction:.0%}',
        f'{score.loss.mean:.4f}' if score.loss else '-',
        _interval(score.loss),
        f'{score.accuracy.mean:.2%}' if score.accuracy else '-',
      )


def _interval(loss: Interval | None) -> str:
  if loss is None or loss.ci_low is None or loss.ci_high is None:
    return '-'
  return f'{loss.ci_low:.4f} to {loss.ci_high:.4f}'


def _loading(model, formats) -> Iterator[str]:
  tokenizer = model.tokenizer
  yield _prose(
    '`sha256sum --check SHA256SUMS` says whether the files are whole. '
    '`config.json` holds the shape of the model and the settings of its run.'
  )
  if 'saved_model' in formats:
    yield _SAVED_MODEL.format(
      vocabulary_size=tokenizer.size,
      sequence_length=model.transformer_config.sequence_length,
    )
  if 'safetensors' in formats:
    yield _SAFETENSORS
  yield _prose(
    f'{_VOCABULARIES[tokenizer.kind]} In training, token '
    f'{tokenizer.end_of_text_id} stood between two texts: begin with it. Text '
    'to token ids with fedfish:'
  )
  yield (
    '```python\n'
    'from tff_fedfish.data.tokenizers import load_tokenizer\n\n'
    "tokenizer = load_tokenizer('vocabulary')\n"
    "[token_ids] = tokenizer.encode_batch(['Some text.'])\n"
    '```'
  )


def _prose(text: str) -> str:
  # Names, such as that of the corpus, have hyphens that are no syllables'.
  return textwrap.fill(text, 80, break_long_words=False, break_on_hyphens=False)


def _table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
  lines = [header, ['---'] * len(header), *rows]
  return '\n'.join(
    f'| {" | ".join(_cell(value) for value in line)} |' for line in lines
  )


def _cell(value: Any) -> str:
  if isinstance(value, str):
    return value.replace('|', '\\|')
  if isinstance(value, int) and not isinstance(value, bool):
    return f'{value:,}'
  return json.dumps(value)

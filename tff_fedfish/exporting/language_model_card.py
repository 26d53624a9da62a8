"""What a model card says of a language model alone."""

from collections.abc import Iterator, Sequence

from models.transformer_config import num_parameters
from tff_fedfish.data import tokenizers
from tff_fedfish.exporting.card_text import SAFETENSORS, prose, table
from tff_fedfish.exporting.run_facts import RunFacts
from tff_fedfish.exporting.trained_model import TrainedModel
from tff_fedfish.version import __version__

TITLE = 'Language model'
DATA = 'texts'
UNIT = 'token'
LEAK = """\
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

_BLOCKS = """\
The weights of the blocks are stacked along their first axis. Logits are the
product of the last layer and the transposed `token_embedding`.
"""

_VOCABULARIES = {
  tokenizers.WORDPIECE: '`vocabulary/vocab.txt` is a WordPiece vocabulary in '
  "BERT's format.",
  tokenizers.SENTENCEPIECE: '`vocabulary/sentencepiece.model` is a '
  'SentencePiece model.',
}


def introduction(model: TrainedModel) -> Iterator[str]:
  """Yields what the model is."""
  shape = model.shape
  yield prose(
    f'A decoder-only transformer of {num_parameters(shape):,} parameters, '
    'trained from scratch by simulated federated learning. Exported by fedfish '
    f'{__version__}.'
  )
  yield table(
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


def data(model: TrainedModel, facts: RunFacts) -> Iterator[str]:
  """Yields whose texts it was trained on, and as which tokens."""
  corpus = facts.corpus
  if corpus is None:
    yield prose(
      f'The corpus `{facts.corpus_name}`. Nothing more is known of it: '
      f'{facts.remark}.'
    )
  else:
    part = f', part `{corpus.split}`' if corpus.split else ''
    yield prose(
      f'The corpus `{facts.corpus_name}`, grouped from the layout '
      f'`{corpus.source}` by `{corpus.key}`{part}: '
      f'{corpus.num_examples:,} documents of '
      f'{corpus.num_participating + corpus.num_held_out:,} clients, '
      f'{corpus.num_participating:,} of them for training and '
      f'{corpus.num_held_out:,} held out.'
    )
  tokenizer = model.tokenizer
  yield prose(
    'Sequences have at most '
    f'{model.shape.sequence_length:,} tokens of a '
    f'{tokenizer.kind} vocabulary of {tokenizer.size:,} pieces'
    + (', in lower case.' if tokenizer.lower_case else '.')
  )


def loading(model: TrainedModel, formats: Sequence[str]) -> Iterator[str]:
  """Yields how each format is loaded."""
  tokenizer = model.tokenizer
  if 'saved_model' in formats:
    yield _SAVED_MODEL.format(
      vocabulary_size=tokenizer.size,
      sequence_length=model.shape.sequence_length,
    )
  if 'safetensors' in formats:
    yield SAFETENSORS
    yield _BLOCKS
  yield prose(
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

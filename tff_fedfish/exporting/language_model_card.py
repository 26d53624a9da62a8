"""Parts of a model card that only language models have."""

from collections.abc import Iterator, Sequence
from typing import Any

from tff_fedfish.data import tokenizers
from tff_fedfish.exporting.card_text import SAFETENSORS, CardKind, prose
from tff_fedfish.exporting.run_facts import RunFacts
from tff_fedfish.exporting.trained_model import TrainedModel

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


def _sizes(model: TrainedModel) -> dict[str, Any]:
  shape = model.shape
  return {
    'layers': shape.num_layers,
    'width': shape.width,
    'heads': shape.num_heads,
    'token ids': shape.vocabulary_size,
    'positions': f'{shape.sequence_length:,}, {shape.position_embedding}',
    'products in': shape.compute_dtype,
  }


def _corpus(model: TrainedModel, facts: RunFacts) -> str:
  name = f'`{facts.corpus_name}`'
  if facts.corpus is None:
    return name
  manifest = facts.corpus.manifest
  part = f', part `{manifest.split.name}`' if manifest.split else ''
  return (
    f'{name}, grouped from the layout `{manifest.source}` by '
    f'`{manifest.key}`{part}'
  )


def _sequences(model: TrainedModel) -> Iterator[str]:
  tokenizer = model.tokenizer
  yield (
    f'Sequences have at most {model.shape.sequence_length:,} tokens of a '
    f'{tokenizer.kind} vocabulary of {tokenizer.size:,} pieces'
    + (', in lower case.' if tokenizer.lower_case else '.')
  )


def _settings(model: TrainedModel) -> dict[str, Any]:
  partition = model.config.partition
  if not partition.merges_groups:
    return {}
  return {
    'partition.scheme': partition.scheme,
    'partition.num_clients': partition.num_clients,
    'seeds.partition_seed': model.config.seeds.partition_seed,
  }


def _loading(model: TrainedModel, formats: Sequence[str]) -> Iterator[str]:
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


KIND = CardKind(
  title='Language model',
  architecture=lambda model: 'A decoder-only transformer',
  sizes=_sizes,
  examples_name='documents',
  corpus=_corpus,
  data_remarks=_sequences,
  unit='token',
  settings=_settings,
  content_name='texts',
  leak='The model may have memorized parts of the texts, personal data among '
  'them, and may repeat them.',
  loading=_loading,
)
"""Card of language models."""

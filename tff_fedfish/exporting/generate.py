"""Samples text from a model, before and after fine-tuning on a client."""

import dataclasses
import os
import re

import numpy as np

from tff_fedfish.data.client_ids import client_id_to_text
from tff_fedfish.data.sequences import Rows
from tff_fedfish.data.token_store import open_text
from tff_fedfish.errors import UserError
from tff_fedfish.exporting.options import GenerationOptions
from tff_fedfish.exporting.trained_model import (
  TrainedModel,
  find_client,
  load_trained_model,
)
from tff_fedfish.run.row_source import row_source

# Pieces without text: BERT's [CLS], [MASK] and [unused7], SentencePiece's <s>.
_MARKER = re.compile(
  r'\[(PAD|UNK|CLS|SEP|MASK|BOS|EOS|END|unused\d+)\]|'
  r'</?(s|pad|unk|cls|sep|mask|bos|eos)>',
  re.IGNORECASE,
)


@dataclasses.dataclass(frozen=True)
class Samples:
  """Generated texts, each with its prompt."""

  round_num: int
  """Round of the model."""
  before: list[str]
  """Samples of the model of the checkpoint."""
  after: list[str] | None = None
  """Samples of the personalized model, from the same draws; None: no client."""
  client: str | None = None
  """Id, as text, of the client that the model was personalized on."""
  num_sequences: int = 0
  """Sequences of the client; the model was personalized on all of them."""


def generate(
  checkpoint: str | os.PathLike, options: GenerationOptions
) -> Samples:
  """Generates text from a checkpoint's model, or the last one of a run.

  Equal arguments give equal samples.

  Raises:
    UserError: If the checkpoint, the corpus or its client cannot be used, or
      the model's numbers are not finite.
  """
  if options.personalize_on is not None:
    corpus = open_text(options.personalize_on)
    where = f'of {str(corpus.directory)!r}'
    client_id = find_client(
      corpus.client_ids, options.client, '--client', where
    )
  model = load_trained_model(
    checkpoint, client=options.client_id, language_only=True
  )
  if options.personalize_on is not None:
    sequences = _client_sequences(model, corpus, client_id)
  sampler = _Sampler(model, options)
  weights = tuple(model.weights.values())
  before = sampler.texts(
    weights, f'the model of round {model.round_num}', 'another checkpoint'
  )
  if options.personalize_on is None:
    return Samples(model.round_num, before)
  after = sampler.texts(
    _fine_tune(model, sequences, options),
    'the personalized model',
    'a lower `--learning_rate`',
  )
  client = client_id_to_text(client_id)
  return Samples(model.round_num, before, after, client, len(sequences))


class _Sampler:
  """Samples texts from weights; compiles once for all of them."""

  def __init__(self, model: TrainedModel, options: GenerationOptions):
    from models import generation
    from tff_fedfish.runtime import placement

    shape, tokenizer = model.shape, model.tokenizer
    if options.top_k is not None and options.top_k > shape.vocabulary_size:
      raise UserError(
        f'`--top_k` must be at most {shape.vocabulary_size}, the token ids of '
        f'the model, found {options.top_k}. Lower it, or leave it out.'
      )
    placement.set_up_devices()
    self._tokenizer, self._seed = tokenizer, options.seed
    end = tokenizer.end_of_text_id
    [prompt] = tokenizer.encode_batch([options.prompt])
    # In training, too, a document follows the end of another.
    self._prompt = np.append(np.array([end], np.int32), prompt)
    pieces = enumerate(tokenizer.pieces(range(tokenizer.size)))
    without_text = {i for i, piece in pieces if _MARKER.fullmatch(piece)}
    without_text |= {tokenizer.padding_id, tokenizer.unknown_id}
    self._sample = generation.build_sampler(
      shape,
      num_samples=options.num_samples,
      num_tokens=options.num_tokens,
      end_of_text_id=end,
      forbidden_ids=without_text - {end, None},
      temperature=options.temperature,
      top_k=options.top_k,
    )

  def texts(self, weights: tuple, name: str, remedy: str) -> list[str]:
    """Returns the samples; `name` and `remedy` are for the error."""
    import tensorflow as tf

    try:
      rows = self._sample(weights, self._prompt, self._seed).numpy()
    except tf.errors.InvalidArgumentError as error:
      if 'logits are not finite' not in str(error):
        raise
      raise UserError(
        f'Text needs finite logits, but those of {name} are not: its training '
        f'diverged. Use {remedy}.'
      ) from error
    # An ended text is filled up with the end token, which has no text.
    return [self._tokenizer.decode([*self._prompt, *row]) for row in rows]


def _client_sequences(model, corpus, client_id):
  rows = row_source(model.config).client_rows(corpus, model.tokenizer)
  sequences = rows.sequences(client_id)
  if not len(sequences):
    raise UserError(
      '`--client` must have text for a sequence of '
      f'{model.config.data.sequence_length} tokens, but '
      f'{client_id_to_text(client_id)!r} has less. Name another client.'
    )
  return sequences


def _fine_tune(
  model: TrainedModel, sequences: Rows, options: GenerationOptions
) -> tuple:
  from tff_fedfish.evaluation.evaluator import build_evaluator
  from tff_fedfish.evaluation.options import EvaluationOptions
  from tff_fedfish.runtime.in_process_context import set_in_process_context

  set_in_process_context()
  default = EvaluationOptions.personalization_epochs
  rate = model.config.client_work.learning_rate
  return build_evaluator(model.config).fine_tune(
    tuple(model.weights.values()),
    sequences,
    num_local_epochs=options.personalization_epochs or default,
    learning_rate=options.learning_rate or rate,
  )

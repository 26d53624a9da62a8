"""Scores and fine-tunes a model on one client at a time."""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.data import sequences as sequences_lib
from tff_fedfish.data.sequences import Rows
from tff_fedfish.evaluation.clients import ClientSample, Halves
from tff_fedfish.evaluation.tables import ClientEvaluation
from tff_fedfish.rounds import local_training
from tff_fedfish.run import build
from tff_fedfish.runtime.round_options import RoundInterrupted


class Score(NamedTuple):
  """A model's performance on some sequences or images."""

  loss: float
  """Mean cross-entropy per target. Unit: nats."""
  accuracy: float
  """Share of targets whose likeliest prediction is right."""
  num_tokens: int
  """Targets that were predicted."""


class ClientEvaluator:
  """Compiles scoring and fine-tuning once and runs them for many clients."""

  def __init__(self, config: TrainConfig):
    """Builds the graphs at the first call."""
    self._config = config
    functional_model = build.build_model(config).functional_model
    client_optimizer = build.build_client_optimizer(config)
    hparams = client_optimizer.get_hparams(
      client_optimizer.initialize(tf.TensorSpec([], tf.float32))
    )

    @tf.function
    def score(trainable, non_trainable, dataset):
      return functional_model.finalize_metrics(
        local_training.evaluate(
          functional_model, trainable, non_trainable, dataset
        )
      )

    @tf.function
    def fine_tune(
      trainable, non_trainable, dataset, num_local_epochs, learning_rate
    ):
      return local_training.train(
        functional_model,
        client_optimizer,
        {**hparams, 'learning_rate': learning_rate},
        trainable,
        non_trainable,
        dataset,
        num_local_epochs=num_local_epochs,
        micro_batch_size=config.client_work.micro_batch_size,
      ).trainable

    self._score = score
    self._fine_tune = fine_tune

  def score(
    self,
    trainable: tuple[Any, ...],
    sequences: Rows,
    non_trainable: tuple[Any, ...] = (),
  ) -> Score:
    """Returns the performance of the weights on the sequences."""
    metrics = self._score(
      trainable,
      non_trainable,
      sequences_lib.to_dataset(sequences, self._config.evaluation.batch_size),
    )
    return Score(
      float(metrics['loss']),
      float(metrics['accuracy']),
      int(metrics['num_tokens']),
    )

  def fine_tune(
    self,
    trainable: tuple[Any, ...],
    sequences: Rows,
    *,
    num_local_epochs: int,
    learning_rate: float,
    non_trainable: tuple[Any, ...] = (),
  ) -> tuple[tf.Tensor, ...]:
    """Returns the weights after local training on the sequences, in order."""
    # Tensors, so that other values do not compile another graph.
    return self._fine_tune(
      trainable,
      non_trainable,
      sequences_lib.to_dataset(
        sequences, self._config.client_work.local_batch_size
      ),
      tf.constant(num_local_epochs, tf.int64),
      tf.constant(learning_rate, tf.float32),
    )


@build.keep_built
def build_evaluator(config: TrainConfig) -> ClientEvaluator:
  """Returns what scores and fine-tunes the model of a config."""
  return ClientEvaluator(config)


def evaluate_clients(
  evaluator: ClientEvaluator,
  weights_of: Callable[[bytes], tuple],
  clients: Iterable[tuple[bytes, Halves]],
  fractions: tuple[float, ...],
  *,
  num_local_epochs: int,
  learning_rate: float,
  non_trainable: tuple = (),
  model: str = 'global',
) -> Iterator[list[ClientEvaluation]]:
  """Scores every client at every fraction, always on its evaluation half.

  `weights_of` returns the weights that a client starts from; `model` is as in
  `ClientEvaluation`.

  Yields:
    Each client's entries, one per fraction.
  """
  for client_id, halves in clients:
    weights, entries = weights_of(client_id), []
    before = evaluator.score(weights, halves.evaluation, non_trainable)
    for fraction in fractions:
      after, num_sequences = before, 0
      if fraction > 0:
        data = halves.personalization[fraction]
        num_sequences = len(data)
        tuned = evaluator.fine_tune(
          weights,
          data,
          num_local_epochs=num_local_epochs,
          learning_rate=learning_rate,
          non_trainable=non_trainable,
        )
        after = evaluator.score(tuned, halves.evaluation, non_trainable)
      entries.append(
        ClientEvaluation(
          client_id=client_id,
          fraction=fraction,
          num_evaluation_sequences=len(halves.evaluation),
          num_evaluation_tokens=before.num_tokens,
          num_personalization_sequences=num_sequences,
          loss_before=before.loss,
          accuracy_before=before.accuracy,
          loss_after=after.loss,
          accuracy_after=after.accuracy,
          model=model,
        )
      )
    yield entries


def mean_score(
  evaluator: ClientEvaluator,
  trainable: tuple,
  sample: ClientSample,
  *,
  non_trainable: tuple,
  should_stop: Callable[[], bool],
) -> dict[str, float | int]:
  """Returns the uniform mean over clients, and the perplexity of its loss.

  Raises:
    RoundInterrupted: If `should_stop`, asked before each client, says so.
  """
  scores = []
  for _, halves in sample.clients:
    if should_stop():
      raise RoundInterrupted
    scores.append(evaluator.score(trainable, halves.evaluation, non_trainable))
  loss = float(np.mean([score.loss for score in scores]))
  try:
    perplexity = math.exp(loss)
  except OverflowError:
    perplexity = math.inf
  return {
    'held_out/loss': loss,
    'held_out/accuracy': float(np.mean([score.accuracy for score in scores])),
    'held_out/perplexity': perplexity,
    'held_out/num_clients': len(scores),
  }

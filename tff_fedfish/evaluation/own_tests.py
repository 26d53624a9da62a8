"""Clients that train, each scored on its own test or validation rows.

With personal models a client is scored with the model that it would begin the
next round with: after training, FedFomo makes one more federated update. With
any other method the global model is scored.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.data import sequences as sequences_lib
from tff_fedfish.data.divided_clients import DividedClients
from tff_fedfish.data.sequences import Rows
from tff_fedfish.evaluation.evaluator import (
  ClientEvaluator,
  Score,
  build_evaluator,
)
from tff_fedfish.run import build, checkpoints, cohorts, model_state
from tff_fedfish.run.client_inputs import ClientInputs
from tff_fedfish.run.client_state import ClientStates
from tff_fedfish.run.corpus_identity import Corpus
from tff_fedfish.run.row_source import row_source
from tff_fedfish.runtime.in_process_context import set_in_process_context
from tff_fedfish.runtime.round_options import RoundInterrupted


@dataclasses.dataclass(frozen=True, kw_only=True)
class OwnTests:
  """The models after a round, and the clients' rows to score them on."""

  evaluator: ClientEvaluator
  client_rows: DividedClients
  """All rows of the clients."""
  participating: Sequence[bytes]
  """Clients that train."""
  kept: ClientInputs | None
  """Inputs of clients with personal models, of a process with
  `personal_models`. None: clients share the global model."""
  state: Any = None
  """The process's state after the round, with `kept`."""
  round_num: int
  weights: Any = None
  """The global model's weights, without `kept`."""

  def weights_of(self, client_id: bytes) -> tuple[Any, ...]:
    """Returns the trainable weights of a client's model.

    Raises:
      UserError: If a file of its state, or of one that it is given, is damaged.
    """
    if self.kept is None:
      return self.weights.trainable
    client = cohorts.training_client(
      self.kept.config,
      client_id,
      self.client_rows,
      self.round_num + 1,
      self.kept,
    )
    (weights,) = self.kept.process.personal_models(self.state, [client])
    return tuple(weights)

  def rows(
    self, client_id: bytes, *, kind: str, max_sequences: int | None
  ) -> Rows:
    """Returns the rows of a client that are scored; see `scores`."""
    rows_of = self.client_rows.test_sequences
    if kind == 'own_validation':
      rows_of = self.client_rows.validation_sequences
    return sequences_lib.take(rows_of(client_id), max_sequences)

  def scores(
    self,
    client_ids: Sequence[bytes],
    *,
    kind: str = 'own_test',
    max_sequences: int | None = None,
    should_stop: Callable[[], bool] = lambda: False,
  ) -> Iterator[tuple[bytes, int, Score]]:
    """Yields (client, number of rows, score) of every client with rows.

    Args:
      client_ids: The clients.
      kind: Rows to score: 'own_test' or 'own_validation'.
      max_sequences: Maximum number of rows per client. None: all.
      should_stop: Is asked before each client whether to stop.

    Raises:
      RoundInterrupted: If `should_stop` says so.
    """
    fixed = () if self.weights is None else self.weights.non_trainable
    for client_id in client_ids:
      if should_stop():
        raise RoundInterrupted
      rows = self.rows(client_id, kind=kind, max_sequences=max_sequences)
      if len(rows):
        weights = self.weights_of(client_id)
        yield client_id, len(rows), self.evaluator.score(weights, rows, fixed)


def mean_score(scores: Sequence[Score]) -> dict[str, float | int | None]:
  """Returns the uniform mean over clients, as columns of metrics.csv."""
  row = {'personal/num_clients': len(scores)}
  for name in ('loss', 'accuracy'):
    values = [getattr(score, name) for score in scores]
    row[f'personal/{name}'] = float(np.mean(values)) if values else None
  return row


def open_own_tests(
  config: TrainConfig,
  corpus: Corpus,
  tokenizer: Any,
  checkpoint: checkpoints.Checkpoint,
  states: ClientStates | None,
) -> OwnTests:
  """Reads the models of a checkpoint.

  Args:
    config: The run's, in the phase of the checkpoint.
    corpus: Its corpus.
    tokenizer: Its vocabulary; None with images.
    checkpoint: The checkpoint; its tensors are read here.
    states: What clients kept. None: they share the global model.

  Raises:
    UserError: If the checkpoint is not of the config's model.
  """
  source, path = row_source(config), checkpoint.path
  participating = source.training_clients(source.split(corpus))
  set_in_process_context()
  common = dict(
    evaluator=build_evaluator(config),
    client_rows=source.with_test_rows(
      corpus, source.training_rows(corpus, tokenizer)
    ),
    participating=participating,
    round_num=checkpoint.round_num,
  )
  if states is None:
    prefix = model_state.WEIGHTS_PREFIX
    loaded = checkpoints.load_checkpoint(path, prefix, verify=False)
    shapes = model_state.server_shapes(config, checkpoint)
    weights = model_state.model_weights(loaded.tensors, shapes, path)
    return OwnTests(kept=None, weights=weights, **common)
  process = build.build_learning_process(config, num_clients=len(participating))
  kept = ClientInputs(
    config=config, process=process, states=states, participating=participating
  )
  loaded = checkpoints.load_checkpoint(path, verify=False)
  state_type = process.initialize.type_signature.result
  state = model_state.from_tensors(loaded.tensors, state_type, path)
  return OwnTests(kept=kept, state=state, **common)

"""Clients that train, each scored on its own test or validation rows.

With models of clients' own a client is scored with the model that it would
begin the next round with: after training, FedFomo makes one more federated
update. With any other method the global model is scored.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.data import sequences as sequences_lib
from tff_fedfish.data.divided_clients import DividedClients
from tff_fedfish.evaluation.client_evaluator import (
  ClientEvaluator,
  Score,
  build_evaluator,
)
from tff_fedfish.evaluation.results import Affinity, ClientEvaluation
from tff_fedfish.run import (
  build,
  checkpoints,
  cohorts,
  model_state,
  tensor_files,
)
from tff_fedfish.run.candidates import tensor_name
from tff_fedfish.run.client_inputs import ClientInputs
from tff_fedfish.run.client_state import ClientStates
from tff_fedfish.run.row_source import row_source
from tff_fedfish.runtime.in_process_context import set_in_process_context
from tff_fedfish.runtime.round_options import RoundInterrupted


@dataclasses.dataclass(frozen=True, kw_only=True)
class PersonalModels:
  """Models of clients' own after a round, made when they are asked for."""

  kept: ClientInputs
  """With a process that has `personal_models`."""
  state: Any
  """The process's state after the round."""
  round_num: int
  client_rows: DividedClients

  def weights_of(self, client_id: bytes) -> tuple[Any, ...]:
    """Returns the trainable weights with which a client begins the next round.

    Raises:
      UserError: If a file of its state, or of one that it is given, is damaged.
    """
    kept = self.kept
    client = cohorts.training_client(
      kept.config, client_id, self.client_rows, self.round_num + 1, kept
    )
    (weights,) = kept.process.personal_models(self.state, [client])
    return tuple(weights)


def scores(
  evaluator: ClientEvaluator,
  weights_of: Callable[[bytes], tuple[Any, ...]],
  client_rows: DividedClients,
  client_ids: Sequence[bytes],
  *,
  non_trainable: tuple[Any, ...] = (),
  kind: str = 'own_test',
  max_sequences: int | None = None,
  should_stop: Callable[[], bool] = lambda: False,
) -> Iterator[tuple[bytes, int, Score]]:
  """Yields (client, rows, score) of every client with rows of a kind.

  Args:
    evaluator: Scores them.
    weights_of: Returns the trainable weights of a client's model.
    client_rows: All rows of the clients.
    client_ids: The clients.
    non_trainable: Other weights of all models.
    kind: 'own_test' or 'own_validation', the rows to score.
    max_sequences: Rows scored per client, at most. None: all.
    should_stop: Is asked before each client whether to stop.

  Raises:
    RoundInterrupted: If `should_stop` says so.
  """
  rows_of = client_rows.test_sequences
  if kind == 'own_validation':
    rows_of = client_rows.validation_sequences
  for client_id in client_ids:
    if should_stop():
      raise RoundInterrupted
    rows = sequences_lib.take(rows_of(client_id), max_sequences)
    if not len(rows):
      continue
    weights = weights_of(client_id)
    yield client_id, len(rows), evaluator.score(weights, rows, non_trainable)


def mean_score(found: Sequence[Score]) -> dict[str, float | int | None]:
  """Returns the uniform mean over clients, as columns of metrics.csv."""
  row = {'personal/num_clients': len(found)}
  for name in ('loss', 'accuracy'):
    values = [getattr(score, name) for score in found]
    row[f'personal/{name}'] = float(np.mean(values)) if values else None
  return row


class OwnTests:
  """A checkpoint's models, each with the test rows of a client."""

  def __init__(
    self,
    config: TrainConfig,
    corpus: Any,
    tokenizer: Any,
    found: checkpoints.Checkpoint,
    states: ClientStates | None,
  ):
    """Builds the model and, with models of clients' own, the process.

    Without `states`, what clients kept, they share the global model.

    Raises:
      UserError: If the checkpoint is not of the config's model.
    """
    self._config, self._corpus = config, corpus
    source = row_source(config)
    split = row_source(config).split(corpus)
    self.participating = source.training_clients(split)
    self._rows = source.with_test_rows(
      corpus, source.training_rows(corpus, tokenizer)
    )
    set_in_process_context()
    self._evaluator = build_evaluator(config)
    self._kept, self._fixed = None, ()
    if states is None:
      loaded = checkpoints.load_checkpoint(
        found.path, model_state.WEIGHTS_PREFIX, verify=False
      )
      shapes = model_state.server_shapes(config, found)
      weights = model_state.model_weights(loaded.tensors, shapes, found.path)
      self.weights_of = lambda client_id: weights.trainable
      self._fixed = weights.non_trainable
      return
    models = personal_models(
      config, found, states, self._rows, self.participating
    )
    self.weights_of, self._kept = models.weights_of, models.kept

  def evaluate(
    self,
    client_ids: Sequence[bytes],
    *,
    kind: str = 'own_test',
    max_sequences: int | None = None,
    on_client: Callable[[Score], None] = lambda score: None,
  ) -> list[ClientEvaluation]:
    """Returns an entry for every client that has rows of a kind.

    The options are those of `scores`; `on_client` is called with each score.
    """
    model = 'global' if self._kept is None else 'personal'
    entries = []
    for client_id, num_rows, score in scores(
      self._evaluator,
      self.weights_of,
      self._rows,
      client_ids,
      non_trainable=self._fixed,
      kind=kind,
      max_sequences=max_sequences,
    ):
      on_client(score)
      entries.append(
        ClientEvaluation(
          client_id=client_id,
          fraction=0.0,
          num_evaluation_sequences=num_rows,
          num_evaluation_tokens=score.num_tokens,
          num_personalization_sequences=0,
          loss_before=score.loss,
          accuracy_before=score.accuracy,
          loss_after=score.loss,
          accuracy_after=score.accuracy,
          model=model,
        )
      )
    return entries

  def affinities(self) -> list[Affinity]:
    """Returns what clients kept of each other's worth; [] if they keep none."""
    if self._kept is None or 'affinity' not in dict(self._kept.slots):
      return []
    found = []
    for client_id in self.participating:
      path = self._kept.states.path_for(client_id, 10**9)
      if path is None:
        continue
      name = tensor_name('affinity', 0)
      row = tensor_files.read(path, [name])[name]
      cluster = self._cluster(client_id)
      found += [
        Affinity(
          client_id=client_id,
          cluster=cluster,
          candidate_id=other,
          affinity=float(value),
        )
        for other, value in zip(self.participating, row, strict=True)
      ]
    return found

  def _cluster(self, client_id: bytes) -> int:
    """Returns the class that all images of a client have; -1: several."""
    if not self._config.partition.gives_one_class:
      return -1
    return int(self._corpus.labels[self._corpus.client_rows[client_id][0]])


def personal_models(
  config: TrainConfig,
  found: checkpoints.Checkpoint,
  states: ClientStates,
  client_rows: DividedClients,
  participating: Sequence[bytes],
) -> PersonalModels:
  """Returns the models of clients' own after a checkpoint's round.

  Raises:
    UserError: If the checkpoint is not of the config's process.
  """
  process = build.build_learning_process(config, num_clients=len(participating))
  loaded = checkpoints.load_checkpoint(found.path, verify=False)
  return PersonalModels(
    kept=ClientInputs(
      config=config,
      process=process,
      states=states,
      participating=participating,
    ),
    state=model_state.from_tensors(
      loaded.tensors, process.initialize.type_signature.result, found.path
    ),
    round_num=found.round_num,
    client_rows=client_rows,
  )

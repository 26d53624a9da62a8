"""Personal models, each scored on its client's own test rows.

A client is scored with the model that it would begin the next round with: after
training, FedFomo makes one more federated update.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.data import sequences as sequences_lib
from tff_fedfish.data.divided_clients import DividedClients
from tff_fedfish.evaluation.evaluator import ClientEvaluator, build_evaluator
from tff_fedfish.run import build, checkpoints, cohorts, model_state
from tff_fedfish.run.client_inputs import ClientInputs
from tff_fedfish.run.client_state import ClientStates
from tff_fedfish.run.corpus_identity import Corpus
from tff_fedfish.run.row_source import row_source
from tff_fedfish.runtime.in_process_context import set_in_process_context
from tff_fedfish.runtime.round_options import RoundInterrupted


@dataclasses.dataclass(frozen=True, kw_only=True)
class OwnTests:
  """The personal models after a round, and the clients' rows."""

  evaluator: ClientEvaluator
  client_rows: DividedClients
  """All rows of the clients."""
  kept: ClientInputs
  """Their inputs, of a process with `personal_models`."""
  state: Any = None
  """The process's state after the round."""
  round_num: int

  def weights_of(self, client_id: bytes) -> tuple[Any, ...]:
    """Returns the trainable weights of a client's model.

    Raises:
      UserError: If a file of its state, or of one that it is given, is damaged.
    """
    client = cohorts.training_client(
      self.kept.config,
      client_id,
      self.client_rows,
      self.round_num + 1,
      self.kept,
    )
    (weights,) = self.kept.process.personal_models(self.state, [client])
    return tuple(weights)

  def mean_score(
    self,
    client_ids: Sequence[bytes],
    max_sequences: int | None,
    should_stop: Callable[[], bool],
  ) -> dict[str, float | int | None]:
    """Returns the uniform mean over clients, as columns of metrics.csv.

    Each is scored on its first `max_sequences` test rows, None: all. Clients
    without such rows do not count.

    Raises:
      RoundInterrupted: If `should_stop`, asked before each client, says so.
    """
    scores = []
    for client_id in client_ids:
      if should_stop():
        raise RoundInterrupted
      rows = sequences_lib.take(
        self.client_rows.test_sequences(client_id), max_sequences
      )
      if len(rows):
        scores.append(self.evaluator.score(self.weights_of(client_id), rows))
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
  states: ClientStates,
) -> OwnTests:
  """Reads the models of a checkpoint, whose tensors are read here.

  `config` is the run's, in the phase of the checkpoint.

  Raises:
    UserError: If the checkpoint is not of the config's model.
  """
  source, path = row_source(config), checkpoint.path
  participating = source.training_clients(source.split(corpus))
  set_in_process_context()
  process = build.build_learning_process(config, num_clients=len(participating))
  loaded = checkpoints.load_checkpoint(path, verify=False)
  state_type = process.initialize.type_signature.result
  return OwnTests(
    evaluator=build_evaluator(config),
    client_rows=source.with_test_rows(
      corpus, source.training_rows(corpus, tokenizer)
    ),
    kept=ClientInputs(
      config=config,
      process=process,
      states=states,
      participating=participating,
    ),
    state=model_state.from_tensors(loaded.tensors, state_type, path),
    round_num=checkpoint.round_num,
  )

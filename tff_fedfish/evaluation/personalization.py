"""Held-out clients before and after personalization, one after the other."""

from collections.abc import Iterable, Iterator

from tff_fedfish.evaluation.client_evaluator import ClientEvaluator
from tff_fedfish.evaluation.personalization_split import PersonalizationSplit
from tff_fedfish.evaluation.results import ClientEvaluation


def evaluate_clients(
  evaluator: ClientEvaluator,
  trainable: tuple,
  clients: Iterable[tuple[bytes, PersonalizationSplit]],
  fractions: tuple[float, ...],
  *,
  num_local_epochs: int,
  learning_rate: float,
) -> Iterator[list[ClientEvaluation]]:
  """Scores every client at every fraction, always on its evaluation half.

  Args:
    evaluator: Scores and fine-tunes.
    trainable: The global model's weights; every client starts from them.
    clients: Client id and split. The split has a personalization set for
      every fraction above 0.
    fractions: Shares of the client's data to fine-tune on; 0 for none.
    num_local_epochs: Passes of fine-tuning, >= 1.
    learning_rate: Its step size, > 0.

  Yields:
    For each client its entries, one per fraction.
  """
  for client_id, halves in clients:
    before = evaluator.score(trainable, halves.evaluation)
    entries = []
    for fraction in fractions:
      after, num_sequences = before, 0
      if fraction > 0:
        data = halves.personalization[fraction]
        num_sequences = len(data)
        after = evaluator.score(
          evaluator.fine_tune(
            trainable,
            data,
            num_local_epochs=num_local_epochs,
            learning_rate=learning_rate,
          ),
          halves.evaluation,
        )
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
        )
      )
    yield entries

"""What the clients of a round train on, as a function of config and round."""

from collections.abc import Sequence

from tff_fedfish.data.client_sequences import ClientSequences
from tff_fedfish.data.cohorts import draw_cohort
from tff_fedfish.data.sequences import Sequences
from tff_fedfish.training.config import TrainConfig


def cohort_sequences(
  config: TrainConfig,
  participating: Sequence[bytes],
  client_sequences: ClientSequences,
  round_num: int,
) -> list[tuple[bytes, Sequences]]:
  """Returns the cohort of a round and what each client trains on.

  Args:
    config: The run's config.
    participating: Clients that may be drawn.
    client_sequences: Their sequences.
    round_num: 1-based round.

  Returns:
    (client id, shuffled and capped sequences) in the order of the draw.
  """
  cohort = draw_cohort(
    participating,
    seed=config.seeds.cohort_seed,
    round_num=round_num,
    cohort_size=config.cohorts.cohort_size,
  )
  return [
    (
      client_id,
      client_sequences.training_sequences(
        client_id,
        shuffle_seed=config.seeds.shuffle_seed,
        round_num=round_num,
        max_sequences=config.client_work.max_sequences_per_client,
      ),
    )
    for client_id in cohort
  ]

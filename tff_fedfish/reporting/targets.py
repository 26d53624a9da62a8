"""Cost of runs until their held-out loss reached a target.

The target is the highest of the last losses, so that every run reached it.
"""

from collections.abc import Sequence

from tff_fedfish.reporting import match
from tff_fedfish.reporting.runs import Run

_LOSS = 'held_out/loss'


def target_losses(runs: Sequence[Run]) -> dict[match.Key, float]:
  """Returns the target of each `match.sample_of` that at least two runs have.

  Runs without a held-out loss do not count.
  """
  scored = [run for run in runs if run.last(_LOSS) is not None]
  found = match.grouped(scored, match.sample_of)
  return {
    kind: max(run.last(_LOSS) for run in members)
    for kind, members in found.items()
    if len(members) > 1
  }


def cost_of_target(run: Run, target: float) -> dict[str, float]:
  """Returns what a run had cost in the first scored round at a loss, in nats.

  Returns:
    'rounds'; 'tokens', those of all local steps so far (images count as one
    each); 'bytes', uplink and downlink of the whole cohort so far. Empty where
    the loss was never as low.
  """
  num_tokens = 0
  for row in run.metrics:
    num_tokens += row.get('train/num_tokens') or 0
    loss = row.get(_LOSS)
    if loss is not None and loss <= target:
      cost = {'rounds': row['round'], 'tokens': num_tokens}
      total = row.get('communication/total_bytes')
      return cost | ({} if total is None else {'bytes': total})
  return {}

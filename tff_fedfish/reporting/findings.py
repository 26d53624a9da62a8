"""All that a report says of its runs, computed once."""

import functools
from collections.abc import Sequence

from tff_fedfish.reporting import comparisons, equal_bytes, summary
from tff_fedfish.reporting.arms import Arm
from tff_fedfish.reporting.comparisons import Comparison
from tff_fedfish.reporting.equal_bytes import AtEqualBytes
from tff_fedfish.reporting.runs import Run
from tff_fedfish.reporting.scores import Scores, read_scores
from tff_fedfish.reporting.summary import Column


class Findings(Scores):
  """The scores of a report's arms, and what is computed from them."""

  @functools.cached_property
  def columns(self) -> list[Column]:
    """The columns of summary.csv, of the arms."""
    return summary.find_columns(self)

  @functools.cached_property
  def comparisons(self) -> list[Comparison]:
    """All comparisons, by question, pair, subject and fraction."""
    return comparisons.compare(self)

  @property
  def compared_arms(self) -> list[Arm]:
    """The arms of the comparisons."""
    arms = (arm for c in self.comparisons for arm in c.pair.arms)
    return list(dict.fromkeys(arms))

  @functools.cached_property
  def at_equal_bytes(self) -> list[AtEqualBytes]:
    """The pairs of held-out comparisons that differ in traffic."""
    return equal_bytes.compare(self.comparisons)


def read_findings(runs: Sequence[Run]) -> Findings:
  """Returns the findings of the runs of a report."""
  return Findings(**vars(read_scores(runs)))

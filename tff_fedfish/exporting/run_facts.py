"""Facts from the files of a run, for the model card."""

import dataclasses
import pathlib
from collections.abc import Sequence

from tff_fedfish.data.manifest import Manifest
from tff_fedfish.errors import UserError
from tff_fedfish.exporting.trained_model import TrainedModel
from tff_fedfish.reporting.evaluations import Evaluation
from tff_fedfish.reporting.loading import load_runs
from tff_fedfish.reporting.runs import Row
from tff_fedfish.run import run_inputs


@dataclasses.dataclass(frozen=True, kw_only=True)
class CorpusFacts:
  """The corpus of a run, where it still is what the run read."""

  manifest: Manifest | None
  """Grouping of the text; None with images."""
  num_examples: int
  """Documents, or images of participating and held-out clients."""
  num_participating: int
  """Clients that may have been drawn in training."""
  num_held_out: int
  """Clients that took no part in training."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunFacts:
  """A run up to the round of one checkpoint."""

  method: str
  """The title of the run's method."""
  corpus_name: str
  """The name of the corpus's directory."""
  corpus: CorpusFacts | None
  remark: str | None
  """Why `corpus` is None; None where it is not."""
  last_row: Row
  """Row of metrics.csv at the round of the checkpoint."""
  held_out_row: Row | None
  """The last one until there with held-out scores."""
  num_participations: int
  """Clients over all rounds until there; who came twice counts twice."""
  num_tokens: int
  """Tokens, or images, trained on until there, over all local epochs."""
  evaluations: tuple[Evaluation, ...]
  """Evaluations of this checkpoint in the run's directory."""
  num_other_evaluations: int
  """Evaluations of other checkpoints, or of an unknown one."""


def gather(model: TrainedModel) -> RunFacts:
  """Reads metrics, evaluations and, where it is still there, the corpus.

  Args:
    model: The model, with its run.

  Returns:
    The facts.

  Raises:
    UserError: If metrics.csv is missing, lacks the model's round, or a file
      of the run is damaged.
  """
  if not (model.run / 'metrics.csv').is_file():
    raise UserError(
      f'`--checkpoint` must lie in a run with metrics.csv, for the model '
      f'card, but {str(model.run)!r} has none. Restore the file.'
    )
  (run,) = load_runs([model.run])
  rows = [row for row in run.metrics if row['round'] <= model.round_num]
  if not rows or rows[-1]['round'] != model.round_num:
    raise UserError(
      f'{str(model.run / "metrics.csv")!r} must have a row for round '
      f'{model.round_num}, that of the checkpoint, but has none. Restore the '
      'file, or name another checkpoint.'
    )
  evaluations = tuple(
    e for e in run.evaluations if e.round_num == model.round_num
  )
  corpus, remark = _corpus_facts(model)
  return RunFacts(
    method=model.config.method.title,
    corpus_name=pathlib.Path(model.config.data.directory).resolve().name,
    corpus=corpus,
    remark=remark,
    last_row=rows[-1],
    held_out_row=next(
      (row for row in reversed(rows) if row.get('held_out/loss') is not None),
      None,
    ),
    num_participations=_total(rows, 'train/num_clients'),
    num_tokens=_total(rows, 'train/num_tokens'),
    evaluations=evaluations,
    num_other_evaluations=len(run.evaluations) - len(evaluations),
  )


def _corpus_facts(model: TrainedModel) -> tuple[CorpusFacts | None, str | None]:
  """Returns the facts, or why there are none."""
  config = model.config
  try:
    corpus = run_inputs.open_corpus(config, config.data.directory)
    fingerprint = corpus.fingerprint
  except (UserError, OSError):
    return None, 'it could not be read when this was written'
  if fingerprint != model.corpus_fingerprint:
    return None, 'another corpus was in its place when this was written'
  split = run_inputs.split_corpus(config, corpus)
  manifest = None if model.is_of_images else corpus.manifest
  if manifest is None:
    # Where others are held out, the corpus's own held-out clients are not used.
    used = (*split.participating, *split.held_out)
    num_examples = sum(len(corpus.client_rows[i]) for i in used)
  else:
    num_examples = manifest.counts.records_out
  facts = CorpusFacts(
    manifest=manifest,
    num_examples=num_examples,
    num_participating=len(split.participating),
    num_held_out=len(split.held_out),
  )
  return facts, None


def _total(rows: Sequence[Row], name: str) -> int:
  return sum(int(row.get(name) or 0) for row in rows)

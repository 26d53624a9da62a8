"""The model card: values of the template templates/model_card.md.j2."""

import dataclasses
import json
import pathlib
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2

from tff_fedfish.config.optimizer_settings import unread_settings
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.data.images.image_corpora import IMAGE_CORPORA
from tff_fedfish.errors import UserError
from tff_fedfish.exporting.trained_model import TrainedModel
from tff_fedfish.reporting.loading import load_runs
from tff_fedfish.run import run_inputs
from tff_fedfish.version import __version__

# Sections of the config that determine the weights and are not shown elsewhere.
_SECTIONS = (
  'algorithm',
  'client_work',
  'local_privacy',
  'server',
  'cohorts',
  'client_splits',
  'seeds',
)


def gather_values(model: TrainedModel) -> dict[str, Any]:
  """Returns the values of the card, by the names that the template uses.

  Reads metrics and evaluations of the model's run and, if it is still there,
  the corpus.

  Raises:
    UserError: If metrics.csv is missing, lacks the model's round, or a file of
      the run is damaged.
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
  scored = [row for row in rows if row.get('held_out/loss') is not None]
  evaluations = [e for e in run.evaluations if e.round_num == model.round_num]
  data = model.config.data
  corpus, remark = _corpus_facts(model)
  identity, directory = run.identity, pathlib.Path(data.directory)

  def total(name):
    return sum(int(row.get(name) or 0) for row in rows)

  return {
    'model': model,
    'version': __version__,
    'num_parameters': sum(w.size for w in model.weights.values()),
    'corpus_name': (
      identity.label(directory) if identity else directory.resolve().name
    ),
    'names_part': bool(identity and identity.part),
    'corpus': corpus,
    # Why `corpus` is None; None if it is not.
    'remark': remark,
    'image_corpus': IMAGE_CORPORA.get(data.corpus),
    'settings': _settings(model.config),
    # A client counts once per round that it took part in.
    'num_participations': total('train/num_clients'),
    'num_trained_on': total('train/num_tokens'),
    'last_row': rows[-1],
    'held_out_row': scored[-1] if scored else None,
    'evaluations': evaluations,
    'num_other_evaluations': len(run.evaluations) - len(evaluations),
  }


def render(values: Mapping[str, Any], formats: Sequence[str]) -> str:
  """Returns the card of an export in some formats, as Markdown.

  The values are those of `gather_values`.
  """
  environment = jinja2.Environment(
    loader=jinja2.PackageLoader('tff_fedfish.exporting'),
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
  )
  environment.filters |= {'cell': _cell, 'prose': _prose}
  environment.filters['commas'] = '{:,}'.format
  # Without the path on this machine.
  environment.filters['last_name'] = last_name
  template = environment.get_template('model_card.md.j2')
  return template.render(values, formats=formats)


def _corpus_facts(
  model: TrainedModel,
) -> tuple[dict[str, Any] | None, str | None]:
  """Returns (facts, None), or (None, why there are none)."""
  config = model.config
  try:
    corpus = run_inputs.open_corpus(config, config.data.directory)
    fingerprint = corpus.fingerprint
  except (UserError, OSError):
    return None, 'it could not be read when this was written'
  if fingerprint != model.corpus_fingerprint:
    return None, 'another corpus was in its place when this was written'
  split = run_inputs.split_corpus(config, corpus)
  participating, held_out = split.participating, split.held_out
  manifest = corpus.manifest
  if manifest is None:
    # A corpus's own held-out clients are not used if others are held out.
    rows = (corpus.client_rows[i] for i in (*participating, *held_out))
    num_examples = sum(map(len, rows))
  else:
    num_examples = manifest.counts.records_out
  return {
    'manifest': manifest,
    'num_examples': num_examples,
    'num_participating': len(participating),
    'num_held_out': len(held_out),
  }, None


def _settings(config: TrainConfig) -> dict[str, Any]:
  """Returns the settings that were read, and no bound that was not set."""
  unread = {
    f'{section.section}.{name}'
    for section in (config.client_work, config.server)
    for name in unread_settings(section)
  }
  # Only a partition reads it. Whoever knows the other one can take noise away.
  unread |= {'seeds.partition_seed', 'seeds.privacy_seed'}
  if not config.local_privacy.is_on:
    unread |= {f'local_privacy.{name}' for name in vars(config.local_privacy)}
  settings = {
    f'{section}.{name}': value
    for section in _SECTIONS
    for name, value in dataclasses.asdict(getattr(config, section)).items()
    if value is not None and f'{section}.{name}' not in unread
  }
  if config.client_splits.held_out_fraction is None:
    settings['client_splits.held_out_fraction'] = "none: the corpus's own"
  if config.cohorts.cohort_size is None:
    settings['cohorts.cohort_size'] = 'none: all clients'
  return settings | _partition_settings(config)


def _partition_settings(config: TrainConfig) -> dict[str, Any]:
  partition, seed = config.partition, config.seeds.partition_seed
  if partition.scheme is None:
    return {}
  settings = {'scheme': partition.scheme}
  if partition.merges_groups:
    settings['num_clients'] = partition.num_clients
  else:
    settings |= partition.build(partition_seed=seed).parameters()
    if config.client_splits.held_out_fraction is None:
      settings['held_out'] = partition.held_out
  return {
    **{f'partition.{name}': value for name, value in settings.items()},
    'seeds.partition_seed': seed,
  }


def last_name(path: str) -> str:
  """Returns the name of what a path leads to, as config.json has it."""
  return pathlib.Path(path).resolve().name


def _prose(text: str, mark: str = '') -> str:
  """Returns a paragraph, or an item of a list, in lines of 80 characters."""
  # Hyphens also stand in names, such as that of the corpus.
  filled = textwrap.fill(
    re.sub(r'\s*\n\s*', ' ', text.strip()),
    80,
    initial_indent=mark,
    subsequent_indent=' ' * len(mark),
    break_long_words=False,
    break_on_hyphens=False,
  )
  return f'{filled}\n'


def _cell(value: Any) -> str:
  """Returns a table's cell: text as it is, other values as in a config."""
  if isinstance(value, str):
    return value.replace('|', '\\|')
  if isinstance(value, int) and not isinstance(value, bool):
    return f'{value:,}'
  return json.dumps(value)

"""The model card: facts of a run in tables, and three paragraphs."""

import dataclasses
import math
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tff_fedfish import fields
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.data.images.image_corpora import IMAGE_CORPORA
from tff_fedfish.errors import UserError
from tff_fedfish.exporting.trained_model import TrainedModel
from tff_fedfish.methods import registry
from tff_fedfish.printing import count
from tff_fedfish.run import corpus_identity, tables
from tff_fedfish.version import __version__

_SECTIONS = (
  *('algorithm', 'local_privacy', 'client_work', 'server', 'aggregation'),
  *('cohorts', 'client_splits', 'partition', 'seeds'),
)
_HUGGING_FACE_HEADER = """\
---
library_name: transformers
pipeline_tag: text-generation
tags:
- federated-learning
---

"""
_WARNINGS = {
  'Memorization': (
    'The model may have memorized data of its clients, personal data among '
    'them, and may repeat it. Test for that before you publish the model.'
  ),
  'Licence': (
    'A run does not record the licence of its data. Name it here, and a '
    'licence for the weights, before you publish the model.'
  ),
}


def render(model: TrainedModel, formats: Sequence[str]) -> str:
  """Returns the card of an export in some formats, as Markdown.

  It takes its facts from the run's directory; the corpus is not opened.

  Raises:
    UserError: If metrics.csv lacks the model's round.
  """
  config, rows = model.config, _metrics(model)
  kind = 'Image classifier' if model.is_of_images else 'Language model'
  owner = f', client {model.client}' if model.client else ''
  parts = [
    _HUGGING_FACE_HEADER
    * ('huggingface' in formats)
    + f'# {kind}: {config.method.title}, round {model.round_num}{owner}\n\n'
    f'Exported by fedfish {__version__}.\n'
  ]
  for heading, facts in {
    'Model': _shape(model),
    'Data': _data(model),
    'Rounds': _rounds(model, rows),
    'Settings': _settings(config),
  }.items():
    named = ((f'`{name}`', value) for name, value in facts.items())
    parts.append(f'## {heading}\n\n{_table(("", ""), named)}')
  for heading, text in {
    'Scores': _scores(model, rows[-1]),
    'Privacy': _privacy(config, rows[-1]),
    **_WARNINGS,
  }.items():
    parts.append(f'## {heading}\n\n{text}\n')
  return '\n'.join(parts)


def last_name(path: str) -> str:
  """Returns the name of what a path leads to, as config.json has it."""
  return pathlib.Path(path).resolve().name


def _table(headings: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
  lines = [headings, ['---'] * len(headings), *rows]
  cells = ([str(cell).replace('|', '\\|') for cell in line] for line in lines)
  return ''.join(f'| {" | ".join(line)} |\n' for line in cells)


def _metrics(model):
  """Returns the rows of metrics.csv up to the model's round."""
  path = model.run / 'metrics.csv'
  rows = tables.read_metrics(path)
  rows = [row for row in rows if row['round'] <= model.round_num]
  if not rows or rows[-1]['round'] != model.round_num:
    raise UserError(
      f'{str(path)!r} must have a row for round {model.round_num}, that of the '
      'checkpoint, but has none. Restore the file, or name another checkpoint.'
    )
  return rows


def _shape(model):
  facts = {'parameters': sum(w.size for w in model.weights.values())}
  facts |= dataclasses.asdict(model.shape)
  if model.is_of_images:
    is_resnet = model.shape.name == 'resnet18'
    facts['pixels'] = 'standardized' if is_resnet else 'divided by 255'
  if start := model.config.training.start_from:
    facts['trained from'] = last_name(start)
  return {name: value for name, value in facts.items() if value is not None}


def _data(model):
  data = model.config.data
  facts = {'corpus': last_name(data.directory)}
  if model.is_of_images:
    facts['images'] = data.corpus
    facts['values 0 to 255'] = IMAGE_CORPORA[data.corpus].pixels
    return facts
  if identity := corpus_identity.read_identity(model.run):
    facts['corpus'] = identity.label(data.directory)
    facts |= {'source': identity.name, 'grouped by': identity.key}
  tokenizer = model.tokenizer
  facts['vocabulary'] = f'{tokenizer.kind}, {tokenizer.size:,} pieces'
  facts['lower case'] = tokenizer.lower_case
  return facts


def _rounds(model, rows):
  num_clients, num_units = (
    sum(int(row.get(f'train/num_{name}') or 0) for row in rows)
    for name in ('clients', 'tokens')
  )
  unit = 'images' if model.is_of_images else 'tokens'
  round_of = f'{model.round_num} of {model.config.training.num_rounds}'
  if choice := model.choice:
    clients = choice['chosen_on'].replace('held_', 'held-').replace('_', ' ')
    round_of += (
      f'; the best of {choice["best_of_rounds"]} evaluated rounds, chosen on '
      f'{clients}'
    )
  return {
    'round': round_of,
    'client-rounds (clients drawn, summed over rounds)': num_clients,
    f'{unit} trained on': num_units,
  }


def _settings(config: TrainConfig) -> dict[str, Any]:
  """Returns the settings that were read and have a value."""
  facts = {}
  for name in _SECTIONS:
    section = getattr(config, name)
    unread = fields.unread(section, config)
    for setting, value in dataclasses.asdict(section).items():
      if setting not in unread and value is not None:
        facts[f'{name}.{setting}'] = value
  # Whoever knows it can take the noise of DP-SGD away.
  del facts['seeds.privacy_seed']
  if config.partition.scheme is None:
    del facts['seeds.partition_seed']
  if not config.local_privacy.is_on:
    facts.pop('local_privacy.clip_norm', None)
  return facts


def _scores(model: TrainedModel, last: Mapping[str, Any]) -> str:
  """Returns the scores of the model's round, of training and evaluations."""
  rows = []
  for kind in ('held_out', 'personal'):
    loss, accuracy, num_clients = (
      last.get(f'{kind}/{name}') for name in ('loss', 'accuracy', 'num_clients')
    )
    if loss is not None:
      # A diverged model still has an accuracy, that of its NaNs.
      accuracy = accuracy if math.isfinite(loss) else None
      scores = (_number(loss, '.4f'), '', _number(accuracy, '.2%'))
      corpus = _data(model)['corpus']
      rows.append(('in training', corpus, kind, num_clients, '0%', *scores))
  unread = []
  for path in sorted(model.run.glob('evaluations/[!.]*/')):
    try:
      rows += _rows_of_evaluation(path, model.round_num)
    except UserError:
      unread.append(f'Evaluation {path.name} could not be read.')
  if not rows:
    return ' '.join([f'Round {model.round_num} was not evaluated.', *unread])
  caption = (
    'Means over clients of one run: one seed. The 95 % intervals are over '
    'clients and do not cover other seeds.'
  )
  if model.client:
    caption += ' Each client was scored with its own model, not with this one.'
  headings = ('evaluation', 'corpus', 'split', 'clients', 'data used')
  headings += ('loss (nats)', '95 % interval', 'accuracy')
  return '\n'.join([_table(headings, rows), ' '.join([caption, *unread])])


def _rows_of_evaluation(
  path: pathlib.Path, round_num: int
) -> Iterator[Sequence[Any]]:
  """Yields a row per fraction, if the evaluation is of the round."""
  # Late: the errors of an export need not wait for pandas.
  from tff_fedfish.evaluation import statistics
  from tff_fedfish.evaluation.results import read_evaluation

  evaluation = read_evaluation(path)
  summary = evaluation.summary
  if summary.round_num != round_num:
    return
  tuning = summary.personalization
  for scores in statistics.fraction_scores(evaluation.clients):
    loss, used = scores.loss, f'{scores.fraction:.0%}'
    if scores.fraction:
      epochs = count(tuning['epochs'], 'epoch')
      used += f', {epochs} at rate {tuning["learning_rate"]:g}'
    clients, interval = str(loss.num_clients), ''
    if loss.num_non_finite:
      clients += f' of {loss.num_clients + loss.num_non_finite} finite'
    if loss.num_clients > 1:
      interval = f'{loss.ci_low:.4f} to {loss.ci_high:.4f}'
    yield (
      *(path.name, summary.corpus, summary.kind, clients, used),
      *(_number(loss.mean, '.4f'), interval),
      _number(scores.accuracy.mean, '.2%'),
    )


def _number(value: float | None, spec: str) -> str:
  is_finite = value is not None and math.isfinite(value)
  return format(value, spec) if is_finite else 'not finite'


def _privacy(config: TrainConfig, last: Mapping[str, Any]) -> str:
  privacy = config.local_privacy
  parts = [
    'Federated learning was simulated: the data of all clients lay on the '
    'machines that trained the model.',
    _sent(config),
  ]
  if privacy.adds_noise:
    parts.append(
      'Clients trained by DP-SGD. For one training row of a client, epsilon is '
      f'at most {last["privacy/epsilon_max"]:.3g} at delta {privacy.delta:g}. '
      'Numbers of rows, training losses, and what validation and evaluations '
      'read are not covered.'
    )
    if config.training.start_from:
      parts.append('Nor is the training of the model that the run began with.')
    if not privacy.draws_batches:
      parts.append(
        'This assumes Poisson sampling, but batches were shuffled: it is not a '
        'guarantee.'
      )
  elif config.algorithm.name in registry.BUILT_IN:
    parts.append(
      'No noise was added: there is no formal guarantee, and the model is not '
      'differentially private.'
    )
  else:
    parts.append(
      'The method is not of tff-fedfish: whether it adds noise is not known '
      'here.'
    )
  return ' '.join(parts)


def _sent(config: TrainConfig) -> str:
  """Returns a sentence on what clients sent to the server."""
  method = config.method
  uplink = method.traffic(config).uplink
  if not uplink:
    return 'Clients sent nothing to the server.'
  if method.personal(config) or method.solve:
    upload, trained = method.upload(config), 'what each client trained'
    if upload and upload.summary != 'none':
      trained += f", with a summary ({upload.summary}) of each client's data"
    return f'The server was sent {trained}, in the clear.'
  if config.aggregation.is_quantized:
    return (
      'The server was sent what each client trained, in '
      f'{config.aggregation.bits} bits a weight, in the clear.'
    )
  number = f'{uplink:.3g}'
  models = 'one model each' if number == '1' else f'{number} models each'
  if method.features:
    models = 'their models, and in one round of features of their rows'
  return (
    f'The server took sums over the clients of {models}, formed in the clear, '
    'without secure aggregation.'
  )

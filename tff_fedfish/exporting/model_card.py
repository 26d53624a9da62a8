"""The model card: facts of a run in tables, and three paragraphs."""

import contextlib
import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from tff_fedfish import fields
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.data.images.image_corpora import IMAGE_CORPORA
from tff_fedfish.errors import UserError
from tff_fedfish.evaluation import results, statistics
from tff_fedfish.exporting.trained_model import TrainedModel
from tff_fedfish.methods import registry
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
_MEMORIZATION = (
  'The model may have memorized data of its clients, personal data among them, '
  'and may repeat it. Test for that before you publish the model.'
)
_LICENCE = (
  'A run does not record the licence of its data. Name it here, and a licence '
  'for the weights, before you publish the model.'
)


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
    'Scores of one seed': _scores(model, rows),
  }.items():
    lines = [f'## {heading}\n\n| | |\n| --- | --- |\n']
    for name, value in facts.items():
      cell = str(value).replace('|', '\\|')
      lines.append(f'| `{name}` | {cell} |\n')
    parts.append(''.join(lines))
  for heading, text in {
    'Privacy': _privacy(config, rows[-1]),
    'Memorization': _MEMORIZATION,
    'Licence': _LICENCE,
  }.items():
    parts.append(f'## {heading}\n\n{text}\n')
  return '\n'.join(parts)


def last_name(path: str) -> str:
  """Returns the name of what a path leads to, as config.json has it."""
  return pathlib.Path(path).resolve().name


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
  # A client counts once per round that it took part in.
  num_clients, num_tokens = (
    sum(int(row.get(f'train/{name}') or 0) for row in rows)
    for name in ('num_clients', 'num_tokens')
  )
  return {
    'round': f'{model.round_num} of {model.config.training.num_rounds}',
    'client-rounds': num_clients,
    'tokens or images trained on': num_tokens,
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


def _scores(model, rows):
  """Returns the evaluations of the checkpoint, and the loss of training."""
  facts = {}
  directory = model.run / 'evaluations'
  for path in sorted(directory.iterdir()) if directory.is_dir() else ():
    # A damaged one stops no export.
    with contextlib.suppress(UserError):
      found = results.read_evaluation(path)
      if found.summary.round_num == model.round_num:
        facts |= _evaluation(path.name, found)
  for name in ('held_out/loss', 'personal/loss'):
    scored = [row for row in rows if row.get(name) is not None]
    if scored:
      at = f'{name} while training, round {scored[-1]["round"]}'
      facts[at] = f'{scored[-1][name]:.4f}'
  return facts


def _evaluation(name: str, found: results.Evaluation) -> dict[str, str]:
  """Returns a line for each fraction; intervals are over the clients."""
  summary, lines = found.summary, {}
  for scores in statistics.fraction_scores(found.clients):
    loss, place = scores.loss, f'{summary.corpus}, {summary.kind}'
    text = 'no finite loss'
    if loss.mean is not None:
      text = (
        f'loss {loss.mean:.4f} ({loss.ci_low:.4f} to {loss.ci_high:.4f} over '
        f'{loss.num_clients} clients), accuracy {scores.accuracy.mean:.2%}'
      )
    if loss.num_non_finite:
      text += f'; {loss.num_non_finite} clients without a finite loss'
    share = f'personalized on {100 * scores.fraction:g} %'
    lines[f'{place}, {share} ({name})'] = text
  return lines


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

"""The model card: facts of a run in tables, and three paragraphs."""

import contextlib
import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.data.images.image_corpora import IMAGE_CORPORA
from tff_fedfish.errors import FailedError, UserError
from tff_fedfish.exporting.trained_model import TrainedModel
from tff_fedfish.fields import unread as unread_of
from tff_fedfish.methods import registry
from tff_fedfish.run import client_data, corpus_identity, tables
from tff_fedfish.run.row_source import row_source
from tff_fedfish.version import __version__

_SECTIONS = ('client_work', 'server', 'cohorts', 'client_splits', 'seeds')
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelCard:
  """Contents of the card."""

  title: str
  tables: Mapping[str, Mapping[str, Any]]
  """Rows by name, by the heading of their table."""
  paragraphs: Mapping[str, str]
  remark: str | None
  """Why the corpus is not described; None: it is."""

  def render(self, formats: Sequence[str]) -> str:
    """Returns the card of an export in some formats, as Markdown."""
    header = _HUGGING_FACE_HEADER if 'huggingface' in formats else ''
    parts = [f'{header}# {self.title}\n\nExported by fedfish {__version__}.\n']
    for heading, rows in self.tables.items():
      table = ['| | |\n| --- | --- |\n']
      for name, value in rows.items():
        cell = str(value).replace('|', '\\|')
        table.append(f'| `{name}` | {cell} |\n')
      parts.append(f'## {heading}\n\n{"".join(table)}')
    for heading, text in self.paragraphs.items():
      parts.append(f'## {heading}\n\n{text}\n')
    return '\n'.join(parts)


def gather(model: TrainedModel) -> ModelCard:
  """Returns the card; UserError if metrics.csv lacks the model's round."""
  config, rows = model.config, _metrics(model)
  corpus, remark = _corpus(model)

  def total(name):
    return sum(int(row.get(name) or 0) for row in rows)

  owner = f', client {model.client}' if model.client else ''
  kind = 'Image classifier' if model.is_of_images else 'Language model'
  rounds = {
    'round': f'{model.round_num} of {config.training.num_rounds}',
    # A client counts once per round that it took part in.
    'clients that took part': total('train/num_clients'),
    'tokens or images trained on': total('train/num_tokens'),
  }
  of_privacy = ['local_privacy'] * config.local_privacy.is_on
  of_partition = ['partition'] * (config.partition.scheme is not None)
  return ModelCard(
    title=f'{kind}: {config.method.title}, round {model.round_num}{owner}',
    tables={
      'Model': _shape(model),
      'Data': _data(model) | corpus,
      'Rounds': rounds,
      'Method': _settings(config, 'algorithm', *of_privacy),
      'Settings': _settings(config, *_SECTIONS, *of_partition),
      'Scores': _scores(rows),
    },
    paragraphs={
      'Privacy': _privacy(config, rows[-1]),
      'Memorization': _MEMORIZATION,
      'Licence': _LICENCE,
    },
    remark=remark,
  )


def _metrics(model):
  path = model.run / 'metrics.csv'
  found = tables.read_metrics(path)
  rows = [row for row in found if row['round'] <= model.round_num]
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
  """Returns what is known without the corpus."""
  data = model.config.data
  identity = corpus_identity.read_identity(model.run)
  facts = {'corpus': last_name(data.directory)}
  if identity:
    # The tokens may be damaged meanwhile; their directory has a name.
    with contextlib.suppress(UserError):
      facts['corpus'] = identity.label(data.directory)
  if model.is_of_images:
    facts['images'] = data.corpus
    facts['values 0 to 255'] = IMAGE_CORPORA[data.corpus].pixels
  else:
    tokenizer = model.tokenizer
    facts['vocabulary'] = f'{tokenizer.kind}, {tokenizer.size:,} pieces'
    facts['lower case'] = tokenizer.lower_case
  return facts


def _corpus(model: TrainedModel) -> tuple[dict[str, Any], str | None]:
  """Returns (facts, None), or ({}, why there are none)."""
  config = model.config
  try:
    corpus = client_data.open_corpus(config, config.data.directory)
    is_other = corpus.fingerprint != model.corpus_fingerprint
  except (UserError, FailedError, OSError):
    return {}, 'it could not be read when this was written'
  if is_other:
    return {}, 'another corpus was in its place when this was written'
  split = row_source(config).split(corpus)
  facts, manifest = {}, corpus.manifest
  if manifest is None:
    # A corpus's own held-out clients are not used if others are held out.
    ids = (*split.participating, *split.held_out)
    num_examples = sum(len(corpus.client_rows[i]) for i in ids)
  else:
    num_examples = manifest.counts.records_out
    facts = {'source': manifest.source, 'grouped by': manifest.key}
  return {
    **facts,
    'examples': num_examples,
    'clients for training': len(split.participating),
    'clients held out': len(split.held_out),
  }, None


def _scores(rows):
  """Returns the last row, and the last scores of held-out clients."""
  facts = {n: v for n, v in rows[-1].items() if n != 'round' and v is not None}
  scored = [row for row in rows if row.get('held_out/loss') is not None]
  if scored and scored[-1] is not rows[-1]:
    facts['held-out clients were scored at round'] = scored[-1]['round']
    facts |= {n: v for n, v in scored[-1].items() if n.startswith('held_out/')}
  return facts


def _settings(config: TrainConfig, *sections: str) -> dict[str, Any]:
  """Returns the settings that were read, and no bound that was not set."""
  # Whoever knows the seed of noise can take the noise away.
  unread = {'seeds.privacy_seed'}
  if config.partition.scheme is None:
    unread.add('seeds.partition_seed')
  for of in (config.client_work, config.server):
    unread |= {f'{of.section}.{name}' for name in unread_of(of, config)}
  return {
    f'{section}.{name}': value
    for section in sections
    for name, value in dataclasses.asdict(getattr(config, section)).items()
    if value is not None and f'{section}.{name}' not in unread
  }


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
        'This assumes Poisson sampling, but batches were shuffled, so that it '
        'is not a guarantee.'
      )
  else:
    parts.append(
      'No noise was added: there is no formal guarantee, and the model is not '
      'differentially private.'
      if config.algorithm.name in registry.BUILT_IN
      else 'The method is not of tff-fedfish: whether it adds noise is not '
      'known here.'
    )
  return ' '.join(parts)


def _sent(config: TrainConfig) -> str:
  """Returns a sentence on what clients sent to the server."""
  method = config.method
  uplink = method.traffic(config).uplink
  if not uplink:
    return 'Clients sent nothing to the server.'
  if method.personal(config) or method.solver:
    upload, trained = method.upload(config), 'what each client trained'
    if upload and upload.summary != 'none':
      trained += f", with a summary ({upload.summary}) of each client's data"
    return f'The server was sent {trained}, in the clear.'
  number = f'{uplink:.3g}'
  what = 'one model each' if number == '1' else f'{number} models each'
  if method.features:
    what = 'their models, and in one round of features of their rows'
  return (
    f'The server took sums over the clients of {what}, formed in the clear, '
    'without secure aggregation.'
  )


def last_name(path: str) -> str:
  """Returns the name of what a path leads to, as config.json has it."""
  return pathlib.Path(path).resolve().name

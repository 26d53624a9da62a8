"""The model card: what an exported model is, in words and numbers.

After Mitchell et al. (2019), "Model Cards for Model Reporting". What a run
cannot know, such as the licence of its data, is left to whoever publishes the
model, in so many words.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from models.model_shapes import num_parameters
from tff_fedfish.config.optimizer_settings import unread_settings
from tff_fedfish.exporting import image_model_card, language_model_card
from tff_fedfish.exporting.card_text import prose, table
from tff_fedfish.exporting.run_facts import RunFacts
from tff_fedfish.exporting.trained_model import TrainedModel
from tff_fedfish.reporting.evaluations import Interval
from tff_fedfish.version import __version__

# Of the config, what fixes the weights beside model, data and length.
_SECTIONS = (
  'algorithm',
  'client_work',
  'server',
  'cohorts',
  'client_splits',
  'seeds',
)

_LICENCE = (
  'A run does not record the licence of its data. It applies to the {content}, '
  'and may ask for attribution, or for the same licence, where something is '
  'made of them. Look it up and name it here, and a licence for the weights, '
  'before you publish the model.'
)


def model_card(
  model: TrainedModel, facts: RunFacts, formats: Sequence[str]
) -> str:
  """Returns the card, as Markdown.

  Args:
    model: The model.
    facts: What its run knows, at the model's round.
    formats: What it is exported as: 'saved_model', 'safetensors' or both.
  """
  card = image_model_card if model.is_of_images else language_model_card
  kind = card.KIND
  sections = {
    f'# {kind.title}: {facts.method}, round {model.round_num}': (
      _introduction(model, kind)
    ),
    '## Data': _data(model, facts, kind),
    '## Training': _training(model, facts, kind),
    '## Scores': _scores(model, facts, kind),
    '## Privacy': _privacy(model, kind),
    '## How to load it': _loading(model, formats, kind),
    '## Licence': [prose(_LICENCE.format(content=kind.content_name))],
  }
  paragraphs = []
  for heading, section in sections.items():
    paragraphs += [heading, *(paragraph.rstrip('\n') for paragraph in section)]
  return '\n\n'.join(paragraphs) + '\n'


def _introduction(model, kind) -> Iterator[str]:
  num_weights = num_parameters(model.shape)
  yield prose(
    f'{kind.architecture(model)} of {num_weights:,} parameters, trained from '
    'scratch by simulated federated learning. Exported by fedfish '
    f'{__version__}.'
  )
  sizes = kind.sizes(model)
  yield table(tuple(sizes), [tuple(sizes.values())])


def _data(model, facts, kind) -> Iterator[str]:
  name = kind.corpus(model, facts)
  corpus = facts.corpus
  if corpus is None:
    yield prose(
      f'The corpus {name}. Nothing more is known of it: {facts.remark}.'
    )
  else:
    num_clients = corpus.num_participating + corpus.num_held_out
    yield prose(
      f'The corpus {name}: {corpus.num_examples:,} {kind.examples_name} of '
      f'{num_clients:,} clients, {corpus.num_participating:,} of them for '
      f'training and {corpus.num_held_out:,} held out.'
    )
  yield from map(prose, kind.data_remarks(model))


def _training(model, facts, kind) -> Iterator[str]:
  yield prose(
    f'{facts.method}, round {model.round_num:,} of '
    f'{model.config.training.num_rounds:,}. Until there '
    f'{facts.num_participations:,} clients took part, counted again in every '
    f'round, and {facts.num_tokens:,} {kind.unit}s were trained on, over all '
    'local epochs.'
  )
  yield table(
    ('setting', 'value'),
    [(f'`{name}`', value) for name, value in _settings(model, kind).items()],
  )


def _settings(model, kind) -> dict[str, Any]:
  config = model.config
  unread = {
    f'{section.section}.{name}'
    for section in (config.client_work, config.server)
    for name in unread_settings(section)
  }
  # The seed of images, whose settings are their kind's.
  unread.add('seeds.partition_seed')
  settings = {
    f'{section}.{name}': value
    for section in _SECTIONS
    for name, value in dataclasses.asdict(getattr(config, section)).items()
    # None: a bound that was not set.
    if value is not None and f'{section}.{name}' not in unread
  }
  if config.client_splits.held_out_fraction is None:
    settings['client_splits.held_out_fraction'] = "none: the corpus's own"
  if config.cohorts.cohort_size is None:
    settings['cohorts.cohort_size'] = 'none: all clients'
  return settings | kind.settings(model)


def _scores(model, facts, kind) -> Iterator[str]:
  yield from kind.score_remarks
  yield f'From metrics.csv, at round {model.round_num:,}:'
  yield table(('metric', 'value'), _metrics(facts.last_row))
  held_out = facts.held_out_row
  if held_out is not None and held_out['round'] != model.round_num:
    yield f'Held-out clients were last scored at round {held_out["round"]:,}:'
    yield table(('metric', 'value'), _metrics(held_out, 'held_out/'))
  if facts.evaluations:
    yield prose(
      'Means over clients, each of which fine-tuned the model on a share of '
      f'its data; loss in nats per {kind.unit}, with its 95 % interval:'
    )
    yield table(
      ('evaluation', 'clients', 'data used', 'loss', 'interval', 'accuracy'),
      _evaluations(facts.evaluations),
    )
  for evaluation in facts.evaluations:
    barrier = evaluation.barrier.get('loss')
    if barrier is not None:
      yield prose(
        f'Client-Server Barrier (`{evaluation.name}`): {barrier.mean:.4f} nats '
        f'per {kind.unit}; lower is better.'
      )
  if facts.num_other_evaluations:
    yield (
      f'Evaluations of other rounds in the run: {facts.num_other_evaluations}.'
    )


def _metrics(row, prefix='') -> Iterator[tuple[str, Any]]:
  for name, value in row.items():
    if value is not None and name != 'round' and name.startswith(prefix):
      yield f'`{name}`', value


def _evaluations(evaluations) -> Iterator[tuple]:
  for evaluation in evaluations:
    for fraction, score in evaluation.fractions.items():
      yield (
        f'`{evaluation.name}` ({evaluation.kind}, `{evaluation.corpus}`)',
        '-' if evaluation.num_clients is None else evaluation.num_clients,
        f'{fraction:.0%}',
        f'{score.loss.mean:.4f}' if score.loss else '-',
        _interval(score.loss),
        f'{score.accuracy.mean:.2%}' if score.accuracy else '-',
      )


def _interval(loss: Interval | None) -> str:
  if loss is None or loss.ci_low is None or loss.ci_high is None:
    return '-'
  return f'{loss.ci_low:.4f} to {loss.ci_high:.4f}'


def _privacy(model, kind) -> Iterator[str]:
  method = model.config.method
  sentences = (
    f'Federated learning was simulated: the {kind.content_name} of all clients '
    'lay on the machines that trained the model. Nothing was hidden from '
    'whoever ran them.',
    method.privacy(model.config) or _without_guarantee(model.config),
    'The server took sums over the clients of a round, of their '
    f'{method.sends}. The sums were formed in the clear, without secure '
    'aggregation.',
    f'{kind.leak} Test for that before you publish it.',
  )
  yield '\n'.join(prose(sentence, mark='- ') for sentence in sentences)


def _without_guarantee(config):
  max_norm = config.client_work.max_delta_norm
  bound = 'updates were not clipped and'
  if max_norm is not None:
    bound = f'model deltas were clipped to the norm {max_norm:g}, but'
  return (
    f'There is no formal guarantee: {bound} no noise was added, so the model '
    'is not differentially private.'
  )


def _loading(model, formats, kind) -> Iterator[str]:
  yield prose(
    '`sha256sum --check SHA256SUMS` says whether the files are whole. '
    '`config.json` holds the shape of the model and the settings of its run.'
  )
  yield from kind.loading(model, formats)

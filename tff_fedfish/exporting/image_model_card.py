"""What a model card says of a classifier of images alone."""

from collections.abc import Iterator, Sequence
from typing import Any

from tff_fedfish.data.images.image_corpora import IMAGE_CORPORA
from tff_fedfish.exporting.card_text import SAFETENSORS, CardKind, prose
from tff_fedfish.exporting.run_facts import RunFacts
from tff_fedfish.exporting.trained_model import TrainedModel

_NETWORKS = {
  'emnist_cnn': 'A network of two 3 x 3 convolutions, max pooling and one '
  'hidden layer, with dropout in training (Reddi et al., 2021). It takes '
  'pixels divided by 255.',
  'resnet18': 'A ResNet-18 with GroupNorm for small images: the first '
  'convolution is 3 x 3 and no pooling follows it. It takes each image less '
  'its mean, divided by its standard deviation. In training images were padded '
  'by 2 pixels on every side, cropped and flipped at random.',
}

_SAVED_MODEL = """\
With TensorFlow alone, from `saved_model/`, which makes the pixels ready itself:

```python
import tensorflow as tf

model = tf.saved_model.load('saved_model')
images = tf.zeros([1, {height}, {width}, {channels}], tf.uint8)
# float32 [batch, {num_classes}]: scores of the classes.
logits = model.class_logits(images)['logits']
classes = tf.argmax(logits, axis=1)
```

It is for inference: gradients are not in it.
"""

_KERNELS = """\
Kernels of convolutions are [height, width, channels in, channels out], of dense
layers [values in, values out].
"""


_PARTITION_HELD_OUT = {
  'whole': 'Held out is the test split, as one client.',
  'matching': 'Held out are as many, made of the test split: each has the '
  'shares of the classes of one that was trained on.',
}


def _sizes(model: TrainedModel) -> dict[str, Any]:
  shape = model.shape
  names = ('height', 'width', 'channels')
  return {
    'network': shape.name,
    'classes': shape.num_classes,
    **dict(zip(names, shape.image_shape, strict=True)),
  }


def _corpus(model: TrainedModel, facts: RunFacts) -> str:
  return f'`{model.config.data.corpus}` in `{facts.corpus_name}`'


def _clients(model: TrainedModel) -> Iterator[str]:
  config = model.config
  corpus = IMAGE_CORPORA[config.data.corpus]
  scheme = config.partition.scheme
  fraction = config.client_splits.held_out_fraction
  if scheme is None and (fraction is None or not corpus.holds_out):
    yield corpus.own_clients
  else:
    clients = (
      'Clients are those of the train split.'
      if scheme is None
      else f'Clients were made: the scheme `{scheme}` divided the train split '
      'among them.'
    )
    held_out = (
      _PARTITION_HELD_OUT[config.partition.held_out]
      if fraction is None
      else 'A share of them is held out, and the test split was not used.'
    )
    yield f'{clients} {held_out}'
  order = 'as in the corpus'
  if config.data.classes is not None:
    order = 'in the order of `data.classes` in `config.json`'
  yield (
    'Of the values 0 to 255 of an image, '
    f'{corpus.pixels}. Classes are numbered {order}.'
  )


def _settings(model: TrainedModel) -> dict[str, Any]:
  config = model.config
  seed = config.seeds.partition_seed
  partition = config.partition.build(partition_seed=seed)
  if partition is None:
    return {}
  settings = {'scheme': partition.scheme, **partition.parameters()}
  if config.client_splits.held_out_fraction is None:
    settings['held_out'] = config.partition.held_out
  return {
    **{f'partition.{name}': value for name, value in settings.items()},
    'seeds.partition_seed': seed,
  }


def _loading(model: TrainedModel, formats: Sequence[str]) -> Iterator[str]:
  yield prose(_NETWORKS[model.shape.name])
  if 'saved_model' in formats:
    height, width, channels = model.shape.image_shape
    yield _SAVED_MODEL.format(
      height=height,
      width=width,
      channels=channels,
      num_classes=model.shape.num_classes,
    )
  if 'safetensors' in formats:
    yield SAFETENSORS
    yield _KERNELS


KIND = CardKind(
  title='Image classifier',
  architecture=lambda model: f'The network `{model.shape.name}`',
  sizes=_sizes,
  examples_name='images',
  corpus=_corpus,
  data_remarks=_clients,
  unit='image',
  settings=_settings,
  score_remarks=('Tokens and sequences in the names of metrics are images.',),
  content_name='images',
  leak='The model may give away which images it was trained on, and whose.',
  loading=_loading,
)
"""Of classifiers of images."""

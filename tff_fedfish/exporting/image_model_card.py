"""What a model card says of a classifier of images alone."""

from collections.abc import Iterator, Sequence

from tff_fedfish.exporting.card_text import SAFETENSORS, prose, table
from tff_fedfish.exporting.run_facts import RunFacts
from tff_fedfish.exporting.trained_model import TrainedModel
from tff_fedfish.version import __version__

TITLE = 'Image classifier'
DATA = 'images'
UNIT = 'image'
LEAK = """\
- The model may give away which images it was trained on, and whose. Test for
  that before you publish it.
"""

_SAVED_MODEL = """\
With TensorFlow alone, from `saved_model/`:

```python
import tensorflow as tf

model = tf.saved_model.load('saved_model')
images = tf.zeros([1, {height}, {width}, {channels}], tf.uint8)
# float32 [batch, {num_classes}]: scores of the classes.
logits = model.class_logits(images)['logits']
classes = tf.argmax(logits, axis=1)
```

Images are as the corpus has them, values from 0 to 255: what makes them ready
for the model is part of it. It is for inference: gradients are not in it.
"""

_KERNELS = """\
Kernels of convolutions are [height, width, channels in, channels out], of dense
layers [values in, values out].
"""


def introduction(model: TrainedModel) -> Iterator[str]:
  """Yields what the model is."""
  shape = model.shape
  yield prose(
    f'The network `{shape.name}` of {shape.num_parameters:,} parameters, '
    'trained from scratch by simulated federated learning. Exported by fedfish '
    f'{__version__}.'
  )
  yield table(
    ('network', 'classes', 'height', 'width', 'channels'),
    [(shape.name, shape.num_classes, *shape.image_shape)],
  )


def data(model: TrainedModel, facts: RunFacts) -> Iterator[str]:
  """Yields whose images it was trained on, and how they became clients."""
  corpus = facts.corpus
  if corpus is None:
    yield prose(
      f'The corpus `{facts.corpus_name}`. Nothing more is known of it: '
      f'{facts.remark}.'
    )
  else:
    num_clients = corpus.num_participating + corpus.num_held_out
    yield prose(
      f'The corpus `{facts.corpus_name}`: {corpus.num_examples:,} images of '
      f'{num_clients:,} clients, {corpus.num_participating:,} of them for '
      f'training and {corpus.num_held_out:,} held out.'
    )
  scheme = model.config.partition.scheme
  if scheme is None:
    yield 'The clients are those of the corpus.'
  else:
    yield prose(
      f'The clients were made: the scheme `{scheme}` divided the images among '
      'them, as set below.'
    )


def loading(model: TrainedModel, formats: Sequence[str]) -> Iterator[str]:
  """Yields how each format is loaded."""
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

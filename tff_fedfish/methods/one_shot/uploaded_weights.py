"""Uploaded weights by name, checked against the model's shape."""

from collections.abc import Iterator

import numpy as np

from models.model_shapes import ModelShape, weight_shapes
from tff_fedfish.errors import require
from tff_fedfish.methods.one_shot.solving import Upload, Uploads


def checked_uploads(
  uploads: Uploads, shape: ModelShape
) -> Iterator[tuple[Upload, dict[str, np.ndarray]]]:
  """Yields each upload and its weights by name, one client at a time.

  Raises:
    ValueError: If there is no upload, or a client's weights have other shapes
      than the model's or are not finite.
  """
  require(len(uploads) > 0, 'uploads', 'of at least one client', len(uploads))
  shapes = weight_shapes(shape)
  for index, upload in enumerate(uploads):
    found = [tuple(weight.shape) for weight in upload.weights]
    require(
      found == list(shapes.values()),
      f'weights of client {index}',
      f'of the shapes that all clients start from, {list(shapes.values())}',
      found,
    )
    for name, weight in zip(shapes, upload.weights, strict=True):
      is_finite = bool(np.all(np.isfinite(weight)))
      require(is_finite, f'{name} of client {index}', 'finite', 'NaN or inf')
    yield upload, dict(zip(shapes, upload.weights, strict=True))

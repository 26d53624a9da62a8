"""Uploads that another run kept, solved again without training its clients."""

import functools
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tff_fedfish import client_summaries
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.errors import UserError
from tff_fedfish.one_shot import solving
from tff_fedfish.run import (
  checkpoints,
  corpus_identity,
  learning_setup,
  metrics_files,
  run_directory,
)
from tff_fedfish.run.cohort_data import TrainingClient
from tff_fedfish.run.corpus_identity import CorpusIdentity


class KeptUploads:
  """The uploads of the first round of a run, in the form of another method."""

  def __init__(self, run: pathlib.Path, config: TrainConfig):
    """Reads the manifest of a run, and all files once to check them.

    Raises:
      UserError: If there are no uploads, they are not as they were written, or
        they do not hold what is needed.
    """
    self._config, self._run = config, run
    source = run_directory.read_config(run)
    self._given, self._wanted = (
      source.method.upload(source),
      config.method.upload(config),
    )
    path = checkpoints.path_of(run / run_directory.UPLOADS_NAME, 1)
    weighting = source.algorithm.client_weighting
    if config.algorithm.client_weighting != weighting:
      raise UserError(
        '`--config.algorithm.client_weighting` must be that of '
        f'{str(run)!r}, {weighting!r}, whose uploads hold the weights, found '
        f'{config.algorithm.client_weighting!r}. Leave it out.'
      )
    rows = metrics_files.read_metrics(run / 'metrics.csv', drops_cut_off=True)
    if not (first := [row for row in rows if row['round'] == 1]):
      raise UserError(
        f'{str(run)!r} must have finished its first round, but metrics.csv has '
        'no row of it. Wait for the run to finish, or continue it.'
      )
    self._train_metrics = {
      name: value
      for name, value in first[0].items()
      if name.startswith('train/')
    }
    self._uploads = solving.Uploads(path, config.model_shape(), self._given)
    self._uploads.check()
    if self._given.compression not in ('none', self._wanted.compression) or (
      self._given.compression != 'none' and not self._has_summary
    ):
      raise UserError(
        f'The uploads of {str(run)!r} must not be compressed to be solved by '
        f'{config.algorithm.name!r} as it is set. Train the run with '
        '`--config.algorithm.compression=none`.'
      )
    if not self._has_summary and config.client_work.num_local_steps is not None:
      raise UserError(
        f'The uploads of {str(run)!r} have no {self._wanted.summary!r} '
        'summary, which is not computed again with '
        '`client_work.num_local_steps`. Train a run with '
        f'`--config.algorithm.name={config.algorithm.name}`.'
      )

  @property
  def note(self) -> str:
    """One line that says what is used and what is computed."""
    text = f'Solving over {len(self._uploads)} uploads of {str(self._run)!r}'
    if self._has_summary:
      return f'{text}.'
    return (
      f'{text}; their {self._wanted.summary!r} summaries are computed from the '
      "clients' data."
    )

  def require_corpus(self, identity: CorpusIdentity) -> None:
    """Raises UserError unless a corpus is the one that clients trained on."""
    trained_on = corpus_identity.read_identity(self._run)
    if trained_on and trained_on.fingerprint != identity.fingerprint:
      raise UserError(
        '`--config.data.directory` must hold the corpus that '
        f'{str(self._run)!r} trained on, but '
        f'{self._config.data.directory!r} holds another. Name that corpus.'
      )

  def hand_on(
    self,
    clients: Sequence[TrainingClient],
    on_client_output: Callable[[int, Any], None],
  ) -> dict[str, Any]:
    """Hands on the uploads as if the clients of round 1 had just trained.

    A client whose summary is computed and not finite is left out, and counted
    in `train/num_non_finite_clients`, as in training. See `RoundOptions` for
    `on_client_output`.

    Returns:
      The training columns of metrics.csv, those of the other run.
    """
    by_id = {
      client_id: i for i, client_id in enumerate(self._uploads.client_ids)
    }
    metrics = dict(self._train_metrics)
    for index, client in enumerate(clients):
      if client.client_id not in by_id:
        # It was dropped there.
        continue
      upload = self._uploads[by_id[client.client_id]]
      weights, summary = self._converted(client, upload)
      is_valid = all(np.all(np.isfinite(t)) for t in (*weights, *summary))
      metrics['train/num_non_finite_clients'] += not is_valid
      on_client_output(
        index,
        {
          'is_valid': is_valid,
          solving.CLIENT_WEIGHT: (upload.client_weight,),
          solving.WEIGHTS: weights,
          solving.SUMMARY: summary,
        },
      )
    return metrics

  @property
  def _has_summary(self):
    # Compression aside, or nothing to compute.
    same = self._given[:2] == self._wanted[:2]
    return same or self._wanted.summary == 'none'

  def _converted(self, client, upload):
    """Returns weights and summary as the method wants them."""
    if self._given == self._wanted:
      return upload.weights, tuple(upload.summary.values())
    weights = tuple(map(tf.constant, upload.weights))
    if not self._has_summary:
      summary = self._summarize(weights, client.load().data)
    elif self._wanted.summary == 'none':
      summary = {}
    else:
      summary = {k: tf.constant(v) for k, v in upload.summary.items()}
    compress = self._wanted
    if self._given.compression == self._wanted.compression:
      compress = compress._replace(compression='none')
    return (
      client_summaries.compressed_weights(
        self._config.model_shape(), compress, weights
      ),
      client_summaries.compressed(
        self._config.model_shape(), compress, summary
      ),
    )

  @functools.cached_property
  def _summarize(self):
    model = learning_setup.build_model(self._config)
    shape, upload = self._config.model_shape(), self._wanted

    @tf.function
    def summarize(weights, dataset):
      return client_summaries.summarize(model, shape, upload, weights, dataset)

    return summarize

"""Uploads that another run kept, solved again without training its clients."""

import pathlib
from collections.abc import Callable, Sequence
from typing import Any

from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.errors import UserError
from tff_fedfish.methods.one_shot import uploads
from tff_fedfish.run import (
  checkpoints,
  corpus_identity,
  metrics_files,
  run_directory,
)
from tff_fedfish.run.cohort_data import TrainingClient
from tff_fedfish.run.corpus_identity import CorpusIdentity
from tff_fedfish.run.stored_uploads import StoredUploads


class KeptUploads:
  """The uploads of the first round of a run, for another solve."""

  def __init__(self, run: pathlib.Path, config: TrainConfig):
    """Reads the manifest of a run, and all files once to check them.

    Raises:
      UserError: If there are no uploads, they are not as they were written, or
        they do not hold what is needed.
    """
    self._config, self._run = config, run
    source = run_directory.read_config(run)
    given, wanted = source.method.upload(source), config.method.upload(config)
    path = checkpoints.path_of(run / run_directory.UPLOADS_NAME, 1)
    weighting = source.algorithm.client_weighting
    if config.algorithm.client_weighting != weighting:
      raise UserError(
        '`--config.algorithm.client_weighting` must be that of '
        f'{str(run)!r}, {weighting!r}, whose uploads hold the weights, found '
        f'{config.algorithm.client_weighting!r}. Leave it out.'
      )
    if wanted.compression != given.compression:
      raise UserError(
        f'`--config.algorithm.compression` must be that of {str(run)!r}, '
        f'{given.compression!r}, found {wanted.compression!r}. Leave it out.'
      )
    if wanted.summary not in ('none', given.summary):
      raise UserError(
        f'`--uploads` must hold the {wanted.summary!r} summaries that '
        f'{config.algorithm.name!r} needs, found {given.summary!r}. Train a '
        'run with the same settings of `algorithm`.'
      )
    self._has_summary = wanted.summary != 'none'
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
    self._uploads = StoredUploads(path, config.model_shape(), given)
    self._uploads.check()

  @property
  def note(self) -> str:
    """One line that says what is used."""
    return f'Solving over {len(self._uploads)} uploads of {str(self._run)!r}.'

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

    See `RoundOptions` for `on_client_output`.

    Returns:
      The training columns of metrics.csv, those of the other run.
    """
    by_id = {
      client_id: i for i, client_id in enumerate(self._uploads.client_ids)
    }
    for index, client in enumerate(clients):
      if client.client_id not in by_id:
        # It was dropped there.
        continue
      upload = self._uploads[by_id[client.client_id]]
      summary = tuple(upload.summary.values()) if self._has_summary else ()
      on_client_output(
        index,
        {
          'is_valid': True,
          uploads.CLIENT_WEIGHT: (upload.client_weight,),
          uploads.WEIGHTS: upload.weights,
          uploads.SUMMARY: summary,
        },
      )
    return dict(self._train_metrics)

"""`fedfish solve`: uploads that a run kept, solved without training clients."""

import os
import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

from tff_fedfish.config import given
from tff_fedfish.config import load as config_loading
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.errors import UserError
from tff_fedfish.methods.one_shot import uploads as upload_names
from tff_fedfish.run import corpus_identity, run_directory, store, tables
from tff_fedfish.run.cohorts import TrainingClient
from tff_fedfish.run.corpus_identity import CorpusIdentity
from tff_fedfish.run.store import RoundStore
from tff_fedfish.run.uploads import StoredUploads
from tff_fedfish.training.train import train

_CONFIG = run_directory.CONFIG_NAME
_SETTINGS = {
  'training.num_rounds': 1,
  # No client trains, also not to measure the barrier.
  'evaluation.barrier_every_num_rounds': 0,
  # A copy of the same uploads is kept only where it is asked for.
  'algorithm.keeps_uploads': False,
}


def solve(
  uploads: str | os.PathLike,
  workdir: str | os.PathLike | None,
  overrides: Sequence[str],
) -> int:
  """Solves over the uploads of a run, as a run of one round.

  Args:
    uploads: Directory of the run, or its uploads.
    workdir: Directory of the new run. None: beside the other, named after it
      and the method.
    overrides: Settings of `algorithm`, as typed; see `load_config`.

  Returns:
    See `train`.

  Raises:
    UserError: If the run did not keep its uploads, or they do not hold what is
      needed. See also `train`.
  """
  run = pathlib.Path(uploads).resolve()
  if run.name == store.UPLOADS and not (run / _CONFIG).exists():
    run = run.parent
  kept = RoundStore(run / store.UPLOADS).path(1)
  if not kept.exists():
    raise UserError(
      f'`--uploads` {str(uploads)!r} must be a run with the uploads of its '
      f'first round, but {str(kept)!r} does not exist. Train it with '
      '`--config.algorithm.keeps_uploads=true`.'
    )
  config = _solving_config(run / _CONFIG, overrides)
  if config.method.solve is None:
    raise UserError(
      '`--config.algorithm.name` must be a one-shot method, found '
      f'{config.algorithm.name!r}, which has no solver.'
    )
  if workdir is None:
    workdir = run.with_name(f'{run.name}_{config.algorithm.name}')
    print(f'Run: {workdir}')
  if pathlib.Path(workdir).resolve() == run:
    raise UserError(
      f'`--workdir` must be another directory than `--uploads`, {str(run)!r}. '
      'Name a new one.'
    )
  kept_uploads = KeptUploads(run, config)
  print(
    f'Solving over {kept_uploads.num_uploads} uploads of {str(run)!r}.',
    file=sys.stderr,
  )
  return train(config, workdir, kept_uploads=kept_uploads)


def _solving_config(source, overrides):
  """Returns the config of a run for one round of a solver."""
  values = given.read_values(source, overrides)
  may_change = run_directory.MAY_CHANGE - {'training.num_rounds'}
  for name in sorted(values.overridden - may_change):
    if not name.startswith('algorithm.'):
      raise UserError(
        f'`--config.{name}` must be as in {str(source)!r}, whose clients are '
        'used as they were trained. Leave it out.'
      )
  values = values.with_settings(
    {n: v for n, v in _SETTINGS.items() if n not in values.overridden},
    values.source,
  )
  # Other unread settings are those of the run's method.
  return config_loading.build_config(values, required=values.overridden)[0]


class KeptUploads:
  """The uploads of the first round of a run, for another solve.

  Attributes:
    directory: Where they are.
    num_uploads: Clients that uploaded.
  """

  def __init__(self, run: pathlib.Path, config: TrainConfig):
    """Reads the manifest of a run, and all files once to check them.

    Raises:
      UserError: If there are no uploads, they are not as they were written, or
        they do not hold what is needed.
    """
    self._config, self._run = config, run
    source = run_directory.read_config(run)
    given, wanted = source.method.upload(source), config.method.upload(config)
    weightings = [c.algorithm.client_weighting for c in (source, config)]
    for name, there, here in (
      ('client_weighting', *weightings),
      ('compression', given.compression, wanted.compression),
    ):
      if here != there:
        raise UserError(
          f'`--config.algorithm.{name}` must be that of {str(run)!r}, '
          f'{there!r}, found {here!r}. Leave it out.'
        )
    if wanted.summary not in ('none', given.summary):
      raise UserError(
        f'`--uploads` must hold the {wanted.summary!r} summaries that '
        f'{config.algorithm.name!r} needs, found {given.summary!r}. Train a '
        'run with the same settings of `algorithm`.'
      )
    self._has_summary = wanted.summary != 'none'
    rows = tables.read_metrics(run / 'metrics.csv')
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
    shape = config.model_shape()
    self.directory = RoundStore(run / store.UPLOADS).path(1)
    self._uploads = StoredUploads(run / store.UPLOADS, 1, shape, given)
    self._uploads.check()
    self.num_uploads = len(self._uploads)

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
    by_id = {c: i for i, c in enumerate(self._uploads.client_ids)}
    for index, client in enumerate(clients):
      # Without an upload it was dropped there.
      if client.client_id in by_id:
        upload = self._uploads[by_id[client.client_id]]
        summary = tuple(upload.summary.values()) if self._has_summary else ()
        output = {
          'is_valid': True,
          upload_names.CLIENT_WEIGHT: (upload.client_weight,),
          upload_names.WEIGHTS: upload.weights,
          upload_names.SUMMARY: summary,
        }
        on_client_output(index, output)
    return dict(self._train_metrics)

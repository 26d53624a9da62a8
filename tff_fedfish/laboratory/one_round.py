"""`fedfish laboratory`: one round of one cohort, averaged in many ways."""

import dataclasses
import math
import os
import pathlib
import shutil
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from models.model_shapes import weight_shapes
from tff_fedfish import files, printing
from tff_fedfish.config import loading as config_loading
from tff_fedfish.data.sequences import Rows
from tff_fedfish.errors import UserError
from tff_fedfish.evaluation import client_evaluator, evaluation_clients
from tff_fedfish.laboratory import comparison, token_mass, trained_cohort
from tff_fedfish.laboratory.cohort_means import Cohort, Tensors
from tff_fedfish.laboratory.laboratory_file import LaboratoryFile, Point
from tff_fedfish.progress import Progress, Stages
from tff_fedfish.run import (
  checkpoints,
  cohort_data,
  learning_setup,
  run_inputs,
)
from tff_fedfish.runtime.in_process_context import set_in_process_context

LABORATORY_NAME = 'laboratory.csv'
"""Rows of all cells that are done."""
TOKEN_MASS_NAME = 'token_mass.csv'
COMPARISON_NAME = 'comparison.csv'
"""Each weighting minus the plain mean, over seeds."""
_FILE_NAME = 'laboratory.json'
# Factor between step lengths that are tried, and how far from 1 they go.
_STEP_FACTOR = 2.0
_MAX_STEP, _MIN_STEP = 64.0, 1 / 64


def run_laboratory(
  file: LaboratoryFile,
  workdir: str | os.PathLike,
  *,
  checkpoint: str | os.PathLike | None = None,
  keep: bool = False,
) -> pathlib.Path:
  """Trains the cohorts that are left, and returns a CSV file of their rows.

  Args:
    file: What to do.
    workdir: A new directory, or one that the same file has begun.
    checkpoint: Checkpoint or run directory whose model the cohorts start from,
      in the round that follows it. None: the initial model, in round 1.
    keep: Whether what the clients trained stays on disk.

  Raises:
    UserError: If the directory, the checkpoint or the corpus cannot be used.
  """
  workdir = files.require_usable_output(workdir, '--workdir', marker=_FILE_NAME)
  points = file.points()
  start = None
  if checkpoint is not None:
    start = checkpoints.load_checkpoint(
      checkpoints.resolve_checkpoint(checkpoint),
      learning_setup.TRAINABLE_PREFIX,
      verify=True,
    )
  described = file.to_json_dict() | {
    'checkpoint': start and {'round': start.round_num, 'path': str(start.path)},
  }
  begun = workdir / _FILE_NAME
  if begun.exists():
    _require_same(begun, file, described)
  # Before anything is written: it may refuse the corpus.
  laboratory = _Laboratory(file, workdir, start)
  if not begun.exists():
    workdir.mkdir(parents=True, exist_ok=True)
    files.write_json(begun, described)
  (workdir / 'cells').mkdir(exist_ok=True)
  pending = [p for p in points if laboratory.pending_cells(p)]
  num_bytes = trained_cohort.cohort_bytes(
    file.base, file.cohort_sizes[-1], len(file.local_epochs)
  )
  print(
    f'{len(pending)} of {len(points)} cohorts are left; the files of each take '
    f'{printing.format_bytes(num_bytes)}'
    f'{"" if keep else " until its rows are written"}.',
    file=sys.stderr,
  )
  for number, point in enumerate(pending, start=1):
    print(f'Cohort {number}/{len(pending)}: {point.name}', file=sys.stderr)
    laboratory.run(point)
    if not keep:
      shutil.rmtree(laboratory.directory(point))
  return laboratory.write_tables(points)


class _Laboratory:
  """Corpus, scored clients and graphs, which all points share."""

  def __init__(self, file, workdir, start):
    self._file, self._workdir, self._start = file, workdir, start
    set_in_process_context()
    config = file.base
    with Stages()('opening the corpus'):
      corpus = run_inputs.open_corpus(config, config.data.directory)
      tokenizer = run_inputs.open_tokenizer(config, config.data.vocabulary)
    split = run_inputs.split_corpus(config, corpus)
    self._participating = run_inputs.training_clients(config, split)
    self._rows = run_inputs.training_rows(config, corpus, tokenizer)
    largest = config.with_values('cohorts', cohort_size=file.cohort_sizes[-1])
    run_inputs.require_cohort(largest, split)
    self._validation, self._scored = self._choose(config, split.held_out)
    self._trainer = self._spec = self._evaluator = None

  def directory(self, point: Point) -> pathlib.Path:
    """Returns where a point's clients are kept."""
    return self._workdir / 'cohorts' / point.name

  def pending_cells(self, point: Point) -> list[tuple[int, int]]:
    """Returns (local epochs, cohort size) of the cells that are left."""
    return [c for c in self._file.cells() if not self._path(point, c).exists()]

  def run(self, point: Point) -> None:
    """Trains a point's cohort as far as it is not kept, and fills its cells."""
    config, round_num = point.config, 1
    if self._start is not None:
      round_num = self._start.round_num + 1
    weights = self._train(point, config, round_num)
    if self._evaluator is None:
      self._evaluator = client_evaluator.build_evaluator(config)
      self._spec = learning_setup.build_model(config)
    for cell in self.pending_cells(point):
      self._fill(point, cell, weights, round_num)

  def write_tables(self, points: Sequence[Point]) -> pathlib.Path:
    """Writes the rows of all cells that are done, in the points' order."""
    for suffix, name in (('', LABORATORY_NAME), ('-tokens', TOKEN_MASS_NAME)):
      paths = (
        self._path(point, cell, suffix)
        for point in points
        for cell in self._file.cells()
      )
      texts = [p.read_text('utf-8') for p in paths if p.exists()]
      if texts:
        # The header is that of all.
        rows = (text.partition('\n')[2] for text in texts[1:])
        with files.write_atomically(self._workdir / name) as file:
          file.writelines([texts[0], *rows])
    self._write_comparison()
    return self._workdir / LABORATORY_NAME

  def _write_comparison(self):
    """Writes weightings beside the plain mean: a table, a plot, a print."""
    table = comparison.compare(pd.read_csv(self._workdir / LABORATORY_NAME))
    _write_rows(
      self._workdir / COMPARISON_NAME,
      table.astype(object).where(table.notna(), None).to_dict('records'),
    )
    unit = 'image' if self._file.base.data.holds_images else 'token'
    drawn = comparison.figure(table, unit)
    for file_format in ('png', 'svg'):
      path = self._workdir / f'{drawn.name}.{file_format}'
      with files.write_atomically(path, 'wb') as file:
        file.write(drawn.file(file_format))
    shown = table[table['weighting'].isin(comparison.main_weightings(table))]
    keys = [name for name in table.columns if '.' in name]
    printing.print_table(
      f'Held-out loss minus the plain mean, nats per {unit}, 95 % interval',
      [
        *(*keys, 'E', 'clients', 'weighting', 'step 1', 'best step'),
        *("minus another's F", 'seeds'),
      ],
      [
        [
          *(f'{row[key]}' for key in keys),
          f'{row["local_epochs"]}',
          f'{row["cohort_size"]}',
          row['weighting'],
          *(_interval(row, m) for m in ('loss', 'best_loss', 'control')),
          f'{row["num_seeds"]}',
        ]
        for row in shown.to_dict('records')
      ],
      text_columns=(len(keys) + 2,),
    )

  def _choose(self, config, held_out) -> tuple[Rows, Rows]:
    """Returns the rows of validation clients, and of those that are scored."""
    file = self._file
    wanted = file.num_validation_clients + file.num_scored_clients
    sample = evaluation_clients.choose_clients(
      held_out,
      self._rows,
      split_seed=config.seeds.split_seed,
      split_unit=config.evaluation.split_unit,
      max_clients=wanted,
      max_sequences=file.max_sequences_per_client,
    )
    rows = [halves.evaluation for _, halves in sample.clients]
    if len(rows) < wanted:
      raise UserError(
        f'`num_validation_clients` and `num_scored_clients` in {file.path!r} '
        f'are {wanted} together, but only {len(rows)} held-out clients of '
        f'{config.data.directory!r} are large enough. Lower them.'
      )
    return (
      _pooled(rows[: file.num_validation_clients]),
      _pooled(rows[file.num_validation_clients :]),
    )

  def _train(self, point, config, round_num) -> Tensors:
    stops = self._file.local_epochs
    directory = self.directory(point)
    directory.mkdir(parents=True, exist_ok=True)
    if self._start is None:
      weights = trained_cohort.initial_weights(config)
    else:
      shapes = weight_shapes(config.model_shape())
      weights = tuple(
        learning_setup.trainable_by_name(
          self._start.tensors, shapes, self._start.path
        ).values()
      )
    cohort = cohort_data.cohort(
      config, self._participating, self._rows, round_num
    )
    with Progress('train', len(cohort), unit='client') as progress:
      for position, client in enumerate(cohort):
        paths = {
          stop: trained_cohort.stored_path(directory, position, stop)
          for stop in stops
        }
        if not all(path.exists() for path in paths.values()):
          if self._trainer is None or not self._trainer.fits(config):
            self._trainer = trained_cohort.Trainer(config, stops)
          trained = self._trainer.train(config, weights, client)
          for stop, path in paths.items():
            trained_cohort.store(path, trained[stop])
        progress.advance()
    return weights

  def _fill(self, point, cell, weights, round_num):
    """Writes a cell's rows, those of the tokens first."""
    local_epochs, cohort_size = cell
    directory = self.directory(point)
    clients = [
      trained_cohort.StoredClient(
        trained_cohort.stored_path(directory, position, local_epochs)
      )
      for position in range(cohort_size)
    ]
    clients = [client for client in clients if client.weight > 0]
    if not clients:
      raise UserError(
        f'No client of cohort {point.name} has a finite update after '
        f'{local_epochs} local epochs. Lower the client learning rate.'
      )
    cohort = Cohort(
      clients,
      relative_floor=point.config.algorithm.relative_floor,
      makes_logits=self._spec.makes_logits or (),
    )
    tokens = None
    if self._spec.makes_logits:
      tokens = token_mass.TokenMass(
        point.config.model_shape(),
        self._scored,
        [
          client.sequences()
          for client in cohort_data.cohort(
            point.config, self._participating, self._rows, round_num
          )[:cohort_size]
        ],
      )
    identity = {
      **point.settings,
      'round': round_num,
      'local_epochs': local_epochs,
      'cohort_size': cohort_size,
      'num_clients': len(clients),
    }
    start = self._evaluator.score(weights, self._scored)
    rows, token_rows = [], []
    weightings = self._file.weightings
    with Progress(
      f'E={local_epochs}, {cohort_size} clients',
      len(weightings),
      unit='weighting',
    ) as progress:
      for weighting in weightings:
        named = identity | dataclasses.asdict(weighting)
        mean = cohort.mean(weighting)

        def score(step, rows, mean=mean):
          return self._evaluator.score(_stepped(weights, mean, step), rows)

        step, validated = _best_step(
          lambda step, score=score: score(step, self._validation).loss
        )
        after, best = score(1, self._scored), score(step, self._scored)
        row = named | {
          'start_loss': start.loss,
          'loss': after.loss,
          'accuracy': after.accuracy,
          'best_step': step,
          'best_validation_loss': validated,
          'best_loss': best.loss,
          'best_accuracy': best.accuracy,
          **cohort.compare(weighting, mean),
        }
        if tokens is not None:
          found, divergence = tokens.measure(_stepped(weights, mean, 1))
          row['marginal_kl'] = divergence
          token_rows += [named | measured for measured in found]
        rows.append(row)
        progress.advance(loss=after.loss)
    if token_rows:
      _write_rows(self._path(point, cell, '-tokens'), token_rows)
    _write_rows(self._path(point, cell), rows)

  def _path(self, point, cell, suffix=''):
    name = f'{point.name}-E{cell[0]}-N{cell[1]}{suffix}.csv'
    return self._workdir / 'cells' / name


def _interval(row, measure):
  difference = row[f'{measure}_difference']
  text = '' if math.isnan(difference) else f'{difference:+.4f}'
  if math.isfinite(row[f'{measure}_half_width']):
    text += f' ± {row[f"{measure}_half_width"]:.4f}'
  return text


def _best_step(loss: Callable[[float], float]) -> tuple[float, float]:
  """Returns the step length with the smallest loss, and that loss.

  Doubles the step from 1 while the loss falls; where the first doubling does
  not help, halves it in the same way.
  """
  best = (1.0, _finite(loss(1.0)))
  for factor in (_STEP_FACTOR, 1 / _STEP_FACTOR):
    step = best[0] * factor
    while _MIN_STEP <= step <= _MAX_STEP:
      found = _finite(loss(step))
      if found >= best[1]:
        break
      best, step = (step, found), step * factor
    if best[0] > 1:
      break
  return best


def _finite(value):
  return value if math.isfinite(value) else math.inf


def _stepped(weights, mean, step):
  return tuple(
    weight - np.float32(step) * tensor
    for weight, tensor in zip(weights, mean, strict=True)
  )


def _pooled(rows: Sequence[Rows]) -> Rows:
  """Returns the rows of several clients as those of one."""
  arrays = {
    field.name: np.concatenate([getattr(r, field.name) for r in rows])
    for field in dataclasses.fields(rows[0])
    if isinstance(getattr(rows[0], field.name), np.ndarray)
  }
  return dataclasses.replace(rows[0], **arrays)


def _write_rows(path, rows: Sequence[dict[str, Any]]):
  names = list(rows[0])
  table = files.csv_file(names, ([row[n] for n in names] for row in rows))
  with files.write_atomically(path) as file:
    file.write(table)


def _require_same(path, file, described):
  """Raises UserError if the directory of `path` was begun with another file."""
  found = files.parse_json(path.read_text('utf-8'))
  base = config_loading.from_json_dict(found['config'], str(path))
  # Points and larger cohorts may be added.
  changed = [
    *config_loading.differences(base, file.base),
    *(
      name
      for name in described.keys() - {'config', 'grid', 'cohort_sizes'}
      if described[name] != found.get(name)
    ),
  ]
  if changed:
    raise UserError(
      f'`--workdir` {str(path.parent)!r} was begun with another '
      f'{", ".join(map(repr, sorted(changed)))}. Use the same file, overrides '
      'and checkpoint, or a new directory.'
    )

"""The best round by rows of metrics.csv, and the checkpoint that it means."""

import math
import re

import numpy as np
import pytest

from tff_fedfish import files
from tff_fedfish.errors import UserError
from tff_fedfish.run import best_round, checkpoints, divergence
from tff_fedfish.run.checkpoint_writer import CheckpointWriter, save_checkpoint

_LOSSES = (5.0, None, 4.0, 4.0, math.nan, 3.5, math.inf, 3.6)


def _rows(losses, column='held_out/loss'):
  return [{'round': r, column: loss} for r, loss in enumerate(losses)]


@pytest.mark.parametrize(
  ('last', 'best', 'superseded', 'num_rounds', 'num_without_lower'),
  [
    (0, 0, set(), 1, 0),
    # Round 1 was not evaluated.
    (1, 0, set(), 1, 0),
    (2, 2, {0}, 2, 0),
    # As low as round 2, which was earlier.
    (3, 2, {0}, 3, 1),
    (4, 2, {0}, 4, 2),
    (5, 5, {0, 2}, 5, 0),
    (7, 5, {0, 2}, 7, 2),
  ],
)
def test_best_by_hand(last, best, superseded, num_rounds, num_without_lower):
  scored = best_round.ScoredRounds(_rows(_LOSSES[: last + 1]))
  assert (scored.best, scored.superseded) == (best, superseded)
  assert scored.num_rounds == num_rounds
  assert scored.num_without_lower == num_without_lower
  assert scored.chosen_on == 'held_out_clients'


def test_validation_clients_choose_where_there_are_some():
  rows = [
    {'round': r, 'held_out/loss': held_out, 'validation/loss': validation}
    for r, held_out, validation in ((0, 1.0, 3.0), (1, 2.0, 2.0), (2, 0.5, 2.5))
  ]
  scored = best_round.ScoredRounds(rows)
  assert (scored.best, scored.chosen_on) == (1, 'validation_clients')


@pytest.mark.parametrize(
  ('patience', 'has_stopped'), [(None, False), (2, True), (3, False)]
)
def test_patience(patience, has_stopped, tmp_path):
  history = divergence.RoundHistory(tmp_path, 0, _rows(_LOSSES), patience)
  assert history.has_stopped_early == has_stopped
  line = (
    'Stopped early: round 7 of 9, 2 evaluations without a lower loss; a run '
    'with `--config.training.patience` None or above 2 goes on'
  )
  assert history.early_stop_line(9) == line * has_stopped
  # All rounds are done.
  assert not history.early_stop_line(7)


def _tensors(round_num):
  return {'weight': np.full(3, round_num, np.float32)}


@pytest.mark.parametrize(
  ('keep_last', 'kept'), [(0, [0, 5, 7, 10, 11]), (1, [0, 7, 10, 11])]
)
def test_only_the_best_so_far_is_kept(tmp_path, keep_last, kept):
  best = {3: 3, 5: 5, 6: 6, 7: 7, 10: 7, 11: 7}
  for round_num, now in best.items():
    with CheckpointWriter(
      tmp_path, keep_last=keep_last, is_regular=lambda r: r % 5 == 0
    ) as writer:
      if round_num == 3:
        writer.save(0, _tensors(0), {})
      superseded = {r for r in (3, 5, 6) if r < now}
      writer.save(round_num, _tensors(round_num), {}, {now}, superseded)
  assert checkpoints.list_rounds(tmp_path) == kept


def _run(directory, losses, saved):
  """Writes a run's checkpoints and metrics.csv."""
  for round_num in saved:
    save_checkpoint(
      directory / 'checkpoints', round_num, _tensors(round_num), {}
    )
  cells = [['round', 'held_out/loss'], *enumerate(losses)]
  text = files.csv_lines([[c, '' if v is None else v] for c, v in cells])
  (directory / 'metrics.csv').write_text(text)
  return directory


def test_a_run_at_its_best_is_its_best_checkpoint(tmp_path):
  run = _run(tmp_path / 'run', _LOSSES, (0, 5, 7))
  path = checkpoints.path_of(run / 'checkpoints', 5)
  assert divergence.resolve_checkpoint(f'{run}@best') == path
  assert best_round.choice(f'{run}@best') == {
    'best_of_rounds': 7,
    'chosen_on': 'held_out_clients',
  }
  # The same model is no choice by another name.
  assert best_round.choice(run) == best_round.choice(path) == {}


def test_rows_after_the_last_checkpoint_do_not_count(tmp_path):
  """A run was killed between the row of round 5 and its checkpoint."""
  run = _run(tmp_path / 'run', _LOSSES[:6], (0, 2, 4))
  path = checkpoints.path_of(run / 'checkpoints', 2)
  assert divergence.resolve_checkpoint(f'{run}@best') == path


@pytest.mark.parametrize(
  ('losses', 'saved', 'words'),
  [
    (_LOSSES, (0, 7), 'but that of round 5 was not kept'),
    ([None, None], (0, 1), 'but no evaluated round has a finite loss'),
    ([math.nan], (0,), 'but no evaluated round has a finite loss'),
  ],
)
def test_without_its_checkpoint(losses, saved, words, tmp_path):
  run = _run(tmp_path / 'run', losses, saved)
  with pytest.raises(UserError, match=re.escape(words)) as caught:
    divergence.resolve_checkpoint(f'{run}@best')
  text = str(caught.value)
  assert text.startswith(f"`--checkpoint` '{run}@best' needs the checkpoint")
  assert '`--config.checkpoints.keep_best=True`' in text


def test_no_run_has_no_best(tmp_path):
  path = save_checkpoint(tmp_path / 'checkpoints', 1, _tensors(1), {})
  file = tmp_path / 'file'
  file.touch()
  for name in (tmp_path / 'nothing', path, file):
    with pytest.raises(UserError, match='`--checkpoint`.* run directory'):
      divergence.resolve_checkpoint(f'{name}@best')

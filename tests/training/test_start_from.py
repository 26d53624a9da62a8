"""A new run that begins with the weights of another run's checkpoint."""

import contextlib
import csv
import io
import json
import shutil

import numpy as np
import pytest
import small_image_folders
import small_image_runs
import small_runs

from models.image_models import initial_weights
from tff_fedfish.cli.main import main
from tff_fedfish.config import load as config_loading
from tff_fedfish.data.tokenizers import load_tokenizer
from tff_fedfish.errors import UserError
from tff_fedfish.exporting.export import json_config
from tff_fedfish.exporting.trained_model import load_trained_model
from tff_fedfish.run import checkpoints, start_model
from tff_fedfish.training import check

_TRAINABLE = 'global_model_weights/trainable/'
_HEAD = ('head/kernel', 'head/bias')


def _round(run, round_num):
  return checkpoints.path_of(run / 'checkpoints', round_num)


def _tensors(run, round_num):
  return checkpoints.load_checkpoint(_round(run, round_num)).tensors


def _row(run, round_num):
  with open(run / 'metrics.csv', newline='') as file:
    return list(csv.DictReader(file))[round_num]


def _config(inputs, start, **settings):
  arguments = small_runs.overrides(
    *inputs, training__start_from=start, **settings
  )
  return config_loading.load_config(small_runs.CONFIG, arguments)


def _check(inputs, start, **settings):
  config = _config(inputs, start, **settings)
  return start_model.check(config, load_tokenizer(inputs[1]))


@pytest.mark.slow
class TestText:
  @pytest.fixture(scope='class')
  def start(self, small_run, tmp_path_factory):
    """A run that is gone once the run from it has begun."""
    return shutil.copytree(small_run, tmp_path_factory.mktemp('start') / 'run')

  @pytest.fixture(scope='class')
  def run(self, start, small_inputs, tmp_path_factory):
    """A run of one round, from the last checkpoint of four rounds."""
    workdir = tmp_path_factory.mktemp('started') / 'run'
    settings = dict(training__start_from=start, training__num_rounds=1)
    assert small_runs.train(small_inputs, workdir, **settings) == 0
    (begun,) = small_runs.starts(workdir)
    assert begun['reads'] == {
      'start_from': small_runs.round_read(_round(start, 4))
    }
    shutil.rmtree(start)
    return workdir

  def test_weights_are_those_of_the_last_checkpoint(self, run, small_run):
    given, drawn = (_tensors(small_run, number) for number in (4, 0))
    found = _tensors(run, 0)
    assert found.keys() == given.keys()
    for name, tensor in found.items():
      if name.startswith(_TRAINABLE):
        np.testing.assert_array_equal(tensor, given[name])
      else:
        # The server optimizer starts fresh: its moments differ from round 4's.
        np.testing.assert_array_equal(tensor, drawn[name])
    assert any(np.any(given[name] != drawn[name]) for name in given)

  def test_it_scores_as_that_model_does(self, run, small_run):
    scores = {
      name: value
      for name, value in _row(small_run, 4).items()
      if name.startswith('held_out/')
    }
    assert any(scores.values())
    row = _row(run, 0)
    assert {name: row[name] for name in scores} == scores

  def test_a_resumed_run_does_not_read_it(
    self, run, start, small_inputs, tmp_path, capsys
  ):
    workdir = shutil.copytree(run, tmp_path / 'resumed')
    settings = dict(training__start_from=start, training__num_rounds=2)
    assert not start.exists()
    assert small_runs.train(small_inputs, workdir, **settings) == 0
    printed = capsys.readouterr().err
    assert 'Continuing after round 1' in printed
    assert 'Initial weights from' not in printed
    # Elsewhere it would be a new run.
    other = tmp_path / 'other'
    assert small_runs.train(small_inputs, other, **settings) == 2
    assert f"but '{start}' does not exist" in capsys.readouterr().err

  def test_another_start_is_another_run(self, run, small_inputs, capsys):
    settings = dict(training__start_from='elsewhere', training__num_rounds=2)
    assert small_runs.train(small_inputs, run, **settings) == 2
    assert 'another config: training.start_from ' in capsys.readouterr().err

  def test_an_export_does_not_name_the_directory(self, run, start):
    config = json_config(load_trained_model(run))
    assert config['run']['training']['start_from'] == start.name
    kept = json.loads((run / 'config.json').read_text())
    assert kept['training']['start_from'] == str(start)


def test_a_checkpoint_or_the_last_of_a_run(small_inputs, small_run):
  found = _check(small_inputs, _round(small_run, 2))
  assert found.checkpoint == _round(small_run, 2).resolve()
  assert found.drawn == ()
  assert found.taken == tuple(found.shapes)
  found = _check(small_inputs, small_run)
  assert found.checkpoint == _round(small_run, 4).resolve()


@pytest.mark.parametrize(
  ('settings', 'words'),
  [
    (
      {'model__width': 32},
      r"'token_embedding' must have shape \[256, 32\] as in the model of this "
      r"run, but in '.*round_00000004' it has \[256, 16\]. Name a checkpoint",
    ),
    (
      {'data__sequence_length': 9},
      r"'position_embedding' must have shape \[9, 16\] as",
    ),
    # Kernels have the same shapes whatever the number of heads.
    (
      {'model__num_heads': 4},
      r'`config.model.num_heads` must be 2, as in .*, found 4. Set',
    ),
    (
      {'model__position_embedding': 'rotary'},
      r"'position_embedding' must have shape none as .* it has \[8, 16\]",
    ),
  ],
)
def test_another_model_is_refused(settings, words, small_inputs, small_run):
  with pytest.raises(UserError, match=words) as caught:
    _check(small_inputs, small_run, **settings)
  assert '\n' not in str(caught.value)


@pytest.mark.slow
def test_images_are_no_start_for_text(small_inputs, small_image_run):
  with pytest.raises(UserError, match="tensor '.*' must have shape .* none"):
    _check(small_inputs, small_image_run)


def test_runs_that_differ_in_their_start_are_all_checked(small_inputs):
  configs = [_config(small_inputs, name) for name in ('None', 'one', 'two')]
  assert configs[0].training.start_from is None
  first, second = check.problems_of(configs)
  assert "one' does not exist" in first
  assert "two' does not exist" in second


class TestHead:
  @pytest.fixture(scope='class')
  def arguments(self, small_image_run, tmp_path_factory):
    """Images as large as MNIST's, in two classes."""
    folder = tmp_path_factory.mktemp('folder') / 'own'
    small_image_folders.write_folder(folder, side=28, num_images=2)
    return ['--config', small_image_runs.CONFIG] + small_image_runs.overrides(
      folder,
      data__corpus='image_folder',
      client_splits__held_out_fraction=0.5,
      cohorts__cohort_size=2,
      training__num_rounds=1,
      evaluation__num_clients=0,
      training__start_from=small_image_run,
    )

  @pytest.fixture(scope='class')
  def run(self, arguments, tmp_path_factory):
    """Directory of a run from them, and what was printed."""
    workdir = tmp_path_factory.mktemp('started') / 'run'
    printed = io.StringIO()
    with contextlib.redirect_stderr(printed):
      assert main(['train', *arguments, '--workdir', str(workdir)]) == 0
    return workdir, printed.getvalue()

  @pytest.mark.slow
  def test_a_head_for_other_classes_is_drawn(
    self, arguments, run, small_image_run, capsys
  ):
    taken = 'conv_1/kernel, conv_1/bias, conv_2/kernel, conv_2/bias, '
    lines = (
      f'  taken: {taken}hidden/kernel, hidden/bias\n'
      '  drawn: head/kernel, head/bias\n'
    )
    assert main(['train', *arguments, '--dry_run']) == 0
    assert lines in capsys.readouterr().out
    workdir, printed = run
    assert lines in printed
    model = load_trained_model(_round(workdir, 0))
    # Without a start the seed draws all of them.
    drawn = initial_weights(model.shape, model.config.seeds.model_seed)
    drawn = dict(zip(model.weights, drawn, strict=True))
    assert drawn['head/kernel'].shape == (128, 2)
    given = load_trained_model(small_image_run).weights
    for name, weight in model.weights.items():
      expected = drawn if name in _HEAD else given
      np.testing.assert_array_equal(weight, expected[name])

  def test_another_size_of_images_is_refused(self, arguments, tmp_path):
    folder = small_image_folders.write_folder(tmp_path / 'own', side=16)
    others = [a for a in arguments[2:] if 'data.directory' not in a]
    config = config_loading.load_config(
      small_image_runs.CONFIG, [*others, f'--config.data.directory={folder}']
    )
    # The sides, less 4, halved: 12 x 12 and 6 x 6 of 64 channels.
    words = r"'hidden/kernel' must have shape \[2304, 128\] .* \[9216, 128\]"
    with pytest.raises(UserError, match=words):
      start_model.check(config, None)

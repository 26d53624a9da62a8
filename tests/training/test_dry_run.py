"""Facts that a dry run prints of a run."""

import re

import pytest
import small_image_runs
import small_runs

from tff_fedfish.cli.main import main
from tff_fedfish.config.load import load_config
from tff_fedfish.errors import UserError
from tff_fedfish.planning.plan import plan_round


def _printed(inputs, capsys, **settings):
  arguments = small_runs.overrides(*inputs, **settings)
  arguments = ['--config', small_runs.CONFIG, '--dry_run', *arguments]
  assert main(['train', *arguments]) == 0
  return ' '.join(capsys.readouterr().out.split())


def test_merged_clients(small_tokens, capsys):
  printed = _printed(
    small_tokens,
    capsys,
    partition__scheme='merge',
    partition__num_clients=2,
    cohorts__cohort_size=None,
    client_work__num_local_steps=50,
    client_work__num_local_epochs=1,
    client_work__max_sequences_per_client=None,
  )
  assert 'Clients per round 2 ' in printed
  # 2 clients * 50 batches of 4 * 8 targets.
  assert 'Tokens per round, at most 3,200 (1 local epochs)' in printed


def test_facts_of_the_corpus_are_not_guessed(small_inputs, capsys):
  printed = _printed(small_inputs, capsys, cohorts__cohort_size=None)
  assert 'Clients per round all that are not held out ' in printed
  # 6 sequences of 8 targets, 2 epochs.
  assert 'Tokens per client and round, at most 96 (2 local' in printed
  assert 'Communication per client and round 2 up, 1 down' in printed
  printed = _printed(
    small_inputs, capsys, client_work__max_sequences_per_client=None
  )
  assert 'Tokens per round, at most all that there are ' in printed


def test_images_are_counted(small_images, capsys):
  settings = small_image_runs.overrides(small_images)
  arguments = ['--config', small_image_runs.CONFIG, '--dry_run', *settings]
  assert main(['train', *arguments]) == 0
  printed = ' '.join(capsys.readouterr().out.split())
  assert 'Model parameters 1,199,882 in 8 tensors' in printed
  # 4 clients x 6 images x 2 local epochs
  assert 'Images per round, at most 48 (2 local epochs)' in printed


def test_label_skew(tmp_path, capsys):
  arguments = small_image_runs.overrides(
    small_image_runs.write_corpus(tmp_path),
    data__corpus='mnist',
    partition__scheme='latent_distributions',
    partition__num_clients=10,
    client_splits__held_out_fraction=None,
    evaluation__num_clients=0,
  )
  arguments = ['--config', small_image_runs.CONFIG, '--dry_run', *arguments]
  assert main(['train', *arguments]) == 0
  assert re.search(
    r'^Label skew of 10 clients \(EMD in L1\): \d\.\d\d\.$',
    capsys.readouterr().out,
    re.MULTILINE,
  )


def test_plan_names_the_models_that_it_takes():
  with pytest.raises(
    UserError,
    match="^A plan requires a transformer, but `config.model.preset` is 'emnist"
    "_cnn'. `fedfish train --dry_run` says what its rounds send.$",
  ):
    plan_round(load_config('mnist_by_writer'), timing=False)

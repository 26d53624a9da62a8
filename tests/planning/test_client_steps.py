"""Steps of a client, by hand."""

import planned_configs
import pytest

from tff_fedfish.planning import client_steps


@pytest.mark.parametrize(
  ('settings', 'expected'),
  [
    # 5 sequences in batches of 2: 3 a pass, 2 passes and one after training.
    ({}, (5, 6, 3)),
    ({'algorithm__name': 'fed_avg'}, (5, 6, 2)),
    ({'algorithm__fisher_estimator': 'last_epoch'}, (5, 6, 2)),
    # Full batches only: 4 of the 5 sequences.
    ({'data__client_batches': 'repeat_full'}, (4, 4, 3)),
    # A batch larger than the cap holds what there is.
    ({'client_work__local_batch_size': 9}, (5, 2, 3)),
  ],
)
def test_by_hand(settings, expected):
  steps = client_steps.of_config(planned_configs.by_hand(**settings))
  assert steps == client_steps.ClientSteps(*expected)


def test_tokens_by_hand():
  # 3 clients * 5 sequences * 4 tokens * 2 epochs.
  config = planned_configs.by_hand()
  assert client_steps.max_tokens_per_round(config) == 120
  assert client_steps.max_tokens_per_client(config) == 40


def test_steps_of_a_round_without_passes():
  config = planned_configs.by_hand(
    client_work__num_local_steps=7,
    client_work__num_local_epochs=1,
    client_work__max_sequences_per_client=None,
  )
  # 7 batches of 2, and the Fisher pass.
  steps = client_steps.of_config(config)
  assert steps == client_steps.ClientSteps(14, 7, 2)
  # 3 clients * 14 sequences * 4 tokens.
  assert client_steps.max_tokens_per_round(config) == 168


def test_what_only_the_corpus_says_is_none():
  for name in (
    'cohorts__cohort_size',
    'client_work__max_sequences_per_client',
  ):
    config = planned_configs.by_hand(**{name: None})
    assert client_steps.max_tokens_per_round(config) is None
  # One batch of 2 stands for the sequences: a step in each of 2 epochs.
  steps = client_steps.of_config(config)
  assert steps == client_steps.ClientSteps(2, 2, 3)

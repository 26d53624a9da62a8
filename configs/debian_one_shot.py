"""One-shot merging of language models on Debian's package descriptions.

Ten web hosts (on code hosts their owners) train `tiny` for three epochs, once,
from the weights of a FedAvg run, and the server merges their models:
`--config.algorithm.name` is fed_fisher, fisher_merge, reg_mean or ot_fusion.
docs/experiments/one_shot.md has the results.

  fedfish group c4 --key owner --output corpora/debian_by_owner \
      --input 'tff_fedfish/corpora/debian_descriptions/c4-train.*.json.gz'
  fedfish train --config debian_one_shot --workdir runs/pretrained \
      --config.algorithm.name=fed_avg --config.training.num_rounds=60 \
      --config.client_work.learning_rate=0.03 \
      --config.training.start_from=None --config.server.learning_rate=0.7 \
      --config.server.momentum=0.9 --config.server.nesterov=true
  fedfish train --config debian_one_shot --workdir runs/merged
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
  """Returns the settings; docs/settings.md lists them all."""
  config = ConfigDict(
    dict(
      algorithm=dict(
        name='fed_fisher',
        solver='conjugate_gradient',
        num_solver_steps=200,
        # The server has no text of its own.
        num_validation_rows=0,
        keeps_uploads=True,
      ),
      client_work=dict(
        num_local_epochs=3,
        local_batch_size=4,
        max_sequences_per_client=64,
        learning_rate=0.1,
      ),
      server=dict(
        optimizer='sgd', learning_rate=1.0, momentum=0.0, nesterov=False
      ),
      model=dict(preset='tiny'),
      data=dict(
        directory='corpora/debian_by_owner',
        vocabulary='tff_fedfish/corpora/demo_vocabulary',
        sequence_length=64,
      ),
      cohorts=dict(cohort_size=10),
      training=dict(num_rounds=1, start_from='runs/pretrained'),
      evaluation=dict(
        every_num_rounds=0, num_clients=264, max_sequences_per_client=16
      ),
      checkpoints=dict(every_num_rounds=0),
    )
  )
  return config.lock()

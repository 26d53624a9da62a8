"""FedFish and FedAvg by local epochs on Debian's package descriptions.

For `fedfish sweep`: a tiny transformer at 1, 4 and 16 local epochs, for the
same number of rounds and for the same number of local epochs in all, three
seeds each: 30 runs, after 6 short ones at 4 local epochs that choose the
server's learning rate for each method; some hours on two CPU cores. All clients
take steps of 0.1, as in demo.py, where it was chosen by the loss of FedAvg.
Clients are web hosts, on code hosts their owners. The models are transferred to
presidents' addresses:

  fedfish group c4 --key owner --output corpora/debian_by_owner \
      --input 'tff_fedfish/corpora/debian_descriptions/c4-train.*.json.gz'
  fedfish group c4 --key author --output corpora/sotu_by_president \
      --input tff_fedfish/corpora/sotu_by_president/sotu.json.gz
"""


def get_config() -> dict:
  """Returns the settings of the base; docs/settings.md lists all."""
  return dict(
    algorithm=dict(name='fed_fish'),
    client_work=dict(
      num_local_epochs=4,
      local_batch_size=4,
      max_sequences_per_client=8,
      learning_rate=0.1,
    ),
    server=dict(optimizer='adam', learning_rate=1e-3),
    model=dict(preset='tiny'),
    data=dict(
      directory='corpora/debian_by_owner',
      vocabulary='demo',
      sequence_length=64,
    ),
    cohorts=dict(cohort_size=8),
    training=dict(num_rounds=120),
    evaluation=dict(
      every_num_rounds=30, num_clients=24, max_sequences_per_client=16
    ),
    checkpoints=dict(every_num_rounds=15, keep_last=2),
  )


def get_sweep() -> dict:
  """Returns what varies and what is measured; docs/sweep.md lists it all."""
  sizes = dict(max_clients=64, max_sequences_per_client=16)
  return dict(
    grid={
      'algorithm.name': ['fed_avg', 'fed_fish'],
      'client_work.num_local_epochs': [1, 4, 16],
      'client_work.learning_rate': [0.1],
      # The same seeds for both methods: pairs are compared.
      'seeds.model_seed,seeds.cohort_seed,seeds.shuffle_seed': [
        (1, 1, 1),
        (2, 2, 2),
        (3, 3, 3),
      ],
    },
    # 120 rounds; and 480 local epochs: 480, 120 or 30 rounds.
    budget=['fixed_rounds', 'fixed_compute'],
    reference_local_epochs=4,
    learning_rate_search=dict(
      settings={'server.learning_rate': [1e-4, 1e-3, 1e-2]},
      num_rounds=60,
      per=['algorithm.name', 'client_work.learning_rate'],
      num_clients=128,
    ),
    evaluate=[
      dict(barrier=True, **sizes),
      dict(data='corpora/sotu_by_president', **sizes),
    ],
  )

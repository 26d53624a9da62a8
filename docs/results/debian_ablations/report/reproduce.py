"""The configuration of the runs in this report."""

import ml_collections


def get_config():
  config = ml_collections.ConfigDict()
  config['algorithm'] = {
    'name': 'fed_avg',
    'fisher_estimator': 'extra_pass',
    'fisher_reduction': 'sum',
    'fisher_normalization': 'none',
    'client_weighting': 'num_examples',
    'relative_floor': 1e-08,
    'ragged_correction': False,
  }
  config['client_work'] = {
    'num_local_epochs': 4,
    'local_batch_size': 4,
    'max_sequences_per_client': 8,
    'learning_rate': 0.1,
  }
  config['server'] = {
    'optimizer': 'adam',
    'learning_rate': 0.001,
    'beta_1': 0.9,
    'beta_2': 0.999,
    'epsilon': 1e-07,
  }
  config['model'] = {
    'preset': 'tiny',
    'num_layers': 4,
    'width': 128,
    'num_heads': 4,
    'vocabulary_size': 2048,
    'position_embedding': 'learned',
    'compute_dtype': 'float32',
    'layer_loop': 'auto',
  }
  config['data'] = {
    'directory': 'corpora/debian_by_owner',
    'corpus': 'grouped_text',
    'vocabulary': 'tff_fedfish/corpora/demo_vocabulary',
    'sequence_length': 64,
    'drop_short_block': False,
  }
  config['partition'] = {
    'scheme': None,
    'num_clients': None,
    'held_out': 'matching',
    'alpha': None,
    'min_examples': None,
    'classes_per_client': None,
    'shards_per_client': None,
    'examples_per_client': None,
    'root_alpha': None,
    'leaf_alpha': None,
  }
  config['cohorts'] = {
    'cohort_size': 3,
  }
  config['client_splits'] = {
    'held_out_fraction': 0.1,
  }
  config['seeds'] = {
    'model_seed': 1,
    'cohort_seed': 1,
    'split_seed': 3,
    'shuffle_seed': 1,
    'partition_seed': 5,
  }
  config['training'] = {
    'num_rounds': 120,
  }
  config['evaluation'] = {
    'every_num_rounds': 30,
    'num_clients': 24,
    'max_sequences_per_client': 16,
    'batch_size': 16,
    'barrier_every_num_rounds': 0,
  }
  config['checkpoints'] = {
    'every_num_rounds': 15,
    'keep_last': 2,
    'keep_every_num_rounds': 60,
  }
  config['engine'] = {
    'kind': 'in_process',
    'num_workers': 1,
    'threads_per_worker': 1,
    'gpus_per_worker': None,
    'ray_address': 'local',
    'num_partial_sums': 0,
    'quorum': 0.5,
    'xla': False,
  }
  return config

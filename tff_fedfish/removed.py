"""Removed commands, options and settings, with advice; for one release."""

from collections.abc import Sequence

from tff_fedfish.errors import UserError

COMMANDS: dict[str, str] = {
  'laboratory': 'Run docs/examples/weightings_in_one_round.py.',
  'toy': 'Read docs/experiments/one_function.md.',
}
"""Advice by the name of a command."""

OPTIONS: dict[str, str] = {
  'doctor --config': 'A run compares the hosts of its cluster when it starts.',
  'doctor --json': 'The exit code says whether all is well.',
  'doctor --ray_address': 'A run compares the hosts of its cluster itself.',
  **{
    f'group --{name}': 'Set AZURE_* variables; name abfs://CONTAINER@HOST/PATH.'
    for name in (
      *('azure_connection_string', 'azure_managed_identity_client_id'),
      'blob_service_endpoint',
    )
  },
  'group --add_to': 'Group the raw files of both together.',
  'group --drop_duplicates_across_groups': 'Remove them from the input.',
  **{
    f'group --{name}': 'Name hdfs://NAMENODE:PORT/PATH.'
    for name in ('hdfs_full_urls', 'hdfs_host', 'hdfs_port', 'hdfs_user')
  },
  'group --max_examples_per_group': (
    'Training takes `client_work.max_sequences_per_client`.'
  ),
  'group --max_dropped_bytes': 'The manifest has one example of each reason.',
  **{
    f'group --s3_{name}': 'Set AWS_* variables, such as AWS_ENDPOINT_URL.'
    for name in (
      *('access_key_id', 'api_version', 'disable_ssl', 'endpoint_url'),
      *('region_name', 'secret_access_key', 'session_token', 'verify'),
    )
  },
  'group --worker_pools': 'Use Spark or Dask, as docs/clusters.md says.',
  'group --write_dropped': 'The manifest has one example of each reason.',
  'inspect --plots': 'Name a PNG file: --plot FILE.',
  'plan --group': 'Group a few files, and multiply.',
  'plan --input_bytes': 'Group a few files, and multiply.',
  'plan --num_workers': 'Group a few files, and multiply.',
  'plan --output': 'Redirect what is printed, or call plan_round in Python.',
}
"""Advice by 'command --option'."""

SETTINGS: dict[str, str] = {
  'algorithm.affinity': 'Leave it out: FedFomo adds raw weights.',
  'algorithm.distance': 'Leave it out: FedFomo divides by the L2 norm.',
  'algorithm.divides_by_norm': 'Leave it out: diagonals count as they are.',
  'algorithm.exchange': 'Leave it out: SCAFFOLD sends model and variate.',
  'algorithm.fisher_training_mode': 'Leave it out: the pass has no dropout.',
  'algorithm.labels': 'Leave it out: it follows from the corpus.',
  'algorithm.linearization': 'Leave it out: TCT takes images only.',
  'algorithm.loss_scale': 'Leave it out: TCT takes half the mean.',
  'algorithm.mask_layers': 'Leave it out: TCT takes images only.',
  'algorithm.max_mass_ratio': "Use fisher_normalization 'tensor_mean'.",
  'algorithm.model_averages': 'Leave it out: FedFomo sends single models.',
  'algorithm.neurons': 'Leave it out: PFNM integrates global neurons out.',
  'algorithm.ragged_correction': "Use data.client_batches 'full_only'.",
  'algorithm.solve_memory_bytes': "Use solver 'conjugate_gradient'.",
  'client_states.dtype': 'Leave it out; states are float32.',
  'client_states.max_bytes': 'Free disk is checked before every round.',
  'client_work.weight_decay_on': 'Leave it out: the matrices decay.',
  **dict.fromkeys(
    (
      *('data.classes', 'data.image_channels'),
      *('data.image_height', 'data.image_width'),
    ),
    'Leave it out: it is read from the images.',
  ),
  'data.token_cache_bytes': 'Run `fedfish tokenize`; name its output.',
  'engine.client_timeout_seconds': 'Leave it out; slow clients are waited for.',
  'evaluation.diagnostics_every_num_rounds': 'No figure shows it.',
  'model.layer_loop': 'Leave it out: more than 8 layers are looped over.',
  'partition.clusters': 'Leave it out; latent_distributions takes the classes.',
  'partition.examples_per_client': "Read TFF's clients, cifar100.sqlite.",
  'partition.leaf_alpha': "Read TFF's clients, cifar100.sqlite.",
  'partition.num_clusters': 'Leave it out; there is a cluster per class.',
  'partition.root_alpha': "Read TFF's clients, cifar100.sqlite.",
  'server.initial_accumulator': 'Leave it out: it is 0.',
  'server.weight_decay_on': 'Leave it out: the matrices decay.',
}
"""Advice by 'section.setting' of a config."""


def require_current(arguments: Sequence[str]) -> None:
  """Raises UserError if a command line has a command or option that went."""
  command = arguments[0] if arguments else ''
  if command in COMMANDS:
    raise UserError(f'`{command}` was removed. {COMMANDS[command]}')
  for argument in arguments[1:]:
    option = argument.partition('=')[0]
    if advice := OPTIONS.get(f'{command} {option}'):
      raise UserError(f'`{option}` was removed. {advice}')

"""Settings of `make bench-engine` and the machine; no TensorFlow here."""

import dataclasses
import os
import pathlib

from models.transformer_config import PRESETS, TransformerConfig

# The engines: a plain loop, our in-process context, that with worker processes,
# and TFF's own context.
PLAIN, OURS, RAY, STOCK = 'plain', 'ours', 'ray', 'stock'
BFLOAT16 = 'bfloat16'
# TFF's own context grows by 0.6 to 0.9 GB with every round.
MAX_STOCK_ROUNDS = 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Workload:
  """One federated round, on synthetic tokens."""

  preset: str = 'small'
  """A name of `PRESETS` in models/transformer_config.py."""
  num_clients: int = 4
  """Clients of the round, each with the same amount of data."""
  num_local_steps: int = 8
  """Batches of a client, so steps of one local epoch."""
  num_local_epochs: int = 1
  """Passes over a client's data."""
  local_batch_size: int = 4
  """Sequences of a batch."""
  sequence_length: int = 128
  """Targets of a sequence."""
  compute_dtype: str = 'float32'
  """Type of the matrix products."""
  algorithm: str = 'fed_avg'
  """'fed_avg' or 'fed_fish'."""
  fisher_estimator: str = 'extra_pass'
  """Estimator of 'fed_fish'."""

  @property
  def num_tokens(self) -> int:
    """Tokens trained on in a round."""
    num_rows = self.num_local_steps * self.local_batch_size
    num_passes = self.num_clients * self.num_local_epochs
    return num_passes * num_rows * self.sequence_length

  def transformer_config(self) -> TransformerConfig:
    """Returns the model's shape."""
    return TransformerConfig(
      sequence_length=self.sequence_length,
      compute_dtype=self.compute_dtype,
      **PRESETS[self.preset],
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
  """Options of the command."""

  workload: Workload
  large_preset: str
  """Stands for 350m."""
  num_threads: int = 2
  """CPUs that a measured process may use."""
  repeats: int
  """Turns of each variant that count, >= 1."""
  measures_bfloat16: bool
  """Whether to measure bfloat16 at all."""

  @property
  def stock_repeats(self) -> int:
    """Turns that count of a group in which TFF's own context takes part."""
    # One more warms up.
    return min(self.repeats, MAX_STOCK_ROUNDS - 1)


def describe_machine() -> dict[str, object]:
  """Returns the processor, the memory and the versions that matter."""
  cpu_info = pathlib.Path('/proc/cpuinfo').read_text(encoding='utf-8')
  fields = {}
  for line in cpu_info.splitlines():
    name, _, value = line.partition(':')
    fields.setdefault(name.strip(), value.strip())
  flags = fields.get('flags', '').split()
  page_bytes = os.sysconf('SC_PAGE_SIZE')
  return {
    'cpu': fields.get('model name', 'unknown'),
    'num_cpus': len(os.sched_getaffinity(0)),
    'memory_gib': round(os.sysconf('SC_PHYS_PAGES') * page_bytes / 2**30, 1),
    'load': round(os.getloadavg()[0], 2),
    'avx512_bf16': 'avx512_bf16' in flags,
    'amx_bf16': 'amx_bf16' in flags,
  }

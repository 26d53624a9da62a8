"""Cost of a run, computed before it is started."""

import dataclasses
import typing

from models.model_shapes import num_parameters, weight_shapes
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.errors import UserError
from tff_fedfish.planning import client_steps, communication, disk, memory
from tff_fedfish.planning.communication import Communication
from tff_fedfish.planning.flops import RoundFlops, round_flops
from tff_fedfish.printing import (
  count,
  format_bytes,
  format_flops,
  format_seconds,
  print_facts,
)

if typing.TYPE_CHECKING:
  from tff_fedfish.planning.step_time import RoundTime


@dataclasses.dataclass(frozen=True)
class RoundPlan:
  """Cost of a round at most: every client is taken to fill its cap."""

  num_weights: int
  """Scalars of the model."""
  num_tensors: int
  """Tensors that hold them."""
  cohort_size: int | None
  """Clients of a round. None: the corpus says how many; what follows is for one
  client per round."""
  num_rounds: int
  """Rounds of the run."""
  tokens_per_round: int
  """Targets of all clients and local epochs."""
  client_steps: client_steps.ClientSteps
  """Work of one client."""
  flops: RoundFlops
  """Operations of a round."""
  memory: tuple[memory.ProcessMemory, ...]
  """Memory by kind of process: one in process, driver and worker with Ray."""
  num_local_workers: int
  """Workers beside the driver on one machine; 0: there are none."""
  round_sent: Communication
  """Models and bytes that the clients of a round send and receive."""
  run_sent: Communication
  """The same of all rounds."""
  checkpoint_bytes: int
  """A checkpoint's weights and optimizer state on the disk."""
  tokenized_corpus: str
  """Estimated size of the corpus's tokens."""
  client_states: disk.StatesOnDisk | None
  """None if clients keep nothing."""
  phases: tuple[str, ...]
  """A line on each phase of the run; none where its rounds are of one kind. The
  cost of a round is that of the last phase."""
  time: 'RoundTime | None'
  """None if nothing was timed."""


def plan_round(config: TrainConfig, *, timing: bool = True) -> RoundPlan:
  """Returns the cost of a round of a run, without its corpus or weights.

  Args:
    config: The run's config.
    timing: Whether to time steps on this machine, which imports TensorFlow
      and allocates a model of at most four layers. Otherwise the answer comes
      at once.

  Raises:
    UserError: If the model is one of images, or nothing bounds the sequences
      that a client trains on.
  """
  if config.data.holds_images:
    raise UserError(
      'A plan requires a transformer, but `config.model.preset` is '
      f'{config.model.preset!r}. `fedfish train --dry_run` says what its '
      'rounds send.'
    )
  tokens_per_client = client_steps.max_tokens_per_client(config)
  if tokens_per_client is None:
    raise UserError(
      'A plan requires a bound on the sequences of a client, but '
      '`config.client_work.max_sequences_per_client` and num_local_steps are '
      'both None. Give one of them.'
    )
  time = None
  if timing:
    from tff_fedfish.planning import step_time

    time = step_time.round_time(config, step_time.step_seconds(config))
  shape, num_rounds = config.model_shape(), config.training.num_rounds
  num_weights, cohort_size = num_parameters(shape), config.cohort_size
  num_models = 1 + config.server.step_cost().num_state_tensors
  sent = [
    communication.of_cohorts(
      traffic, cohort_size=cohort_size or 1, num_weights=num_weights
    )
    for traffic in (
      communication.of_client(config),
      communication.until_round(config, num_rounds),
    )
  ]
  return RoundPlan(
    num_weights=num_weights,
    num_tensors=len(weight_shapes(shape)),
    cohort_size=cohort_size,
    num_rounds=num_rounds,
    tokens_per_round=(cohort_size or 1) * tokens_per_client,
    client_steps=client_steps.client_steps(config),
    flops=round_flops(config),
    memory=memory.process_memory(config),
    num_local_workers=memory.num_local_workers(config),
    round_sent=sent[0],
    run_sent=sent[1],
    checkpoint_bytes=communication.BYTES_PER_WEIGHT * num_weights * num_models,
    tokenized_corpus=disk.tokenized_corpus(config),
    client_states=disk.states_on_disk(config),
    phases=phase_lines(config),
    time=time,
  )


def print_plan(plan: RoundPlan, tflops: float | None = None) -> None:
  """Prints a plan to standard output, a line for each cost.

  Args:
    plan: The plan.
    tflops: Operations per second to give times for. Unit: 10^12.
  """
  steps, flops = plan.client_steps, plan.flops
  print(
    f'A round of {plan.cohort_size:,} clients, at most:'
    if plan.cohort_size
    else 'A round per client, at most; the corpus says how many there are:'
  )
  shares = ', '.join(
    f'{count / flops.total:.1%} {name.replace("_", " ")}'
    for name, count in vars(flops).items()
  )
  facts = [
    ('Weights', f'{plan.num_weights:,} in {plan.num_tensors} tensors'),
    ('Tokens', f'{plan.tokens_per_round:,}'),
    (
      'Steps of a client',
      f'{steps.num_local_steps:,}; {steps.num_passes:g} passes over '
      f'{steps.num_sequences:,} sequences',
    ),
    ('Operations', f'{format_flops(flops.total)}: {shares}'),
    (
      'Operations of the run',
      f'{format_flops(plan.num_rounds * flops.total)} in '
      f'{plan.num_rounds:,} rounds',
    ),
  ]
  for way in ('uplink', 'downlink'):
    of_round, of_run = (
      format_bytes(getattr(sent, f'{way}_bytes'))
      for sent in (plan.round_sent, plan.run_sent)
    )
    facts.append(
      (way.capitalize(), f'{of_round}; {of_run} in {plan.num_rounds:,} rounds')
    )
  facts.append(('Checkpoint', format_bytes(plan.checkpoint_bytes)))
  facts.append(('Tokenized corpus', plan.tokenized_corpus))
  if plan.client_states is not None:
    facts.append(('Client states', str(plan.client_states)))
  facts += [*map(_memory_fact, plan.memory), *_machine_facts(plan)]
  facts += _time_facts(plan)
  if tflops is not None:
    seconds = flops.total / (tflops * 1e12)
    facts.append((f'Time at {tflops:g} TFLOP/s', _times(plan, seconds)))
  print_facts(facts)
  for line in plan.phases:
    print(line)


def _memory_fact(process):
  parts = ', '.join(
    f'{part} {format_bytes(size)}'
    for part, size in process.largest_parts.items()
  )
  peak = format_bytes(process.peak_bytes)
  host, gpu = map(format_bytes, (process.host_bytes, process.gpu_bytes))
  return (
    f'Peak memory of {process.name}',
    f'{peak}, most of it {parts} (with a GPU {gpu} there, {host} on the host)',
  )


def _machine_facts(plan):
  """Returns the memory of a machine that driver and workers share."""
  if not plan.num_local_workers:
    return []
  driver, worker = plan.memory
  total = driver.peak_bytes + plan.num_local_workers * worker.peak_bytes
  shared = format_bytes(driver.gpu_bytes + worker.gpu_bytes)
  return [
    (
      'Peak memory of the machine',
      f'{format_bytes(total)}, the driver and '
      f'{count(plan.num_local_workers, "worker")} (with GPUs the driver and a '
      f'worker share the first: {shared})',
    )
  ]


def _time_facts(plan):
  if plan.time is None:
    return []
  seconds = plan.time.round_seconds
  speed = plan.tokens_per_round / max(seconds, 1e-9)
  return [
    ('Time of a local step', format_seconds(plan.time.local_step_seconds)),
    ('Time of a round', f'{_times(plan, seconds)} ({speed:,.0f} tokens/s)'),
  ]


def _times(plan, seconds):
  """Returns the time of a round and of the run."""
  of_run = format_seconds(plan.num_rounds * seconds)
  return f'{format_seconds(seconds)}; {of_run} in {plan.num_rounds:,} rounds'


def phase_lines(config: TrainConfig) -> tuple[str, ...]:
  """Returns a line on each phase: its rounds, and what a client sends."""
  lines, num_rounds = [], config.training.num_rounds
  for phase in config.phases:
    last = num_rounds
    if phase.last_round is not None:
      last = min(phase.last_round, num_rounds)
    if last >= phase.first_round:
      sent = phase.method.traffic(config)
      lines.append(
        f'Phase {phase.name!r}, rounds {phase.first_round} to {last}: '
        f'{sent.uplink:.4g} models up and {sent.downlink:.4g} down a round and '
        'client.'
      )
    elif phase.first_round > num_rounds:
      lines.append(
        f'Phase {phase.name!r} begins after the last round, {num_rounds}.'
      )
  return tuple(lines)

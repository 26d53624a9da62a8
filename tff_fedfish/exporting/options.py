"""Options of generated text."""

import dataclasses

from tff_fedfish.errors import UserError
from tff_fedfish.fields import as_declared, number, path, unmet_requirement


@dataclasses.dataclass(frozen=True, kw_only=True)
class GenerationOptions:
  """Settings of the samples and of the personalization before the second.

  Raises:
    UserError: On construction, naming every option that is wrong as the
      command line does.
  """

  prompt: str = ''
  """Beginning of every sample. Default: the beginning of a document."""
  num_tokens: int = number(64, at_least=1)
  """Maximum number of tokens after the prompt."""
  temperature: float = number(1.0, at_least=0)
  """Divides the logits, by at least 0.001. 0: always the likeliest token."""
  top_k: int | None = number(None, at_least=1)
  """Draw from the K likeliest tokens only. Default: from all."""
  seed: int = number(0, at_least=0, below=2**31)
  """Seed of the draws, in [0, 2^31)."""
  num_samples: int = number(1, at_least=1)
  """Number of samples."""
  personalize_on: str | None = path(None)
  """Grouped corpus with the client to fine-tune on. Default: no fine-tuning."""
  client: str | None = None
  """Id of that client, as `fedfish inspect` shows it."""
  personalization_epochs: int | None = number(None, at_least=1)
  """Epochs of fine-tuning. Default: as in `fedfish evaluate`, 4."""
  learning_rate: float | None = number(None, above=0)
  """Learning rate of the fine-tuning. Default: the run's client learning
  rate."""
  client_id: str | None = None
  """Use the personal model of this client; its id as in per_client.csv of
  `fedfish evaluate`. Required by methods with personal models."""

  def __post_init__(self):
    problems = []
    for field in dataclasses.fields(self):
      value = as_declared(getattr(self, field.name), field)
      # The others have no bounds.
      if field.metadata and (wanted := unmet_requirement(value, field)):
        problems.append(f'`--{field.name}` must be {wanted}, found {value}')
    # Logits divided by less may be infinite.
    if 0 < self.temperature < 1e-3:
      problems.append(
        '`--temperature` must be 0, for the likeliest token, or at least '
        f'0.001, found {self.temperature}'
      )
    if self.personalize_on is None:
      problems += [
        f'`--{name}` needs `--personalize_on`, which is not given'
        for name in ('client', 'personalization_epochs', 'learning_rate')
        if getattr(self, name) is not None
      ]
    elif self.client is None:
      problems.append('`--personalize_on` needs `--client`, which is not given')
    if problems:
      raise UserError('; '.join(problems) + '.')

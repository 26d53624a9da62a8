"""Settings of a run's clients: what they hold, who takes part."""

import dataclasses
import typing
from typing import Literal

from tff_fedfish.config_fields import Section, number, path
from tff_fedfish.data.client_ids import text_to_client_id
from tff_fedfish.data.images.image_corpora import IMAGE_CORPORA

if typing.TYPE_CHECKING:
  from tff_fedfish.data.images.partitions import Partition

IMAGE_SIZES = ('image_height', 'image_width', 'image_channels')
"""Settings of `config.data` that make an image's shape, in its order."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig(Section, section='data'):
  """The clients' text or images, and how they become rows."""

  directory: str = path()
  """A grouped corpus, as `fedfish group` writes it, here or in a store such as
  s3://, or its tokens, as `fedfish tokenize` writes them; or the directory with
  the files of a corpus of images, as their owners publish them; or your own
  images as CLIENT/CLASS/*.png or *.jpg. A run may be resumed with the tokens of
  its corpus, and the reverse."""
  corpus: Literal[('grouped_text', *IMAGE_CORPORA)] = 'grouped_text'
  """'grouped_text', or which corpus of images it is."""
  vocabulary: str | None = path(None)
  """A vocabulary, as `fedfish tokenizer train` writes it, or 'demo', the one
  that ships. Required for text, like the next one."""
  sequence_length: int | None = number(None, at_least=1, below=2**24)
  """Tokens that the model sees at once; a stored block has one more, >= 1."""
  drop_short_block: bool = False
  """Drops a client's last, shorter block instead of padding and masking it."""
  client_batches: Literal['ragged', 'repeat_full', 'full_only'] = 'ragged'
  """Batches of a client in a round. 'ragged': the last one may be smaller.
  'repeat_full': only full ones, for which its rows are repeated up to the cap:
  all clients have equally many, as in FedC4, on which the paper builds.
  'full_only': only full ones; rows left over are dropped, and a client with
  fewer rows than a batch has none. Text and images alike."""
  sampling: Literal['blocks', 'documents'] = 'blocks'
  """Text of a client that a round takes where it has more than the cap.
  'blocks': its joined text is cut into blocks, which are shuffled. 'documents':
  its documents are shuffled, and joined and cut until there are enough, as in
  FedC4, on which the paper builds; a large client is not tokenized whole."""
  image_height: int | None = number(None, at_least=16, below=129)
  """Height of the images of 'image_folder'. Unit: pixels, 16 to 128. None, as
  in the next three: read from the corpus at the start."""
  image_width: int | None = number(None, at_least=16, below=129)
  """Width of the images of 'image_folder'. Unit: pixels, 16 to 128."""
  image_channels: int | None = number(None, at_least=1, below=4)
  """Channels of the images of 'image_folder': 1 (grey) or 3 (RGB)."""
  classes: str | None = None
  """Class directories of 'image_folder', sorted by bytes, with slashes between
  them: 'cat/dog'."""

  def cross_problems(self, *, are_fields_right: bool) -> list[str]:
    """See `Section`."""
    if not are_fields_right:
      return []
    corpus = f'corpus {self.corpus!r}'
    if self.holds_images:
      problems = [
        f'`config.data.{name}` must be left out with {corpus}, which holds '
        f'images, found {value!r}'
        for name in ('vocabulary', 'sequence_length', 'drop_short_block')
        if (value := getattr(self, name))
      ]
      if self.sampling != 'blocks':
        problems.append(
          f"`config.data.sampling` must be 'blocks' with {corpus}, which holds "
          f'images, found {self.sampling!r}'
        )
    else:
      problems = [
        f'`config.data.{name}` is required with {corpus}'
        for name in ('vocabulary', 'sequence_length')
        if getattr(self, name) is None
      ]
    return problems + self._problems_of_image_folder()

  @property
  def holds_images(self) -> bool:
    """Whether the corpus is one of images."""
    return self.corpus in IMAGE_CORPORA

  @property
  def class_names(self) -> tuple[bytes, ...]:
    """Names of the directories in `classes`, by label."""
    return tuple(map(text_to_client_id, self.classes.split('/')))

  def _problems_of_image_folder(self):
    """Returns a clause for each problem with the shape of the images."""
    if self.corpus != 'image_folder':
      return [
        f"`config.data.{name}` is read with corpus 'image_folder' only, found "
        f'{value!r}; leave it out'
        for name in (*IMAGE_SIZES, 'classes')
        if (value := getattr(self, name)) is not None
      ]
    problems = []
    if self.image_channels == 2:
      problems.append('`config.data.image_channels` must be 1 or 3, found 2')
    if self.classes is not None:
      try:
        names = self.class_names
      except ValueError:
        names = ()
      if len(names) < 2 or b'' in names or list(names) != sorted(set(names)):
        problems.append(
          '`config.data.classes` must be at least two names of directories, '
          "sorted by their bytes, such as 'cat/dog', found "
          f'{self.classes!r}'
        )
    return problems


_MERGE = 'merge'
# Settings that are no parameters of a scheme of images.
_OF_ALL_SCHEMES = ('scheme', 'num_clients', 'held_out')


@dataclasses.dataclass(frozen=True, kw_only=True)
class PartitionConfig(Section, section='partition'):
  """How a corpus is divided among clients that it has not itself.

  For text there is the scheme 'merge'. docs/image_corpora.md has the schemes of
  images and their parameters.
  """

  scheme: str | None = None
  """For text 'merge': each client is the union of groups that a hash chooses;
  held-out groups stay as they are. It requires the tokens of the corpus, as
  `fedfish tokenize` writes them, in `data.directory`. For images a scheme of
  data/images/partitions.py. None: the corpus's own clients."""
  num_clients: int | None = number(None, at_least=1)
  """Clients to make, >= 1: of groups that are not held out, or of the images of
  the train split."""
  held_out: Literal['matching', 'whole'] = 'matching'
  """Use of the test split: 'matching': for each client a held-out one
  with its share of every class; 'whole': one held-out client."""
  alpha: float | None = number(None, at_least=1e-9)
  """Concentration of the three Dirichlet schemes, >= 1e-9."""
  min_examples: int | None = number(None, at_least=0)
  """Images of the smallest client (per_class_over_clients), >= 0."""
  classes_per_client: int | None = number(None, at_least=1)
  """Classes of each client (fixed_classes), >= 1."""
  shards_per_client: int | None = number(None, at_least=1)
  """Shards of each client (pathological_shards), >= 1."""

  def cross_problems(self, *, are_fields_right: bool) -> list[str]:
    """See `Section`."""
    if not are_fields_right:
      return []
    if self.scheme is not None and self.num_clients is None:
      return ['`config.partition.num_clients` is required with a `scheme`']
    if self.divides_images:
      return self._problems_of_scheme()
    read = ('scheme', 'num_clients') if self.merges_groups else ()
    reader = f'is not read by the scheme {_MERGE!r}'
    if self.scheme is None:
      reader = 'is read with a `scheme` only'
    return [
      f'`config.partition.{name}` {reader}, found {value!r}; leave it out'
      for name, value in self.changed().items()
      if name not in read
    ]

  def _problems_of_scheme(self):
    """Returns a clause for each problem with a scheme of images."""
    # Late: it takes NumPy, which a config of text need not wait for.
    from tff_fedfish.data.images.partitions import SCHEMES

    if (scheme := SCHEMES.get(self.scheme)) is None:
      return [
        f'`config.partition.scheme` must be one of {", ".join(SCHEMES)} with '
        f"images or 'merge' with text, found {self.scheme!r}"
      ]
    given = self._parameters()
    by = f'by the scheme {self.scheme!r}'
    return [
      f'`config.partition.{name}` is required {by}, but it is not given'
      for name in scheme.required
      if name not in given
    ] + [
      f'`config.partition.{name}` is not read {by}, found {value!r}; leave it '
      'out'
      for name, value in given.items()
      if name not in scheme.required + scheme.optional
    ]

  def _parameters(self):
    """Returns the parameters of a scheme that are set."""
    return {
      name: value
      for name, value in dataclasses.asdict(self).items()
      if name not in _OF_ALL_SCHEMES and value is not None
    }

  @property
  def merges_groups(self) -> bool:
    """Whether clients are unions of groups of text."""
    return self.scheme == _MERGE

  @property
  def divides_images(self) -> bool:
    """Whether clients are made of a corpus of images."""
    return self.scheme is not None and not self.merges_groups

  @property
  def gives_one_class(self) -> bool:
    """Whether all images of a client are of one class."""
    return self.scheme == 'latent_distributions'

  @property
  def has_twins(self) -> bool:
    """Whether each client has a held-out one of the same distribution."""
    return self.divides_images and self.held_out == 'matching'

  def build(self, *, partition_seed: int) -> 'Partition | None':
    """Returns the partition of a corpus of images; None without a scheme."""
    if self.scheme is None:
      return None
    from tff_fedfish.data.images.partitions import Partition

    return Partition(
      scheme=self.scheme,
      num_clients=self.num_clients,
      seed=partition_seed,
      parameters=tuple(self._parameters().items()),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class CohortsConfig(Section, section='cohorts'):
  """Which clients take part in a round."""

  cohort_size: int | None = number(at_least=1)
  """Clients drawn per round without replacement, >= 1. None: all that are not
  held out, in a fixed order."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClientSplitsConfig(Section, section='client_splits'):
  """Clients, and rows of the others, that are not trained on."""

  held_out_fraction: float | None = number(0.1, at_least=0, below=1)
  """Share of clients that are held out, in [0, 1). None: those whom a corpus of
  images holds out itself, its test split. They never take part in training; a
  share is one of the other clients, and then they are not scored either."""
  validation_fraction: float | None = number(None, at_least=0, below=1)
  """Share of every participating client's rows on which methods validate models
  of clients' own. No method trains on them. None: 0.2 for a method that
  validates, else 0."""
  test_fraction: float | None = number(None, at_least=0, below=1)
  """Share of every participating client's rows on which its own model is
  scored. No method trains on them. None: 0.2 for a method with models of
  clients' own, unless each client has a held-out one (`partition.held_out`
  'matching') whose rows are scored in place of its own; else 0."""
  shuffles_targets: bool = False
  """Whether validation and test rows are permuted among the clients, by
  `split_seed`: targets out of the distribution that a client trains on."""

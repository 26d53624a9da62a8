"""Fixtures of all tests: quiet logs, Hypothesis, real corpora, no orphans."""

import contextlib
import gc
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

import hypothesis
import pytest
import worker_processes

# Before any test module imports TensorFlow. Small models gain nothing from a
# second thread within an op, which another pytest worker's tests need. Of those
# between ops there must be two: with one, a function that reads a dataset may
# wait for ever for the thread that it runs on.
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
os.environ.setdefault('TF_NUM_INTRAOP_THREADS', '1')
os.environ.setdefault('TF_NUM_INTEROP_THREADS', '2')
# Output is that of a pipe, whatever terminal the tests are started in.
for _name in ('COLUMNS', 'LINES', 'FORCE_COLOR', 'NO_COLOR'):
  os.environ.pop(_name, None)
# Imports make much that stays: see pytest_collection_finish.
gc.disable()
# A shell that starts the tests in the background has them ignore SIGINT, and
# with them TFF's worker process, which TFF ends by it and waits for.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
  signal.signal(signal.SIGINT, signal.default_int_handler)
# So does `nohup` with SIGHUP, which tests send to runs.
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# No deadline, and no check of speed: the first example of a test pays for what
# it imports, and other work may run beside it. In CI the examples are the same
# every time, so that a failure there can be repeated.
_ANY_SPEED = dict(
  deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.register_profile('local', **_ANY_SPEED)
hypothesis.settings.register_profile(
  'ci', derandomize=True, print_blob=True, **_ANY_SPEED
)
hypothesis.settings.load_profile('ci' if os.environ.get('CI') else 'local')

# Tests that train models run first. One of two workers is given the first half,
# so most session fixtures are built once. The last tests are short: a worker
# that is done does not wait long for the other.
_TRAINING = tuple(
  f'tests/{name}'
  for name in (
    'test_demo.py',
    'docs/test_commands_run.py',
    'test_fixture_runs.py',
    'test_examples.py',
    'training/',
    'run/',
    'evaluation/',
    'methods/',
    'exporting/',
    'sweeping/',
  )
)

_REPOSITORY = pathlib.Path(__file__).resolve().parents[1]
_SHARED_DATA = _REPOSITORY / '..' / 'shared' / 'data'


@pytest.fixture(scope='session', autouse=True)
def _elsewhere(tmp_path_factory):
  """Builds fixtures in an empty directory: nobody's files are at hand."""
  directory = tmp_path_factory.mktemp('directories')
  with contextlib.chdir(directory):
    yield directory


@pytest.fixture(autouse=True)
def _own_directory(_elsewhere):
  """Runs each test in an empty directory of its own."""
  directory = pathlib.Path(tempfile.mkdtemp(dir=_elsewhere))
  # Also of those tests that take another user's rights.
  directory.chmod(0o755)
  with contextlib.chdir(directory):
    yield


@pytest.fixture(scope='session')
def shared_data():
  """Returns a function from a real corpus's name to its directory.

  The function skips the test where the corpora do not lie beside the
  repository.
  """

  def find(name: str) -> pathlib.Path:
    path = _SHARED_DATA / name
    if not path.exists():
      pytest.skip(f'needs the corpus ../shared/data/{name}, which is not there')
    return path

  return find


@pytest.fixture
def small_disk(tmp_path):
  """A file system of 256 KiB; skips where none can be mounted."""
  path = tmp_path / 'disk'
  path.mkdir()
  mount = ['mount', '-t', 'tmpfs', '-o', 'size=256k', 'tmpfs', str(path)]
  try:
    done = subprocess.run(mount, capture_output=True)
  except FileNotFoundError:
    pytest.skip('there is no mount command')
  if done.returncode:
    pytest.skip('needs the right to mount a file system')
  yield path
  subprocess.run(['umount', str(path)], check=True)


@pytest.fixture
def plain_directory():
  """A directory of a user whom permissions hold back, as root they do not."""
  nobody = 65534
  with tempfile.TemporaryDirectory() as directory:
    is_root = os.geteuid() == 0
    if is_root:
      os.chown(directory, nobody, nobody)
      os.seteuid(nobody)
    try:
      yield pathlib.Path(directory)
    finally:
      if is_root:
        os.seteuid(0)


@pytest.fixture(scope='session', autouse=True)
def _no_worker_survives():
  """Fails the session's last test if TFF's worker process outlives it."""
  yield
  _drop_stock_context()
  deadline = time.monotonic() + 60
  while (
    left := worker_processes.below(os.getpid())
  ) and time.monotonic() < deadline:
    time.sleep(0.1)
  if left:
    pytest.fail(
      f'worker_binary processes outlive the tests: {left}. Run TFF '
      'computations in set_in_process_context(), or end the context.'
    )


def pytest_collection_modifyitems(items):
  items.sort(key=lambda item: not item.nodeid.startswith(_TRAINING))


def pytest_collection_finish():
  # What is imported stays, and is not looked through again and again: a tenth
  # of the time where graphs are traced.
  gc.collect()
  gc.freeze()
  gc.set_threshold(100_000, 20, 100)
  gc.enable()


def pytest_sessionfinish():
  # Also where no test ran: collecting them has imported TFF.
  _drop_stock_context()


def _drop_stock_context():
  """Ends TFF's default context while the interpreter is still whole.

  TFF makes one when it is imported. Its worker process, if it started one, ends
  when it is collected; at the interpreter's exit that prints an error instead.
  """
  if 'tensorflow_federated' in sys.modules:
    from tff_fedfish.runtime.in_process_context import set_in_process_context

    set_in_process_context()
    gc.collect()


@pytest.fixture(scope='session', autouse=True)
def _no_stages():
  """Leaves out the lines on slow stages, which a busy machine would print."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr('tff_fedfish.progress._MIN_STAGE_SECONDS', float('inf'))
    yield


@pytest.fixture(scope='session', autouse=True)
def _kept_builds():
  """Keeps what was built for more configs than a user's process does."""
  with pytest.MonkeyPatch.context() as patch:
    # Some tests need no TensorFlow, which takes seconds to import.
    if 'tensorflow' in sys.modules:
      patch.setattr('tff_fedfish.run.build.MAX_KEPT', 8)
    yield


@pytest.fixture(scope='session')
def small_inputs(tmp_path_factory):
  """A grouped corpus of a dozen hosts and a vocabulary, (corpus, vocabulary).

  Made by the real commands. Tests must not change them.
  """
  import small_runs

  directory = tmp_path_factory.mktemp('small_inputs')
  corpus = small_runs.make_corpus(directory)
  return corpus, small_runs.make_vocabulary(directory, corpus)


@pytest.fixture(scope='session')
def small_tokens(small_inputs):
  """The same with the corpus's tokens, (token store, vocabulary)."""
  import small_runs

  corpus, vocabulary = small_inputs
  return small_runs.make_tokens(corpus, vocabulary), vocabulary


@pytest.fixture(scope='session')
def small_images(tmp_path_factory):
  """MNIST by writer with seven writers."""
  import small_image_runs

  return small_image_runs.write_corpus(tmp_path_factory.mktemp('mnist') / 'raw')


@pytest.fixture(scope='session')
def small_mnist(tmp_path_factory):
  """Four files of MNIST with 60 images to train on and 30 for tests."""
  import personal_runs

  return personal_runs.write_corpus(tmp_path_factory.mktemp('mnist') / 'raw')


@pytest.fixture(scope='session')
def small_image_run(small_images, tmp_path_factory):
  """A finished, uninterrupted run of three rounds. Tests must not change it."""
  import small_image_runs

  workdir = tmp_path_factory.mktemp('small_image_runs') / 'finished'
  assert small_image_runs.train(small_images, workdir) == 0
  return workdir


@pytest.fixture(scope='session')
def small_run(small_inputs, tmp_path_factory):
  """A finished, uninterrupted run of four rounds. Tests must not change it."""
  import small_runs

  workdir = tmp_path_factory.mktemp('small_runs') / 'finished'
  assert small_runs.train(small_inputs, workdir) == 0
  return workdir


@pytest.fixture(scope='session')
def small_export(small_run, tmp_path_factory):
  """The run's model as transformers reads it. Tests must not change it."""
  from tff_fedfish.exporting.export import export

  output = tmp_path_factory.mktemp('small_export') / 'model'
  export(small_run, output, ['huggingface'])
  return output


@pytest.fixture
def two_blocks(monkeypatch):
  """Cuts the ResNet to two of its eight blocks: all take long to trace.

  The first has a plain shortcut and one channel in a norm's group; the second
  projects and has two.
  """
  shapes = 'models.image_model_config'
  monkeypatch.setattr(f'{shapes}._RESNET_STAGES', ((32, 1), (64, 2)))
  monkeypatch.setattr(f'{shapes}._RESNET_BLOCKS_PER_STAGE', 1)


@pytest.fixture(scope='module')
def stock_context():
  """A context of TFF's own, in its second process."""
  import tensorflow_federated as tff

  before = set(worker_processes.below(os.getpid()))
  # The default context of TFF cannot run secure sums; this one can.
  context = tff.backends.test.create_sync_test_cpp_execution_context()
  yield context
  # TFF would interrupt its worker and wait for it: for ever, if these tests
  # were started in the background of a script.
  for worker in set(worker_processes.below(os.getpid())) - before:
    os.kill(worker, signal.SIGKILL)
  context._executor_factory = None

"""How far a grouping job is: a moving line on a terminal, else one line."""

import contextlib
import threading
from collections.abc import Callable, Iterator

Watch = Callable[[str, int], None]
"""Called with (staging directory, number of reading tasks) at the start."""


@contextlib.contextmanager
def show_progress(num_files: int, num_shards: int, key: str) -> Iterator[Watch]:
  """Shows the progress of the job that is run inside.

  Args:
    num_files: Raw files.
    num_shards: TFRecord files to be written.
    key: What examples are grouped by.

  Yields:
    What the job is to be watched with.
  """
  import rich.console
  import rich.markup
  import rich.progress

  console = rich.console.Console(stderr=True)
  title = (
    f'Grouping {_number(num_files, "file")} by {key} into '
    f'{_number(num_shards, "shard")}'
  )
  if not console.is_terminal:
    # The key may be a field of any name.
    console.print(title, soft_wrap=True, highlight=False, markup=False)
    yield lambda staging, num_tasks: None
    return
  title = rich.markup.escape(title)
  with rich.progress.Progress(
    rich.progress.SpinnerColumn(),
    '{task.description}',
    rich.progress.TimeElapsedColumn(),
    console=console,
    transient=True,
  ) as bar:
    task = bar.add_task(title)
    done = threading.Event()
    threads = []

    def poll(staging: str, num_tasks: int) -> None:
      from pipelines import finish_corpus, input_files

      # Looking is free on a local disk only.
      seconds = 10.0 if input_files.is_remote(staging) else 0.5
      while not done.wait(seconds):
        read, written = finish_corpus.progress(staging)
        bar.update(
          task,
          description=f'{title}: {read}/{num_tasks} parts of the input read, '
          f'{written}/{num_shards} shards written',
        )

    def watch(staging: str, num_tasks: int) -> None:
      threads.append(
        threading.Thread(target=poll, args=(staging, num_tasks), daemon=True)
      )
      threads[-1].start()

    try:
      yield watch
    finally:
      done.set()
      for thread in threads:
        thread.join()


def _number(count: int, what: str) -> str:
  return f'{count:,} {what}{"s" * (count != 1)}'

"""Runs the toy regression and writes what it shows."""

import os
import pathlib

from tff_fedfish import files
from tff_fedfish.progress import Progress
from tff_fedfish.toy import task
from tff_fedfish.toy.results import SupportSummary, summarize, to_json_dict


def run_toy(
  output: str | os.PathLike, settings: task.ToySettings
) -> tuple[pathlib.Path, list[SupportSummary]]:
  """Runs one round for every seed and support, and writes the results.

  Args:
    output: A directory that is new or empty. Receives `index.html`, `toy.json`,
      `toy.svg` and `toy.png`, all or none.
    settings: What to run.

  Returns:
    (path of the page, summaries by support).

  Raises:
    UserError: If the output cannot be used.
  """
  output = files.require_usable_output(output, '--output')
  # Late: the errors above must not wait for TensorFlow and matplotlib.
  from tff_fedfish.toy import one_round
  from tff_fedfish.toy.figure import toy_figure
  from tff_fedfish.toy.page import render_page

  seeds = []
  with Progress('toy', settings.num_seeds, unit='seed') as progress:
    for seed in range(settings.num_seeds):
      seeds.append(one_round.run_rounds(seed, settings))
      progress.advance()
  summaries = summarize(seeds)
  figure = toy_figure(seeds, summaries)
  with files.write_directory_atomically(output) as directory:
    files.write_json(directory / 'toy.json', to_json_dict(seeds, settings))
    (directory / 'toy.svg').write_text(f'{figure.svg}\n', encoding='utf-8')
    (directory / 'toy.png').write_bytes(figure.png)
    page = render_page(seeds, summaries, settings, figure)
    (directory / 'index.html').write_text(page, encoding='utf-8')
  return output / 'index.html', summaries

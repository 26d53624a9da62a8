"""The toy regression as one HTML page, in the look of the report."""

import dataclasses
import re
from collections.abc import Iterator, Sequence

import jinja2
import markupsafe

from tff_fedfish.reporting.evaluations import Interval
from tff_fedfish.reporting.figures import Figure
from tff_fedfish.toy import task
from tff_fedfish.toy.figure import CLIENT_COLORS, method_styles
from tff_fedfish.toy.results import (
  METHODS,
  Round,
  SupportSummary,
  findings,
  largest_local_mse,
  signed,
)
from tff_fedfish.version import __version__

_TEMPLATE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="generator" content="fedfish toy {{ version }}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; \
style-src 'unsafe-inline'">
<title>{{ title }}</title>
{{ style }}
</head>
{% macro swatch(color, shade) -%}
<span class="swatch" style="background:{{ shade }};border-color:{{ color }}">\
</span>
{%- endmacro %}
<body>
<header>
<h1>{{ title }}</h1>
<p class="lead">{{ findings }}</p>
<ul class="key" aria-label="Colours">
{% for color in client_colors %}
<li>{{ swatch(color, color) }}client {{ loop.index }}</li>
{% endfor %}
{% for method, name in methods.items() %}
<li>{{ swatch(looks[method].color, looks[method].shade) }}{{ name }}</li>
{% endfor %}
</ul>
<nav aria-label="Sections">
<a href="#functions">Functions and barriers</a>
<a href="#results">Results</a>
<a href="#clients">Client by client</a>
<a href="#settings">Settings</a>
<a href="#reproduce">Reproduce</a>
</nav>
</header>
<main>
<section aria-labelledby="functions">
<h2 id="functions">Functions and barriers</h2>
<p>Two clients learn one function, {{ target }}, from inputs that overlap \
fully, in part, or not at all. Both start from the same weights; their local \
models are then made into one global model, once by FedAvg and once by \
FedFish.</p>
<div class="plots">
<figure class="wide" id="figure-1">
<h3>{{ figure.title }}</h3>
{{ figure.svg }}
<figcaption><b>Figure 1.</b> {{ figure.caption }} <span class="hidden">Also \
in toy.png and toy.svg.</span></figcaption>
</figure>
</div>
</section>
<section aria-labelledby="results">
<h2 id="results">Results</h2>
<p class="fine"><b>★</b> Lower mean of the row, as shown. Small print: \
95&nbsp;% bootstrap interval over seeds. The barrier is the mean squared error \
of the global model minus that of the client’s own model, on the client’s \
training data, averaged over the two clients: positive is worse. Best \
constant: the same of a model that predicts one number, the best for both \
clients together.</p>
<div class="scroll"><table class="main" aria-labelledby="results">
<thead><tr><th class="left" scope="col">Inputs of the clients</th>
{% for name in methods.values() %}
<th scope="col">{{ name }}</th>
{% endfor %}
<th scope="col">FedFish − FedAvg</th>
<th scope="col">Best constant</th>
<th scope="col">Seeds with FedFish lower</th></tr></thead>
<tbody>
{% for row in rows %}
<tr><th scope="row">{{ row.overlap }}</th>
{% for cell in row.cells %}
<td{% if cell.is_best %} class="best"{% endif %}><span class="value">\
{% if cell.is_best %}<span class="star" aria-hidden="true">★</span>\
<span class="hidden">lower: </span>{% endif %}{{ cell.text }}</span>\
<span class="ci">{{ cell.interval }}</span></td>
{% endfor %}
<td><span class="value">{{ row.constant }}</span></td>
<td><span class="value">{{ row.lower }}</span></td></tr>
{% endfor %}
</tbody></table></div>
</section>
<section aria-labelledby="clients">
<h2 id="clients">Client by client</h2>
<p class="fine">Mean squared error of each model on the client’s training \
data. The worst fit of a client’s own model is {{ largest_local_mse }}. All \
numbers are also in toy.json.</p>
<details>
<summary>All clients</summary>
<div class="scroll"><table class="list">
<thead><tr>
{% for heading in ('Seed', 'Inputs', 'Client', 'Own model') %}
<th scope="col">{{ heading }}</th>
{% endfor %}
{% for name in methods.values() %}
<th scope="col">{{ name }}</th>
{% endfor %}
</tr></thead>
<tbody>
{% for seed, overlap, client, errors in client_rows %}
<tr><th scope="row">{{ seed }}</th><td>{{ overlap }}</td><td>{{ client }}</td>
{% for error in errors %}
<td class="number">{{ error }}</td>
{% endfor %}
</tr>
{% endfor %}
</tbody></table></div>
</details>
</section>
<section aria-labelledby="settings">
<h2 id="settings">Settings</h2>
<div class="scroll"><table class="list">
<thead><tr><th scope="col">Setting</th><th scope="col">Value</th></tr></thead>
<tbody>
{% for name, value in settings.items() %}
<tr><th scope="row"><code>{{ name }}</code></th><td>{{ value }}</td></tr>
{% endfor %}
</tbody></table></div>
</section>
<section aria-labelledby="reproduce">
<h2 id="reproduce">How to reproduce</h2>
<pre class="commands"><code>fedfish toy --num_seeds \
{{ settings.num_seeds }}</code></pre>
</section>
</main>
<footer>Written by <code>fedfish toy</code> {{ version }}. Numbers: toy.json; \
figure: toy.svg and toy.png.</footer>
</body>
</html>
"""


def render_page(
  seeds: Sequence[Sequence[Round]],
  summaries: Sequence[SupportSummary],
  settings: task.ToySettings,
  figure: Figure,
) -> str:
  """Returns the page: HTML that refers to nothing outside itself.

  Args:
    seeds: For each seed its rounds.
    summaries: Of all of them.
    settings: With which they were run.
    figure: Of the same.
  """
  environment = jinja2.Environment(
    loader=jinja2.PackageLoader('tff_fedfish.reporting'),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
  )
  return environment.from_string(_TEMPLATE).render(
    version=__version__,
    title='Toy regression: FedAvg and FedFish',
    style=_report_style(environment),
    findings=findings(summaries),
    client_colors=CLIENT_COLORS,
    methods=METHODS,
    looks=method_styles(),
    target=task.TARGET,
    figure=figure,
    rows=[_row(summary) for summary in summaries],
    largest_local_mse=signed(largest_local_mse(seeds)),
    client_rows=_client_rows(seeds, summaries),
    settings={
      **dataclasses.asdict(settings),
      **{
        f'inputs, {summary.overlap}': ' and '.join(
          f'{signed(low, "z.1f")} to {signed(high, "z.1f")}'
          for low, high in task.SUPPORTS[summary.support]
        )
        for summary in summaries
      },
    },
  )


def _report_style(environment: jinja2.Environment) -> markupsafe.Markup:
  """Returns the style element of the report's page: one look, kept once."""
  source, _, _ = environment.loader.get_source(environment, 'report.html.j2')
  return markupsafe.Markup(re.search(r'<style>.*?</style>', source, re.S)[0])


def _row(summary: SupportSummary) -> dict:
  """Returns the texts of one row of the table of results."""
  texts = {
    method: signed(interval.mean)
    for method, interval in summary.barriers.items()
  }
  lowest = min(summary.barriers.values(), key=lambda interval: interval.mean)
  cells = [
    _cell(interval, is_best=texts[method] == signed(lowest.mean))
    for method, interval in summary.barriers.items()
  ]
  return {
    'overlap': summary.overlap,
    'cells': [*cells, _cell(summary.difference, is_best=False)],
    'constant': signed(summary.constant_barrier),
    'lower': f'{summary.num_lower} of {summary.num_seeds}',
  }


def _cell(interval: Interval, *, is_best: bool) -> dict:
  return {
    'text': signed(interval.mean),
    'interval': f'{signed(interval.ci_low)} to {signed(interval.ci_high)}',
    'is_best': is_best,
  }


def _client_rows(seeds, summaries) -> Iterator[tuple]:
  """Yields (seed, overlap, client, errors as text)."""
  for seed, rounds in enumerate(seeds):
    for round_, summary in zip(rounds, summaries, strict=True):
      errors = zip(
        round_.local_mse,
        *(round_.global_mse[method] for method in METHODS),
        strict=True,
      )
      for client, row in enumerate(errors, start=1):
        yield seed, summary.overlap, client, [signed(error) for error in row]

"""Which curves a report has: scores by rounds, local epochs and traffic."""

from collections.abc import Iterable, Sequence

from tff_fedfish.reporting import curves, figures
from tff_fedfish.reporting.curves import Place, Score
from tff_fedfish.reporting.runs import Run
from tff_fedfish.reporting.style import RunStyle, local_epochs
from tff_fedfish.reporting.words import words_of

_ROUND = Place(curves.ROUND, 'Round', 'round')
_LOCAL_EPOCHS = Place(
  curves.LOCAL_EPOCHS, 'Local epochs (cumulative)', 'local epochs'
)


def learning_curves(
  runs: Sequence[Run], styles: dict[str, RunStyle]
) -> list[figures.Figure]:
  """Returns loss and accuracy against rounds, held-out and in training.

  Args:
    runs: The runs of the report.
    styles: Their looks, by label.

  Returns:
    One figure per score that any run has.
  """
  words = words_of(runs)
  train = (
    f'Mean over the {words.unit}s of all local steps of the round’s cohort, '
    'each batch scored just before the step that learns from it; every round '
    'has another cohort, and later local epochs have seen the batch before.'
  )
  accuracy = curves.held_out_accuracy(words)
  wanted: dict[str, Score | None] = {
    'held_out_loss': Score(
      'held_out/loss', f'Held-out {words.loss_label}', 1.0, accuracy.caption
    ),
    'held_out_accuracy': accuracy,
    'personalized_accuracy': curves.personalized_accuracy(runs, words),
    'train_loss': Score('train/loss', f'Train {words.loss_label}', 1.0, train),
    'train_accuracy': Score(
      'train/accuracy', f'Train {words.accuracy_label}', 100.0, train
    ),
  }
  return _draw(
    runs,
    styles,
    [(f'curve_{name}', _ROUND, score, '{}') for name, score in wanted.items()],
  )


def cost_curves(
  runs: Sequence[Run], styles: dict[str, RunStyle]
) -> list[figures.Figure]:
  """Returns accuracies against local epochs and against communication.

  Args:
    runs: The runs of the report.
    styles: Their looks, by label.

  Returns:
    Held-out and, where runs were evaluated at several rounds, personalized
    accuracy against each cost that any run reports; against local epochs only
    if runs differ in these, as it is that against rounds otherwise.
  """
  words = words_of(runs)
  scores = {
    '': curves.held_out_accuracy(words),
    'personalized_': curves.personalized_accuracy(runs, words),
  }
  spent = 'one unit is one model of float32 of a client that takes part in '
  spent += 'every round.'
  costs = {
    'uplink': (_place_of_units('uplink'), f'Uplink, summed; {spent}'),
    'total': (
      _place_of_units('total'),
      f'Uplink and downlink, summed; {spent}',
    ),
  }
  if len(local_epochs(runs)) > 1:
    further = [
      f' {title}’s pass after local training, where it makes one, comes on top.'
      for title in _methods_with_a_pass(runs)
    ]
    costs['local_epochs'] = (
      _LOCAL_EPOCHS,
      'Local epochs: rounds so far times local epochs per round, what a client '
      f'that takes part in every round has computed.{"".join(further)}',
    )
  return _draw(
    runs,
    styles,
    [
      (
        f'communication_{prefix}{name}',
        place,
        score,
        f'Further up and to the left is better. {caption} {{}}',
      )
      for name, (place, caption) in costs.items()
      for prefix, score in scores.items()
    ],
  )


def barrier_curves(
  runs: Sequence[Run], styles: dict[str, RunStyle]
) -> list[figures.Figure]:
  """Returns the barrier against rounds, of runs that measure it in training.

  Args:
    runs: The runs of the report.
    styles: Their looks, by label.

  Returns:
    The barrier in the loss and in the error, where any run has them.
  """
  unit = f'nats per {words_of(runs).unit}'
  caption = (
    'Mean over the clients of the round, on the data that they trained on: the '
    'new global weights’ {} minus that of the client’s own trained weights; '
    'lower is better.'
  )
  measures = {
    'loss': (f'Barrier in the loss ({unit})', 1.0),
    'error': ('Barrier in the error (points)', 100.0),
  }
  return _draw(
    runs,
    styles,
    [
      (
        f'barrier_{measure}_by_round',
        _ROUND,
        Score(f'barrier/{measure}', label, scale, caption.format(measure)),
        '{}',
      )
      for measure, (label, scale) in measures.items()
    ],
  )


def _draw(
  runs: Sequence[Run],
  styles: dict[str, RunStyle],
  wanted: Sequence[tuple[str, Place, Score | None, str]],
) -> list[figures.Figure]:
  """Returns those of the curves that any run has points for.

  Args:
    runs: The runs of the report.
    styles: Their looks, by label.
    wanted: For each curve its name, its place, its score (None: no curve) and
      its caption, in which '{}' stands for the score's own.
  """
  drawn = [
    curves.curve_figure(
      runs,
      styles,
      place=place,
      score=score,
      name=name,
      caption=caption.replace('{}', score.caption),
    )
    for name, place, score, caption in wanted
    if score
  ]
  return [figure for figure in drawn if figure]


def _methods_with_a_pass(runs) -> Iterable[str]:
  """Returns the titles of methods whose clients compute more than epochs."""
  return dict.fromkeys(
    run.method
    for run in runs
    if (config := run.train_config)
    and config.method.cost(config).pass_after_training != 'none'
  )


def _place_of_units(kind):
  label = {'uplink': 'Uplink', 'total': 'Uplink and downlink'}[kind]
  return Place(
    f'communication/{kind}_units',
    f'{label} (units, cumulative)',
    label.lower(),
  )

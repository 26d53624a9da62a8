"""Settings side by side, and commands that repeat the runs."""

import json
import pathlib
import shlex

from tff_fedfish.config import load as config_loading
from tff_fedfish.evaluation import results
from tff_fedfish.evaluation.summary import summarize_evaluation
from tff_fedfish.evaluation.tables import ClientBarrier, ClientEvaluation
from tff_fedfish.reporting import loading, report, settings
from tff_fedfish.run.corpus_identity import CorpusIdentity

_CONFIGS = pathlib.Path(__file__).parents[2] / 'configs'


def test_flatten():
  assert settings.flatten({'a': {'b': {'c': 1}, 'd': [2]}, 'e': {}}) == {
    'a.b.c': 1,
    'a.d': [2],
    'e': {},
  }


def test_compare_shows_values_and_differences():
  compared = settings.compare(
    [{'a': None, 'b': {'c': 1}}, {'a': None, 'b': {'c': 1.5}, 'd': 'x'}]
  )
  assert list(compared.itertuples(name=None)) == [
    ('a', 'null', 'null'),
    ('b.c', '1', '1.5'),
    ('d', '(not set)', 'x'),
  ]
  assert list(settings.differing(compared).index) == ['b.c', 'd']


def test_what_differs_between_a_pair(pair):
  runs = loading.load_runs(pair)
  compared = settings.compare([run.config for run in runs])
  differing = list(settings.differing(compared).itertuples(name=None))
  assert differing == [('algorithm.name', 'fed_avg', 'fed_fish')]


def test_commands(pair):
  commands = [
    ' '.join(command)
    for command in settings.reproduction_commands(loading.load_runs(pair))
  ]
  assert commands[:3] == [
    'fedfish train --config reproduce.py --workdir runs/average '
    '--config.algorithm.name=fed_avg',
    'fedfish evaluate --checkpoint runs/average --data corpora/debian '
    '--fractions 0,0.5 --max_clients 4 '
    '--output runs/average/evaluations/held_out --barrier',
    'fedfish evaluate --checkpoint runs/average '
    '--data CORPUS_sotu_by_president --fractions 0,0.25 --max_clients 2 '
    '--output runs/average/evaluations/sotu',
  ]
  assert commands[-1] == (
    'fedfish report --runs runs/average runs/fish --output report'
  )


def test_commands_quote_what_a_shell_would_read(
  tmp_path, write_run, write_evaluation
):
  directory = write_run(tmp_path / 'a; rm $HOME')
  write_evaluation(directory, "it's", round_num=0)
  commands = settings.reproduction_commands(loading.load_runs([directory]))
  words = shlex.split(' '.join(commands[1]))
  assert words[words.index('--output') + 1] == (
    "runs/a; rm $HOME/evaluations/it's"
  )
  # Not the last round: its own checkpoint is named.
  assert words[words.index('--checkpoint') + 1] == (
    'runs/a; rm $HOME/checkpoints/round_00000000'
  )


def test_the_file_and_the_commands_give_the_configurations_back(
  tmp_path, write_run
):
  configs, directories = [], []
  for name, epochs, optimizer in (
    ('fed_avg', 1, 'sgd'),
    ('fed_fish', 8, 'adam'),
  ):
    config = config_loading.load_config(
      _CONFIGS / 'demo.py',
      [
        f'--config.algorithm.name={name}',
        f'--config.client_work.num_local_epochs={epochs}',
        f'--config.server.optimizer={optimizer}',
        '--config.data.directory=it\'s "here"',
      ],
    )
    directory = write_run(tmp_path / name)
    (directory / 'config.json').write_text(
      json.dumps(config_loading.to_json_dict(config))
    )
    configs.append(config)
    directories.append(directory)
  runs = loading.load_runs(directories)
  path = tmp_path / settings.REPRODUCTION_FILE
  path.write_text(settings.reproduction_config(runs))
  commands = settings.reproduction_commands(runs)
  for config, command in zip(configs, commands, strict=False):
    words = shlex.split(' '.join(command))
    overrides = [word for word in words if word.startswith('--config.')]
    assert len(overrides) == 3
    assert config_loading.load_config(path, overrides) == config


def test_settings_that_a_method_ignores_are_left_out(tmp_path, write_run):
  # A former version wrote settings of FedFish into runs of FedAvg.
  directories = [
    write_run(
      tmp_path / estimator,
      algorithm=name,
      settings={'algorithm.fisher_estimator': estimator},
    )
    for name, estimator in (
      ('fed_avg', 'extra_pass'),
      ('fed_fish', 'example_sq'),
    )
  ]
  runs = loading.load_runs(directories)
  path = tmp_path / settings.REPRODUCTION_FILE
  path.write_text(settings.reproduction_config(runs))
  commands = settings.reproduction_commands(runs)
  assert [command[3:] for command in commands[:2]] == [
    ['--config.algorithm.name=fed_avg'],
    ['--config.algorithm.name=fed_fish'],
  ]
  found = config_loading.load_config(path, commands[1][3:])
  assert found.algorithm.fisher_estimator == 'example_sq'


def test_reads_what_the_evaluation_writes(tmp_path, write_run):
  directory = write_run(tmp_path / 'run')
  clients = [
    ClientEvaluation(
      client_id=client_id,
      fraction=fraction,
      num_evaluation_sequences=2,
      num_evaluation_tokens=200,
      num_personalization_sequences=int(4 * fraction),
      loss_before=6.0,
      accuracy_before=0.1,
      loss_after=6.0 - gain * fraction,
      accuracy_after=0.1 + fraction / 10,
    )
    for client_id, gain in ((b'a.org', 2.0), (b'\xff<b>', -1.0))
    for fraction in (0.0, 0.5)
  ]
  barriers = [
    ClientBarrier(
      client_id=b'c',
      local_loss=5.0,
      global_loss=5.75,
      local_accuracy=0.25,
      global_accuracy=0.125,
    )
  ]
  summary = summarize_evaluation(
    clients,
    kind='held_out',
    corpus='debian',
    corpus_identity=CorpusIdentity(
      name='c', key=None, part=None, grouping='g', fingerprint='f'
    ),
    checkpoint={'round': 2},
    personalization={'epochs': 4, 'learning_rate': 0.01},
    skipped_clients={'too_small': 3},
    barriers=barriers,
  )
  results.write_evaluation(
    directory / 'evaluations' / 'debian', summary, clients, barriers
  )
  [run] = loading.load_runs([directory])
  evaluation = run.held_out()
  # 6 - 2 x 0.5 = 5 and 6 + 1 x 0.5 = 6.5.
  assert evaluation.scores[0.5, 'loss'].mean == 5.75
  assert evaluation.scores[0.5, 'accuracy'].mean == 0.1 + 0.05
  assert evaluation.barrier['loss'].mean == 0.75
  assert evaluation.barrier['error'].mean == 0.125
  assert evaluation.skipped_clients == {'too_small': 3}
  command = ' '.join(settings.reproduction_commands([run])[1])
  assert '--personalization_epochs 4 --learning_rate 0.01' in command


def test_the_privacy_seed_is_left_out_everywhere(tmp_path, write_run):
  runs = loading.load_runs(
    [
      write_run(
        tmp_path / str(seed), settings={'seeds.privacy_seed': 424_240 + seed}
      )
      for seed in (1, 2)
    ]
  )
  path = report.write_report(runs, tmp_path / 'report', figure_format='svg')
  texts = [
    file.read_text()
    for file in path.parent.iterdir()
    if file.suffix in ('.html', '.py', '.csv')
  ]
  assert {'index.html', 'reproduce.py'} <= {
    f.name for f in path.parent.iterdir()
  }
  assert not any('privacy_seed' in text or '42424' in text for text in texts)

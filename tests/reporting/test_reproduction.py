"""Settings side by side, and commands that repeat the runs."""

import json
import pathlib
import shlex
import shutil
import subprocess

from report_runs import (
  add_metrics,
  read_report,
  write_evaluation,
  write_methods,
  write_run,
  write_scored,
)

from tff_fedfish.cli import main
from tff_fedfish.config import load as config_loading
from tff_fedfish.reporting import loading, notes, reproduction, settings

_CONFIGS = pathlib.Path(__file__).parents[2] / 'configs'
_FINE_TUNING = {
  **{'epochs': 4, 'learning_rate': 0.01, 'sequence_length': 128},
  **{'split_unit': 'sequences', 'max_sequences_per_client': None},
}


def _commands(directories):
  runs = loading.load_runs(directories)
  return [' '.join(c) for c in reproduction.reproduction_commands(runs)]


def test_values_side_by_side():
  compared = settings.compare(
    [{'a': None, 'b': {'c': 1}}, {'a': None, 'b': {'c': 1.5}, 'd': [2]}]
  )
  assert list(compared.itertuples(name=None)) == [
    ('a', 'null', 'null'),
    ('b.c', '1', '1.5'),
    ('d', '(not set)', '[2]'),
  ]


def test_commands(tmp_path):
  run = write_run(tmp_path / 'fish')
  write_evaluation(
    run, 'e', personalization=_FINE_TUNING, barriers=((4.0, 4.5, 0.2, 0.1),)
  )
  # Not the last round: its own checkpoint is named.
  write_evaluation(run, 'sotu', kind='transfer', corpus='sotu', round_num=0)
  assert _commands([run]) == [
    'fedfish train --config configs/fish/config.json --workdir runs/fish',
    'fedfish evaluate --checkpoint runs/fish --data corpora/debian '
    '--fractions 0,0.5 --max_clients 4 --max_sequences_per_client all '
    '--sequence_length 128 --split_unit sequences --personalization_epochs 4 '
    '--learning_rate 0.01 --output runs/fish/evaluations/e --barrier',
    'fedfish evaluate --checkpoint runs/fish/checkpoints/round_00000000 '
    '--data CORPUS_sotu --fractions 0,0.5 --max_clients 4 '
    '--max_sequences_per_client all --output runs/fish/evaluations/sotu',
    'fedfish report --runs runs/fish --output report',
  ]


def test_commands_of_own_rows(tmp_path):
  run = write_run(tmp_path / 'own', algorithm='local_only')
  options = {'kind': 'own_test', 'losses': {0.0: (3.0,) * 4}}
  rows = {'sequence_length': 128, 'max_sequences_per_client': 16}
  write_evaluation(run, 'all', **options, personalization=rows)
  skipped = {'without_own_rows': 2, 'beyond_max_clients': 5}
  facts = {'skipped_clients': skipped}
  write_evaluation(run, 'some', **options, facts=facts)
  evaluate = 'fedfish evaluate --checkpoint runs/own --data corpora/debian '
  # They are as long as in training.
  assert _commands([run])[1:3] == [
    f'{evaluate}--fractions 0 --max_clients all --max_sequences_per_client 16 '
    '--client_split own_test --output runs/own/evaluations/all',
    # 4 with rows and 2 without.
    f'{evaluate}--fractions 0 --max_clients 6 --max_sequences_per_client all '
    '--client_split own_test --output runs/own/evaluations/some',
  ]


def test_fractions_are_repeated_exactly(tmp_path):
  losses = {0.0: (5.0,), 1 / 3: (4.0,), 0.5: (4.0,)}
  run = write_scored(tmp_path / 'run', losses)
  [_, evaluate, _] = _commands([run])
  assert f'--fractions 0,{1 / 3},0.5 ' in evaluate


def test_another_part_of_the_corpus_is_named(tmp_path):
  run = write_run(tmp_path / 'run')
  own = {'name': 'posts', 'key': 'author', 'part': 'train', 'grouping': 'g'}
  own |= {'schema_version': 1, 'fingerprint': 'own'}
  (run / 'corpus.json').write_text(json.dumps(own))
  del own['schema_version']
  part = {**own, 'part': 'held_out', 'fingerprint': 'part'}
  facts = {'corpus_identity': part}
  write_evaluation(run, 'e', corpus='posts, held_out', facts=facts)
  assert "--data 'CORPUS_posts, held_out'" in _commands([run])[1]


def test_fractions_keep_their_digits(tmp_path):
  losses = {0.0: (3.0,), 1 / 3: (2.0,), 1e-07: (2.0,)}
  run = write_scored(tmp_path / 'run', losses)
  assert '--fractions 0,1e-07,0.3333333333333333 ' in _commands([run])[1]


def test_a_barrier_is_no_score(tmp_path):
  barriers = ((4.0, 4.5, 0.2, 0.1),)
  options = {'algorithm': 'fed_avg', 'evaluation': {'barriers': barriers}}
  scored = write_scored(tmp_path / 'a', 6.0, **options)
  runs = loading.load_runs([scored, write_run(tmp_path / 'b')])
  [evaluation] = runs[0].evaluations
  commands = [
    reproduction.evaluate_command(run, evaluation, 'w') for run in runs
  ]
  assert ['--barrier' in command for command in commands] == [True, False]


def test_commands_quote_what_a_shell_would_read(tmp_path):
  run = write_run(tmp_path / 'a; rm $HOME')
  write_evaluation(run, "it's")
  train, evaluate, _ = map(shlex.split, _commands([run]))
  assert train[3] == 'configs/a; rm $HOME/config.json'
  place = evaluate[evaluate.index('--output') + 1]
  assert place == "runs/a; rm $HOME/evaluations/it's"


def test_three_seeds_for_every_arm(tmp_path, capsys):
  root = tmp_path / "it's here"
  losses = {'fed_avg': [6.0], 'fed_fish': [5.0]}
  arms = read_report(write_methods(root, losses)).arms
  commands = reproduction.more_seeds_commands(arms)
  # As a shell reads them: two further seeds of each arm, each evaluated.
  read = [shlex.split(' '.join(command)) for command in commands]
  # An evaluation that is there is not made again.
  ends = [words[2].removeprefix(f'{root}/') for words in read[1:-1:2]]
  runs = [f'{name}0_seed{n}' for name in losses for n in (2, 3)]
  assert ends == [f'{run}/evaluations/e' for run in runs]
  read = [words[words.index('fedfish') :] for words in read]
  # A further seed may diverge.
  ends = [w.index('||') if '||' in w else None for w in read]
  assert ends[:-1:2] == [9] * 4
  read = [words[:end] for words, end in zip(read, ends, strict=True)]
  assert [words[1] for words in read] == [*['train', 'evaluate'] * 4, 'report']
  assert read[0][2:] == [
    *('--config', f'{root}/fed_avg0/config.json'),
    *('--workdir', f'{root}/fed_avg0_seed2', '--config.seeds.model_seed=1000'),
    *('--config.seeds.cohort_seed=1002', '--config.seeds.shuffle_seed=1004'),
  ]
  trained = read[:8:2]
  configs = [config_loading.load_config(w[3], w[6:]) for w in trained]
  seeds = [config.seeds for config in configs]
  assert seeds[:2] == seeds[2:] and seeds[0] != seeds[1]
  assert [words[3] for words in read[1:8:2]] == [words[5] for words in trained]
  report = read[-1]
  assert len(report[3 : report.index('--output')]) == 6
  [three] = read_report(write_methods(root / '3', {'fed_avg': [6.0] * 3})).arms
  assert reproduction.more_seeds_commands([three]) == []
  # The command line reads them: only the corpus is not there.
  main.main([*trained[0][1:], '--dry_run'])
  assert "'corpora/debian'" in capsys.readouterr().err


def _trained_seeds(directories):
  arms = read_report(directories).arms
  commands = map(' '.join, reproduction.more_seeds_commands(arms))
  words = [shlex.split(c) for c in commands if c.startswith('fedfish train')]
  return [w[6].removeprefix('--config.seeds.model_seed=') for w in words]


def test_three_seeds_that_the_other_arm_lacks(tmp_path):
  losses = {'fed_avg': [6.0] * 3, 'fed_fish': [5.0] * 5}
  runs = write_methods(tmp_path, losses)
  # 0, 1 and 2 against 2, 3 and 4: one seed in common.
  assert _trained_seeds(runs[:3] + runs[5:]) == ['3', '4', '0', '1']
  assert _trained_seeds(runs) == []


def test_the_files_give_the_configurations_back(tmp_path):
  config = config_loading.load_config(
    _CONFIGS / 'demo.py',
    ['--config.server.optimizer=adam', '--config.data.directory=/it\'s "here"'],
  )
  run = write_run(tmp_path / 'run')
  values = config_loading.to_json_dict(config)
  (run / 'config.json').write_text(json.dumps(values))
  files = reproduction.reproduction_files(loading.load_runs([run]))
  [(name, text)] = files.items()
  path = tmp_path / 'report' / name
  path.parent.mkdir(parents=True)
  path.write_text(text)
  assert config_loading.load_config(path) == config


def test_the_corpus_is_found_from_another_directory(tmp_path, monkeypatch):
  # Trained in `project`, with relative paths; the report is made elsewhere.
  corpus = tmp_path / 'project' / 'corpora' / 'debian'
  corpus.mkdir(parents=True)
  runs = [write_scored(tmp_path / 'a', 6.0, algorithm='fed_avg')]
  runs.append(write_run(tmp_path / 'b'))
  for run in runs:
    values = json.loads((run / 'config.json').read_text())
    values['working_directory'] = str(tmp_path / 'project')
    (run / 'config.json').write_text(json.dumps(values))
  monkeypatch.chdir(tmp_path)
  findings = read_report(runs)
  assert f' --data {corpus} ' in notes.notes(findings)[0]
  texts = [' '.join(c) for c in reproduction.more_seeds_commands(findings.arms)]
  [*_, evaluate] = [text for text in texts if 'fedfish evaluate' in text]
  assert f' --data {corpus} ' in evaluate
  # What is for others has the path as it was typed.
  assert ' --data corpora/debian ' in _commands(runs)[1]


def test_a_run_that_diverges_does_not_end_the_commands(tmp_path):
  losses = {'fed_avg': [6.0] * 2, 'fed_fish': [5.0] * 2}
  options = {'all': {'settings': {'training.max_non_finite_rounds': 1}}}
  runs = write_methods(tmp_path, losses, **options)
  # The first seed of FedAvg; its last good round is 1.
  add_metrics(runs[0], train__update_is_non_finite=(0, 0, 1))
  shutil.rmtree(runs[0] / 'evaluations')
  write_evaluation(runs[0], 'good', round_num=1)
  findings = read_report(runs)
  assert [run.has_diverged for run in findings.runs] == [True, *[False] * 3]
  # As `fedfish train` ends where a run diverges.
  script = 'set -e\nfedfish() { [ $1 = train ] && return 1; echo $4 $6; }\n'
  for commands, num_evaluated in (
    (reproduction.reproduction_commands(findings.runs[:1]), 1),
    (reproduction.more_seeds_commands(findings.arms), 2),
  ):
    text = script + '\n'.join(map(' '.join, commands))
    output = subprocess.check_output(['sh', '-c', text], text=True)
    assert len(output.splitlines()) == num_evaluated + 1


def test_further_seeds_of_private_runs_have_noise_of_their_own(tmp_path):
  private = {'local_privacy.clip_norm': 1.0}
  private['local_privacy.noise_multiplier'] = 1.0
  losses = {'fed_avg': [6.0], 'fed_prox': [5.0]}
  options = {'fed_prox': {'settings': private}}
  runs = write_methods(tmp_path, losses, **options)
  arms = read_report(runs).arms
  texts = [' '.join(c) for c in reproduction.more_seeds_commands(arms)]
  average, prox = (
    [t for t in texts if f'--workdir {tmp_path}/{name}' in t] for name in losses
  )
  assert not any('privacy_seed' in text for text in average)
  # As a shell runs it: the seed is a number of its own in every run.
  echo = 'fedfish() { echo "$@"; };'
  seeds = [
    subprocess.check_output(['sh', '-c', echo + text], text=True)
    .split('privacy_seed=')[1]
    .strip()
    for text in prox
  ]
  assert len(set(seeds)) == 2 and all(0 <= int(s) < 2**31 for s in seeds)
  # A run that was begun goes on with its own.
  (tmp_path / 'fed_prox0_seed2').mkdir()
  (tmp_path / 'fed_prox0_seed2' / 'config.json').touch()
  output = subprocess.check_output(['sh', '-c', echo + prox[0]], text=True)
  assert output == f'train --workdir {tmp_path}/fed_prox0_seed2\n'


def test_further_seeds_differ_from_those_of_the_runs(tmp_path):
  # Seeds 0 and 2000; the third ones would be 2 x 1000 more than the first.
  paths = []
  for method in ('fed_avg', 'fed_fish'):
    for seed in (0, 2000):
      names = ('model', 'cohort', 'shuffle')
      settings = {f'seeds.{name}_seed': seed for name in names}
      path = tmp_path / f'{method}{seed}'
      options = {'algorithm': method, 'settings': settings}
      paths.append(write_scored(path, 6.0, **options))
  commands = reproduction.more_seeds_commands(read_report(paths).arms)
  trained = [c[2] for c in commands if 'fedfish train' in c[0]]
  assert trained == ['--config.seeds.model_seed=3000'] * 2


def test_further_seeds_take_no_name_of_a_run(tmp_path):
  paths = [
    write_scored(tmp_path / name, 6.0, seed=seed, algorithm='fed_avg')
    for name, seed in (('a', 0), ('a_seed2', 5))
  ]
  paths.append(write_scored(tmp_path / 'b', 5.0, seed=0))
  arms = read_report(paths).arms
  commands = reproduction.more_seeds_commands(arms)
  trained = [c[1].split('/')[-1] for c in commands if 'train' in c[0]]
  assert trained == ['a_seed3', 'b_seed2', 'b_seed3']
  # A run that is not over has other scores in the end.
  paths[-1] = write_scored(tmp_path / 'c', 5.0, seed=0, num_rounds=9)
  assert reproduction.more_seeds_commands(read_report(paths).arms) == []


def test_the_privacy_seed_is_left_out(tmp_path):
  run = write_run(tmp_path / 'run', settings={'seeds.privacy_seed': 424_241})
  runs = loading.load_runs([run])
  [text] = reproduction.reproduction_files(runs).values()
  shown = text + str(settings.published(runs[0].config))
  assert 'privacy_seed' not in shown and '424241' not in shown
  assert json.loads(text)['seeds']['split_seed'] == 3

"""The check for processes left behind sees one."""

import os
import shutil
import subprocess

import pytest
import worker_processes


@pytest.fixture
def start():
  processes = []

  def start_one(program):
    # Returns when the program runs, not when the process exists.
    processes.append(subprocess.Popen([program, '60']))
    return processes[-1].pid

  yield start_one
  for process in processes:
    process.kill()
    process.wait()


def test_finds_workers_below(start, tmp_path):
  program = tmp_path / 'worker_binary'
  shutil.copy(shutil.which('sleep'), program)
  before = worker_processes.below(os.getpid())
  other = start('sleep')
  worker = start(program)
  assert worker_processes.below(os.getpid()) == sorted([*before, worker])
  # This process's parent is above it too; another child is not.
  assert worker in worker_processes.below(os.getppid())
  assert worker_processes.below(other) == []


def test_ended_worker_is_not_found(start, tmp_path):
  program = tmp_path / 'worker_binary'
  shutil.copy(shutil.which('true'), program)
  # `true` ends at once and stays a zombie until the fixture waits for it.
  worker = start(program)
  os.waitid(os.P_PID, worker, os.WEXITED | os.WNOWAIT)
  assert worker not in worker_processes.below(os.getpid())

"""Runs a learning process: config, rounds, metrics, checkpoints."""

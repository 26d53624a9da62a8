"""Shared parts of methods: initial weights, the slots of a learning process.

`tff.learning` composes a process from a distributor (server to clients), client
work, an aggregator (clients to server) and a finalizer (server step).
"""

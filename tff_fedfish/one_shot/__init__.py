"""Solvers of one-shot methods: from clients' uploads to the server's model."""

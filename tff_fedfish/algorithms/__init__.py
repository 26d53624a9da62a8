"""Federated algorithms, one file per method, and the slots they share."""

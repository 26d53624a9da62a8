"""Grouped corpora on disk, and what a client's data becomes from them."""

"""Printed results of papers; their methods are spelled here only."""

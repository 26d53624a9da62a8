"""Exports of a trained model, and text that it generates."""

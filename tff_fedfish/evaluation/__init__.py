"""Held-out, personalized and transfer performance, and the barrier."""

"""A trained model for others: as files that need no fedfish, and as text."""

"""The command line, the only part that reads arguments."""

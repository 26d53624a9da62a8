"""Settings of a run: schema, checks, files, command-line overrides."""

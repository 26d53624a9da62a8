"""Apache Beam jobs that group raw corpora by client."""

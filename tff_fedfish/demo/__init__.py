"""The whole way on the shipped corpora, in minutes: `fedfish demo`."""

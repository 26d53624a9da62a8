"""One-shot methods: from the uploads of all clients to one model."""

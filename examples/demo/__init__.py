"""An embedding-model upgrade on real documents, real models and a real PostgreSQL: `make demo`."""

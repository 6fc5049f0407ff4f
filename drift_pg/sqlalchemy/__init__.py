"""SQLAlchemy types for embedding columns, whose distances adapt queries of a newer model."""

"""A plain application whose embedding model changes by a revision of its own Alembic history."""

#!/bin/sh
# The init script of the image: pgvector, then what `drift-pg upgrade` would run.
set -eu
echo 'CREATE EXTENSION IF NOT EXISTS vector;'
drift-pg upgrade --sql

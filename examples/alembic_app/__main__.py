"""Runs the application's history on an embedded PostgreSQL and shows what searches find on the way."""

import os
import sys
from pathlib import Path

import numpy as np
from alembic import command
from alembic.config import Config
from sqlalchemy import Engine, create_engine, insert, make_url
from sqlalchemy.orm import Session

from drift_pg.errors import DriftError
from examples.alembic_app.models import Document
from examples.alembic_app.search import search, search_unadapted
from examples.demo.server import start

HERE = Path(__file__).parent
BUILD = HERE.parents[1] / "build"


def load(session: Session) -> None:
    """Fill the table with documents and their legacy vectors."""
    with np.load(HERE / "documents.npz") as file:
        documents = zip(file["names"].tolist(), file["minilm_l3"].astype(np.float32), strict=True)
    rows = [{"id": i, "name": name, "embedding": vector.tolist()} for i, (name, vector) in enumerate(documents)]
    session.execute(insert(Document), rows)
    session.commit()


def found(engine: Engine, how: object) -> str:
    """The share of queries whose document is among the first ten."""
    with np.load(HERE / "documents.npz") as file:
        queries, answers = file["queries_minilm_l6"].astype(np.float32), file["answers"].tolist()
    with Session(engine) as session:
        hits = [answer in how(session, query.tolist()) for query, answer in zip(queries, answers, strict=True)]
    return f"{sum(hits)} of {len(hits)}"


def refused(engine: Engine) -> str:
    """What a search says before the adapter is there."""
    try:
        return found(engine, search)
    except DriftError as error:
        return f"{type(error).__name__}: {error.message}"


def main() -> int:
    """Create, index, upgrade the model, go back, and upgrade again."""
    url = make_url(start(BUILD / "alembic_app")).set(drivername="postgresql+psycopg")
    os.environ["DATABASE_URL"] = url.render_as_string(hide_password=False)
    config = Config(HERE / "alembic.ini")
    engine = create_engine(url)
    command.upgrade(config, "0003")
    with Session(engine) as session:
        load(session)
    print("alembic upgrade 0003   400 documents, embedded by minilm-l3; 60 queries of minilm-l6")
    print(
        f"  unadapted            their document is among the first ten for {found(engine, search_unadapted)}, and no error"
    )
    print(f"  adapted              {refused(engine)}")
    command.upgrade(config, "head")
    print(f"alembic upgrade head   {found(engine, search)}")
    command.downgrade(config, "-1")
    print(f"alembic downgrade -1   {refused(engine)}")
    command.upgrade(config, "head")
    print(f"alembic upgrade head   {found(engine, search)}")
    engine.dispose()
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Following: vectors of the new model that an application writes fill the legacy column."""

import json
import subprocess
from pathlib import Path

import numpy as np
import psycopg
import pytest

import drift_pg
from drift_pg import errors
from tests import servers
from tests.servers import PGVECTOR_SCHEMA
from tests.tables import Upgrade, vector
from tests.test_rerank import as_role

WHERE = ("docs", "embedding")
NEW = f"ALTER TABLE docs ADD new_embedding {PGVECTOR_SCHEMA}.vector(24)"


class Followed(Upgrade):
    """An upgrade whose application writes vectors of the new model to `new_embedding`, or to a companion."""

    def __init__(self, conn: psycopg.Connection, rng: np.random.Generator, *, companion: bool = False) -> None:
        super().__init__(conn, rng, rows=60)
        self.activate()
        conn.execute(NEW.encode())
        drift_pg.set_query_model(conn, *WHERE, "new")
        if companion:
            drift_pg.create_companion(conn, *WHERE, model="new", text="body")

    def insert(self, key: int, i: int, **more: object) -> None:
        """A row with the new vector of item i."""
        given = {"id": key, "body": f"text {key}", "new_embedding": vector(self.new[i]), **more}
        self.conn.execute(
            f"INSERT INTO docs ({', '.join(given)}) VALUES ({', '.join(['%s'] * len(given))})".encode(),
            [*given.values()],
        )

    def store(self, given: dict[int, int], text: str) -> None:
        """New vectors of items, by key, to the companion."""
        self.conn.execute(
            "SELECT drift.store_vectors('docs', 'embedding', %s, %s, %s)",
            [json.dumps([[str(key)] for key in given]), [text] * len(given), [vector(self.new[i]) for i in given.values()]],
        )  # fmt: skip

    def held(self, key: int) -> int | None:
        """Which item's legacy vector a row has; None if it has none, -1 if another vector."""
        found = self.conn.execute("SELECT embedding::real[] FROM docs WHERE id = %s", [key]).fetchone()[0]
        if found is None:
            return None
        near = np.flatnonzero(self.legacy @ np.array(found) > 0.9999)
        return int(near[0]) if len(near) else -1


@pytest.fixture
def docs(conn: psycopg.Connection, rng: np.random.Generator) -> Followed:
    made = Followed(conn, rng)
    drift_pg.follow(conn, *WHERE, source="new_embedding")
    return made


@pytest.fixture
def beside(conn: psycopg.Connection, rng: np.random.Generator) -> Followed:
    made = Followed(conn, rng, companion=True)
    drift_pg.follow(conn, *WHERE)
    return made


def warned(conn: psycopg.Connection) -> list[tuple[str | None, str, str]]:
    """SQLSTATE, message and hint of each warning from now on."""
    heard: list[tuple[str | None, str, str]] = []
    conn.add_notice_handler(lambda d: heard.append((d.sqlstate, d.message_primary or "", d.message_hint or "")))
    return heard


def test_an_inserted_row_is_filled_unless_it_brings_its_own(docs: Followed) -> None:
    docs.insert(100, 7)
    docs.insert(101, 8, embedding=vector(docs.legacy[3]))
    docs.insert(102, 9, new_embedding=None)
    assert [docs.held(key) for key in (100, 101, 102)] == [7, 3, None]
    query = "SELECT id FROM drift.nearest(NULL::docs, 'embedding', %s, 'new', 2)"
    assert {row[0] for row in docs.conn.execute(query, [vector(docs.new[7])])} == {7, 100}


def test_updates(docs: Followed, conn: psycopg.Connection) -> None:
    """What changes the source refills; a first source vector and an unrelated change do not, NULL asks for it."""
    docs.insert(100, 7)

    def update(key: int, **given: object) -> int | None:
        values = ", ".join(f"{name} = %s" for name in given)
        conn.execute(f"UPDATE docs SET {values} WHERE id = {key}".encode(), [*given.values()])
        return docs.held(key)

    new, old = [vector(v) for v in docs.new], [vector(v) for v in docs.legacy]
    assert update(100, new_embedding=new[8]) == 8
    assert update(100, new_embedding=new[9], embedding=old[2]) == 2
    assert update(100, body="other", new_embedding=new[9]) == 2
    assert update(100, embedding=old[4]) == 4
    assert update(100, new_embedding=None) == 4
    assert update(5, new_embedding=new[6]) == 5
    assert update(5, new_embedding=new[6], embedding=None) == 6


def test_on_conflict(docs: Followed, conn: psycopg.Connection) -> None:
    docs.insert(100, 7)
    statement = (
        "INSERT INTO docs (id, body, new_embedding) VALUES (%s, 'x', %s) ON CONFLICT (id) DO UPDATE "
        "SET body = excluded.body, new_embedding = excluded.new_embedding"
    )
    conn.execute(statement, [100, vector(docs.new[8])])
    conn.execute(statement, [101, vector(docs.new[9])])
    assert [docs.held(100), docs.held(101)] == [8, 9]


def test_a_bulk_copy(docs: Followed, conn: psycopg.Connection) -> None:
    new = [vector(v) for v in docs.new]
    with conn.cursor() as cursor, cursor.copy("COPY docs (id, body, new_embedding) FROM STDIN") as copy:
        for i in range(1000):
            copy.write_row((1000 + i, "text", new[i % 60]))
    wrong = "SELECT count(*) FROM docs t JOIN docs o ON o.id = (t.id - 1000) % 60 WHERE t.id >= 1000 AND NOT coalesce(t.embedding OPERATOR(extensions.<=>) o.embedding < 1e-5, false)"
    assert conn.execute(wrong).fetchone() == (0,)


def test_without_an_active_adapter_a_row_is_kept_and_made_up_for(docs: Followed, conn: psycopg.Connection) -> None:
    warnings = warned(conn)
    docs.insert(100, 7)
    drift_pg.deactivate(conn, source="new", target="legacy")
    docs.insert(101, 8)
    conn.execute("UPDATE docs SET new_embedding = %s WHERE id = 100", [vector(docs.new[9])])
    assert [docs.held(100), docs.held(101)] == [None, None]
    assert [state for state, _, _ in warnings] == ["VD012"] * 2
    assert "stays NULL" in warnings[0][1]
    assert warnings[0][2].startswith(
        "SELECT drift.activate(1); then SELECT drift.catch_up('public.docs', 'embedding');"
    )
    with pytest.raises(errors.NoActiveAdapter):
        drift_pg.catch_up(conn, *WHERE)
    docs.activate()
    told: list[tuple[int, int]] = []
    assert drift_pg.catch_up(conn, *WHERE, progress=lambda done, total: told.append((done, total))) == 2
    assert told == [(2, 2)]
    assert [docs.held(100), docs.held(101)] == [9, 8]


def test_where_the_column_is_not_null_the_row_is_refused_with_the_reason(
    docs: Followed, conn: psycopg.Connection
) -> None:
    conn.execute("ALTER TABLE docs ALTER embedding SET NOT NULL")
    docs.insert(100, 7)
    assert docs.held(100) == 7
    drift_pg.deactivate(conn, source="new", target="legacy")
    with pytest.raises(
        psycopg.Error, match=r"cannot be filled from column new_embedding: no adapter .* is active"
    ) as refused:
        docs.insert(101, 8)
    assert refused.value.sqlstate == "VD012"


def test_a_vector_without_direction_leaves_a_null(conn: psycopg.Connection, docs: Followed) -> None:
    docs.insert(100, 7, new_embedding=vector(np.zeros(24)))
    assert docs.held(100) is None
    assert drift_pg.catch_up(conn, *WHERE) == 0


def test_catching_up_goes_by_batches_and_leaves_what_is_locked(
    docs: Followed, conn: psycopg.Connection, dsn: str
) -> None:
    conn.execute("ALTER TABLE docs DISABLE TRIGGER USER")
    for key in range(100, 110):
        docs.insert(key, key - 90)
    conn.execute("ALTER TABLE docs ENABLE TRIGGER USER")
    step = "SELECT drift.catch_up('docs', 'embedding', 4)"
    assert conn.execute(step).fetchone() == (4,)
    with psycopg.connect(dsn) as other:
        other.execute("SELECT FROM docs WHERE id = 109 FOR UPDATE")
        assert drift_pg.catch_up(conn, *WHERE) == 5
    assert drift_pg.catch_up(conn, *WHERE) == 1
    assert [docs.held(key) for key in range(100, 110)] == list(range(10, 20))


@pytest.mark.parametrize("kind", ["halfvec(24)", "vector"])
def test_a_partitioned_table_with_odd_names(conn: psycopg.Connection, rng: np.random.Generator, kind: str) -> None:
    """Both partitions; rows missed in both, at the same places."""
    Upgrade(conn, rng, rows=5).activate()
    conn.execute(
        f'CREATE TABLE "Odd %" (id int, "it\'s" {PGVECTOR_SCHEMA}.{kind}, "new ""% one" {PGVECTOR_SCHEMA}.{kind}) PARTITION BY RANGE (id);'
        'CREATE TABLE low PARTITION OF "Odd %" FOR VALUES FROM (0) TO (10); CREATE TABLE high PARTITION OF "Odd %" FOR VALUES FROM (10) TO (20)'.encode()
    )  # fmt: skip
    odd = ('"Odd %"', "it's")
    drift_pg.register_column(conn, *odd, model="legacy", metric="cosine")
    drift_pg.set_query_model(conn, *odd, "new")
    insert = 'INSERT INTO "Odd %%" (id, "new ""%% one") SELECT i, %s FROM generate_series(%s::int, 19, 2) i'
    given = vector(rng.standard_normal(24))
    conn.execute(insert, [given, 0])
    drift_pg.follow(conn, *odd, source='new "% one')
    conn.execute(insert, [given, 1])
    filled = b'SELECT count("it\'s"), count(DISTINCT "it\'s"::text) FROM "Odd %"'
    assert conn.execute(filled).fetchone() == (10, 1)
    assert conn.execute("SELECT drift.catch_up('\"Odd %\"', 'it''s', 7)").fetchone() == (7,)
    assert drift_pg.catch_up(conn, *odd) == 3
    assert conn.execute(filled).fetchone() == (20, 1)
    assert drift_pg.unfollow(conn, *odd)
    assert conn.execute("SELECT count(*) FROM pg_trigger WHERE NOT tgisinternal").fetchone() == (0,)


def test_what_forbids_it_is_named(conn: psycopg.Connection, rng: np.random.Generator) -> None:
    made = Followed(conn, rng)
    conn.execute(
        f"ALTER TABLE docs ADD narrow {PGVECTOR_SCHEMA}.vector(3), "
        f"ADD made {PGVECTOR_SCHEMA}.vector(24) GENERATED ALWAYS AS (embedding) STORED".encode()
    )

    def refused(error: type[Exception], match: str, source: str | None = "new_embedding") -> None:
        with pytest.raises(error, match=match):
            drift_pg.follow(conn, *WHERE, source=source)

    refused(errors.NoCompanion, "no companion", source=None)
    refused(errors.ColumnMissing, "no column nowhere", source="nowhere")
    refused(errors.ColumnMissing, "type text", source="body")
    refused(errors.WrongDimensions, "3 dimensions", source="narrow")
    refused(errors.InvalidDefinition, "follow itself", source="embedding")
    refused(errors.InvalidDefinition, "generated", source="made")
    drift_pg.register_column(conn, "docs", "new_embedding", model="legacy", metric="cosine")
    refused(errors.InvalidDefinition, "nothing to adapt")
    drift_pg.unregister_column(conn, "docs", "new_embedding")
    drift_pg.set_query_model(conn, *WHERE, None)
    refused(errors.UnknownColumn, "not known which model")
    drift_pg.register_column(conn, "docs", "new_embedding", model="new", metric="cosine")
    drift_pg.deactivate(conn, source="new", target="legacy")
    refused(errors.NoActiveAdapter, "cannot be filled: no adapter from model 'new'")
    with pytest.raises(errors.UnknownColumn, match="not followed"):
        drift_pg.catch_up(made.conn, *WHERE)
    assert not drift_pg.unfollow(conn, *WHERE)
    assert conn.execute("SELECT count(*) FROM pg_trigger WHERE NOT tgisinternal").fetchone() == (0,)


def test_who_may_write_must_be_able_to_adapt(conn: psycopg.Connection, rng: np.random.Generator) -> None:
    made = Followed(conn, rng)
    with as_role(
        conn, f"GRANT INSERT, SELECT ON docs TO {{role}}; GRANT USAGE ON SCHEMA {PGVECTOR_SCHEMA} TO {{role}}"
    ):
        (role,) = conn.execute("SELECT quote_ident(current_user)").fetchone()
        conn.execute("RESET ROLE")
        with pytest.raises(errors.PermissionDenied, match=f"{role} may write to public.docs") as refused:
            drift_pg.follow(conn, *WHERE, source="new_embedding")
        assert refused.value.hint
        conn.execute(refused.value.hint.encode())
        drift_pg.follow(conn, *WHERE, source="new_embedding")
        conn.execute(f"SET ROLE {role}".encode())
        made.insert(100, 7)
        assert made.held(100) == 7
        conn.execute("RESET ROLE")
        conn.execute(
            f"REVOKE ALL ON ALL TABLES IN SCHEMA drift FROM {role}; REVOKE USAGE ON SCHEMA drift FROM {role}".encode()
        )
        conn.execute(f"SET ROLE {role}".encode())
        made.insert(101, 8)  # what is revoked later costs the vector, not the row
        assert made.held(101) is None


def test_it_waits_for_writers_only_so_long(conn: psycopg.Connection, rng: np.random.Generator, dsn: str) -> None:
    Followed(conn, rng)
    conn.execute("SET lock_timeout = '100ms'")
    with psycopg.connect(dsn) as writer:
        writer.execute("UPDATE docs SET body = body WHERE id = 1")
        with pytest.raises(psycopg.errors.LockNotAvailable, match="could not be changed") as refused:
            drift_pg.follow(conn, *WHERE, source="new_embedding")
        assert "Nothing was changed" in refused.value.diag.message_hint
    drift_pg.follow(conn, *WHERE, source="new_embedding")
    with psycopg.connect(dsn) as reader:
        reader.execute("SELECT FROM docs")
        with pytest.raises(psycopg.errors.LockNotAvailable, match="could not be changed"):
            drift_pg.unfollow(conn, *WHERE)
    assert conn.execute("SHOW lock_timeout").fetchone() == ("100ms",)
    assert drift_pg.unfollow(conn, *WHERE)


def test_following_again_alike_locks_nothing_and_otherwise_replaces(
    docs: Followed, conn: psycopg.Connection, dsn: str
) -> None:
    with psycopg.connect(dsn) as writer:
        writer.execute("UPDATE docs SET body = body WHERE id = 1")
        drift_pg.follow(conn, *WHERE, source="new_embedding")
    conn.execute(f"ALTER TABLE docs ADD newer {PGVECTOR_SCHEMA}.vector(24)".encode())
    drift_pg.follow(conn, *WHERE, source="newer")
    docs.insert(100, 7)
    docs.insert(101, 8, new_embedding=None, newer=vector(docs.new[8]))
    assert [docs.held(100), docs.held(101)] == [None, 8]
    actions = conn.execute(
        "SELECT array_agg(action ORDER BY id) FILTER (WHERE action ~ 'follow') FROM drift.event"
    ).fetchone()[0]
    assert actions == ["follow", "follow"]


def test_what_follows_is_not_forgotten_nor_uninstalled(docs: Followed, conn: psycopg.Connection) -> None:
    with pytest.raises(errors.StillInUse, match="filled from another") as refused:
        drift_pg.unregister_column(conn, *WHERE)
    assert "drift.unfollow" in (refused.value.hint or "")
    with pytest.raises(errors.StillInUse, match=r"triggers on public\.docs"):
        drift_pg.downgrade(conn, destroy_adapters=True)
    drift_pg.upgrade(conn)
    docs.insert(100, 7)
    assert docs.held(100) == 7
    assert drift_pg.unfollow(conn, *WHERE)
    assert conn.execute("SELECT count(*) FROM pg_proc WHERE proname ~ '^follow_[0-9]'").fetchone() == (0,)
    docs.insert(101, 8)
    assert [docs.held(100), docs.held(101)] == [7, None]
    drift_pg.downgrade(conn, destroy_adapters=True)


def test_a_renamed_column_leaves_a_warning_not_an_error(docs: Followed, conn: psycopg.Connection) -> None:
    conn.execute("ALTER TABLE docs RENAME new_embedding TO newer")
    docs.conn.execute("INSERT INTO docs (id, newer) VALUES (100, %s)", [vector(docs.new[7])])
    assert docs.held(100) is None
    assert drift_pg.unfollow(conn, *WHERE)


def test_a_renamed_text_column_costs_the_queue_not_the_row(beside: Followed, conn: psycopg.Connection) -> None:
    conn.execute("ALTER TABLE docs RENAME body TO words")
    warnings = warned(conn)
    conn.execute("INSERT INTO docs (id, words) VALUES (100, 'text'); UPDATE docs SET words = 'changed' WHERE id = 100")
    assert ["body does not exist" in message for _, message, _ in warnings] == [True, True]


def test_a_dump_and_restore_keeps_it(
    docs: Followed, dsn: str, server: str, postgresql: str, tmp_path: Path, rng: np.random.Generator
) -> None:
    drift_pg.create_companion(docs.conn, *WHERE, model="new", text="body")
    drift_pg.follow(docs.conn, *WHERE, source="new_embedding")
    programs = servers.programs(postgresql)
    subprocess.run([programs / "pg_dump", "--format=custom", f"--file={tmp_path / 'dump'}", dsn], check=True)
    with servers.database(server) as copy:
        subprocess.run([programs / "pg_restore", "--exit-on-error", f"--dbname={copy}", tmp_path / "dump"], check=True)
        with psycopg.connect(copy, autocommit=True) as restored:
            docs.conn = restored
            docs.insert(100, 7)
            restored.execute("UPDATE docs SET new_embedding = %s WHERE id = 100", [vector(docs.new[8])])
            docs.insert(101, 7, new_embedding=None)
            docs.store({101: 9}, "text 101")
            assert [docs.held(100), docs.held(101)] == [8, 9]
            assert drift_pg.unfollow(restored, *WHERE)


def companion_row(conn: psycopg.Connection, key: int) -> tuple | None:
    return conn.execute(
        "SELECT embedding IS NOT NULL, misses, outdated IS NOT NULL FROM drift.companion_1 WHERE key1 = %s", [key]
    ).fetchone()


def test_a_row_without_vectors_is_queued_and_filled_from_the_companion(
    beside: Followed, conn: psycopg.Connection
) -> None:
    beside.insert(100, 7, new_embedding=None)
    beside.insert(101, 7, new_embedding=None, body="  ")
    beside.insert(102, 7, new_embedding=None, embedding=vector(beside.legacy[3]))
    assert [companion_row(conn, key) for key in (100, 101, 102)] == [(False, 1, False), None, None]
    beside.store({100: 8}, "text 100")
    beside.store({102: 9}, "text 102")
    assert [beside.held(100), beside.held(102)] == [8, 3]


def test_a_changed_text_is_queued_and_its_legacy_vector_replaced(beside: Followed, conn: psycopg.Connection) -> None:
    for key in (1, 2, 3):
        beside.store({key: key}, f"text {key}")
    conn.execute("UPDATE docs SET body = 'changed' WHERE id IN (1, 3, 4)")
    conn.execute("UPDATE docs SET body = 'changed', embedding = %s WHERE id = 2", [vector(beside.legacy[20])])
    assert [companion_row(conn, key) for key in (1, 2, 4)] == [(False, 1, True), (False, 1, False), (False, 1, True)]
    assert drift_pg.coverage(conn, *WHERE).queued == 4
    conn.execute("UPDATE docs SET embedding = %s WHERE id = 3", [vector(beside.legacy[30])])  # by the old model, later
    beside.store({1: 41, 2: 42, 3: 43, 4: 44}, "changed")
    assert [beside.held(key) for key in (1, 2, 3, 4)] == [41, 20, 30, 44]
    beside.store({1: 50}, "changed")
    assert beside.held(1) == 41


def test_what_is_locked_is_left_for_catching_up(beside: Followed, conn: psycopg.Connection, dsn: str) -> None:
    conn.execute("UPDATE docs SET body = 'changed' WHERE id IN (1, 2)")
    with psycopg.connect(dsn) as other:
        other.execute("SELECT FROM docs WHERE id = 1 FOR UPDATE")
        conn.execute("SET statement_timeout = '5s'")
        beside.store({1: 41, 2: 42}, "changed")
    assert [beside.held(1), beside.held(2)] == [1, 42]
    assert drift_pg.catch_up(conn, *WHERE) == 1
    assert beside.held(1) == 41
    assert drift_pg.catch_up(conn, *WHERE) == 0


def test_a_user_never_waits_long_for_a_client_that_stores(beside: Followed, conn: psycopg.Connection, dsn: str) -> None:
    warnings = warned(conn)
    with psycopg.connect(dsn) as other:
        other.execute("INSERT INTO drift.companion_1 (key1) VALUES (1)")
        conn.execute("SET statement_timeout = '5s'")
        conn.execute("UPDATE docs SET body = 'changed' WHERE id = 1")
    assert conn.execute("SELECT body FROM docs WHERE id = 1").fetchone() == ("changed",)
    assert "not queued for embedding" in warnings[0][1]
    with conn.transaction():
        conn.execute("UPDATE docs SET body = 'changed' WHERE id = 2")
        assert conn.execute("SHOW lock_timeout").fetchone() == ("0",)


def test_both_a_column_and_a_companion(conn: psycopg.Connection, rng: np.random.Generator) -> None:
    """A first source vector with a changed text refills; without it not."""
    made = Followed(conn, rng, companion=True)
    drift_pg.follow(conn, *WHERE, source="new_embedding")
    conn.execute("UPDATE docs SET new_embedding = %s, body = 'changed' WHERE id = 1", [vector(made.new[41])])
    conn.execute("UPDATE docs SET new_embedding = %s WHERE id = 2", [vector(made.new[42])])
    assert [made.held(1), made.held(2)] == [41, 2]
    assert companion_row(conn, 1) == (False, 1, False)
    made.insert(100, 7)
    assert companion_row(conn, 100) is None
    assert conn.execute("SELECT * FROM drift.following('docs', 'embedding')").fetchone() == ("new_embedding", "new", 1)
    with pytest.raises(errors.StillInUse):
        drift_pg.unregister_column(conn, *WHERE)
    drift_pg.drop_companion(conn, *WHERE)
    conn.execute("UPDATE docs SET body = 'again' WHERE id = 1")
    made.insert(101, 8)
    assert made.held(101) == 8
    assert conn.execute("SELECT * FROM drift.following('docs', 'embedding')").fetchone() == (
        "new_embedding",
        "new",
        None,
    )
    assert drift_pg.unfollow(conn, *WHERE)
    assert conn.execute("SELECT count(*) FROM pg_trigger WHERE NOT tgisinternal").fetchone() == (0,)


def test_under_row_level_security(beside: Followed, conn: psycopg.Connection) -> None:
    """Who may write a row and not see it gets no error; who sees it fills it."""
    conn.execute(
        "ALTER TABLE docs ENABLE ROW LEVEL SECURITY; CREATE POLICY p ON docs USING (body NOT LIKE 'secret%') WITH CHECK (true)"
    )
    drift_pg.create_companion(conn, *WHERE, model="new", text="body")
    grants = (
        "GRANT INSERT, SELECT, UPDATE ON docs, drift.companion_1 TO {role}; GRANT SELECT ON ALL TABLES IN SCHEMA drift TO {role}",
        f"GRANT USAGE ON SCHEMA {PGVECTOR_SCHEMA}, drift TO {{role}}",
    )
    with as_role(conn, *grants):
        beside.insert(100, 7, new_embedding=None)
        beside.insert(101, 7, new_embedding=None, body="secret")
        beside.store({100: 7}, "text 100")
    assert [companion_row(conn, 100), companion_row(conn, 101)] == [(True, 1, False), None]
    assert beside.held(100) == 7

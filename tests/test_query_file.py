"""Queries in a file of JSON lines, and what is said of a line that is not one."""

from pathlib import Path

import pytest

from drift_pg.errors import InvalidInput
from drift_pg.evaluation.query_file import QueryFile


def load(tmp_path: Path, *lines: str) -> QueryFile:
    file = tmp_path / "queries.jsonl"
    file.write_text("\n".join(lines), "utf-8")
    return QueryFile.load(file)


def test_texts_with_and_without_labels(tmp_path: Path) -> None:
    found = load(
        tmp_path, '{"query": "read a file\u2028", "relevant": {"7": 2, "8": 0}}', "", '{"query": "ß"}',
        '{"query": "x", "relevant": ["a", 3]}', "",
    )  # fmt: skip
    assert found.texts == ["read a file\u2028", "ß", "x"]
    assert found.labels == found.labelled == [{"7": 2, "8": 0}, None, ["a", 3]]
    assert (found.vectors, found.legacy_vectors, len(found)) == (None, None, 3)


def test_vectors(tmp_path: Path) -> None:
    found = load(tmp_path, '{"vector": [1, 0.5], "legacy_vector": [1]}', '{"vector": [0, 1], "legacy_vector": [2]}')
    assert (found.texts, found.vectors, found.legacy_vectors) == (None, [[1, 0.5], [0, 1]], [[1], [2]])
    assert found.labelled is None


GOOD = '{"query": "x"}'


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "it is not JSON"),
        ("[1]", "it is a list, not an object"),
        ("{}", "it must have either 'query' or 'vector'"),
        ('{"query": "x", "vector": [1]}', "it must have either"),
        ('{"query": 3}', "'query' is 3, expected a text"),
        ('{"query": " "}', "'query' is ' '"),
        ('{"query": "x", "relevent": ["1"]}', "unknown field 'relevent'; known: query, vector"),
        ('{"query": "x", "relevant": "7"}', "'relevant' must be"),
        ('{"query": "x", "relevant": []}', "'relevant' must be"),
        ('{"query": "x", "relevant": {"7": 0}}', "'relevant' must be"),
        ('{"query": "x", "relevant": {"7": 0.5}}', "'relevant' must be"),
        ('{"query": "x", "relevant": {"7": true}}', "'relevant' must be"),
        ('{"query": "x", "relevant": [null]}', "'relevant' must be"),
        ('{"query": "x", "legacy_vector": [1]}', "it has 'legacy_vector', unlike line 1"),
        ('{"query": "x", "legacy_vector": ["1"]}', "'legacy_vector' is no list of numbers"),
        ('{"vector": []}', "'vector' is no list of numbers"),
        ('{"vector": [1]}', "it lacks 'query', unlike line 1"),
    ],
)
def test_a_bad_line_is_named_by_its_number(tmp_path: Path, line: str, says: str) -> None:
    with pytest.raises(InvalidInput, match=r"queries\.jsonl', line 3: ") as refused:
        load(tmp_path, GOOD, "", line, GOOD)
    assert says in refused.value.message
    assert '{"query"' in refused.value.hint


def test_a_file_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="holds no queries"):
        load(tmp_path, "", " ")
    with pytest.raises(InvalidInput, match="cannot be read"):
        QueryFile.load(tmp_path / "none.jsonl")
    (tmp_path / "latin").write_bytes(b'{"query": "\xe9"}')
    with pytest.raises(InvalidInput, match="cannot be read"):
        QueryFile.load(tmp_path / "latin")

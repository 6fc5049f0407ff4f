"""The report: what it says, that it stands alone, and that nothing a user wrote becomes markup."""

import io
import json
import re
import subprocess
import sys
from dataclasses import replace
from datetime import date
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import psycopg
import pytest
from click.testing import CliRunner, Result
from psycopg.conninfo import conninfo_to_dict, make_conninfo

import drift_pg
from drift_pg.cli import main
from drift_pg.evaluation import Figure, evaluate
from drift_pg.evaluation.advice import NO_GAIN, REEMBED, RERANK, SWITCH, Advice
from drift_pg.evaluation.touched import Touched
from drift_pg.pairs import Pairs
from tests.tables import rotation

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")

from drift_pg.report import charts, words
from drift_pg.report.curve import Yardstick, gain_of_doubling, learning_curve, sizes
from drift_pg.report.page import Plan, Queries, Subject, render
from drift_pg.report.picture import Picture

WIDTH, LEGACY = 12, 10


class Page(HTMLParser):
    """Elements and the text of a page; knows whether they nest."""

    VOID = frozenset({"meta", "br", "path", "use", "rect", "g", "defs", "clipPath"})

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in {"meta", "br"}:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(scope="module")
def pairs() -> Pairs:
    rng = np.random.default_rng(3)
    new = rng.normal(size=(900, WIDTH)).astype(np.float32)
    legacy = (new @ rotation(rng, WIDTH))[:, :LEGACY] + 0.1 * rng.normal(size=(900, LEGACY))
    return Pairs(new, legacy, [f"key {i}" for i in range(900)])


@pytest.fixture(scope="module")
def parts(pairs: Pairs) -> tuple[Pairs, Pairs]:
    return pairs.take(np.arange(600)), pairs.take(np.arange(600, 900))


@pytest.fixture(scope="module")
def subject(parts: tuple[Pairs, Pairs]) -> Subject:
    adapter = drift_pg.fit(parts[0], "procrustes")
    return Subject("Adapter 3: new → old", adapter, evaluate(adapter, parts[1]), parts[1], day=date(2026, 12, 2))


@pytest.fixture(scope="module")
def labelled(subject: Subject, parts: tuple[Pairs, Pairs]) -> Subject:
    asked = {"queries": parts[1].source[:120], "labels": [[key] for key in parts[1].keys[:120]]}
    evaluation = evaluate(subject.adapter, parts[1], **asked, legacy_queries=parts[1].target[:120], rerank=[20])
    yardstick = Yardstick.of(subject.adapter, parts[1], **asked)
    return replace(
        subject, evaluation=evaluation, plan=Plan(20_000_000, 350.0),
        queries=Queries(asked["queries"], [f"text {i}" for i in range(120)]),
        curve=learning_curve(parts[0], yardstick, lambda done, total: None),
    )  # fmt: skip


pytestmark = pytest.mark.filterwarnings("ignore::drift_pg.families.SmallSample")


def test_it_stands_alone(labelled: Subject) -> None:
    html = render(labelled)
    page = Page(html)
    assert page.open == []
    assert not page.all("script") + page.all("link") + page.all("img") + page.all("iframe")
    addresses = set(re.findall(r"https?://[^\"' )]+", html))
    assert addresses <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert "default-src 'none'" in html
    assert all(reference.startswith("#") for reference in re.findall(r'href="([^"]*)"', html))


def test_the_same_subject_gives_the_same_bytes(labelled: Subject) -> None:
    assert render(labelled) == render(labelled)


def test_another_process_gives_the_same_chart() -> None:
    code = "from drift_pg.report import charts; print(charts.histogram('a', 'b', [0, .5, .5]))"
    chart = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, encoding="utf-8").stdout
    assert chart.strip() == charts.histogram("a", "b", [0, 0.5, 0.5])


def test_no_two_elements_have_one_id_and_every_reference_has_its_element(labelled: Subject) -> None:
    html = render(labelled)
    ids = [attributes["id"] for _, attributes in Page(html).tags if attributes.get("id")]
    assert len(ids) == len(set(ids))
    used = re.findall(r'(?:url\(|href=")#([^")]+)|aria-labelledby="([^"]+)"', html)
    assert {a or b for a, b in used} <= set(ids)


def test_colours_are_the_page_s(labelled: Subject) -> None:
    html = render(labelled)
    body = html[html.index("<body>") :]
    assert not re.findall(r"#[0-9a-f]{6}\b", body)
    css = html[: html.index("</style>")]
    assert set(re.findall(r"var\((--[\w-]+)\)", html)) <= set(re.findall(r"(--[\w-]+):", css))
    assert "prefers-color-scheme: dark" in css
    assert "<style" not in body  # matplotlib's own rules would apply to the page


def test_every_chart_has_a_name_and_every_table_heads(labelled: Subject) -> None:
    page = Page(render(labelled))
    assert page.all("svg")
    assert all(svg["role"] == "img" and svg["aria-label"] for svg in page.all("svg"))
    assert all(th.get("scope") in {"col", "row"} for th in page.all("th"))
    assert page.all("html") == [{"lang": "en"}]
    assert len(page.all("h1")) == 1


HOSTILE = "<script>alert('x')</script><img src=x onerror=y> & \"quoted\" $a_b$ {{ 7*7 }}"


def test_what_a_user_wrote_is_text(labelled: Subject) -> None:
    queries = Queries(labelled.queries.vectors, [HOSTILE] * 120)
    evaluation = replace(
        labelled.evaluation, findings=[HOSTILE], advice=Advice(HOSTILE, (HOSTILE,)),
        searches={**labelled.evaluation.searches, HOSTILE: labelled.evaluation.searches["bridge"]},
    )  # fmt: skip
    adapter = replace(labelled.adapter, family=HOSTILE)
    page = Page(render(replace(labelled, name=HOSTILE, queries=queries, evaluation=evaluation, adapter=adapter)))
    assert not page.all("script") + page.all("img")
    assert page.text.count("<script>alert('x')</script>") >= 12
    assert "{{ 7*7 }}" in page.text


def test_details_of_an_adapter_are_not_printed(subject: Subject) -> None:
    details = {"pairs": 5000, "column": "postgresql://me:hunter2@host/db", "options": {"dsn": "hunter2"}}
    html = render(replace(subject, adapter=replace(subject.adapter, details=details)))
    assert "hunter2" not in html
    assert "5,000 pairs" in html


@pytest.mark.parametrize("kind", [SWITCH, RERANK, REEMBED, NO_GAIN])
def test_the_advice_comes_first(subject: Subject, kind: str) -> None:
    evaluation = replace(subject.evaluation, advice=Advice(kind, ("Recall@10 changes -0.05 (-0.08 to -0.02).",)))
    page = Page(render(replace(subject, evaluation=evaluation)))
    verdict = words.VERDICTS[kind]
    assert f'class="verdict {verdict.tone}"' in render(replace(subject, evaluation=evaluation))
    assert page.text.index(verdict.text) < page.text.index("Recall@10 changes −0.05 (−0.08 to −0.02).")
    assert page.text.index("quality score") < page.text.index("How alike")


def test_label_free_figures_say_that_staying_is_unknown(subject: Subject) -> None:
    text = Page(render(subject)).text
    assert "staying with the old model is worth is unknown" in " ".join(text.split())
    assert "Key of the item" in text
    assert "key 6" in text
    assert "What re-embedding everything would take" not in text
    assert "Would more pairs help?" not in text


def test_labelled_figures_of_every_search(labelled: Subject) -> None:
    text = " ".join(Page(render(labelled)).text.split())
    for name in ("Stay: old model", "Bridge: adapted", "Bridge, first 20 reordered", "Re-embed everything"):
        assert name in text
    recall = labelled.evaluation.searches["bridge"]["recall@10"]
    assert f"{recall.value:.0%}".replace("%", "\N{NO-BREAK SPACE}%") in Page(render(labelled)).text
    assert "unadapted they cannot search" in text
    assert "cannot be drawn here unadapted" in text
    assert re.search(r"\btext \d+", text)


def test_an_unknown_stay_is_said_to_be_unknown(labelled: Subject) -> None:
    searches = {name: f for name, f in labelled.evaluation.searches.items() if name != "stay"}
    page = Page(render(replace(labelled, evaluation=replace(labelled.evaluation, searches=searches))))
    assert "Stay: old model, old index: unknown" in next(s["aria-label"] for s in page.all("svg"))
    assert "nobody can say whether switching gains anything" in " ".join(page.text.split())


def test_figures_through_an_index_have_a_table_of_their_own(subject: Subject) -> None:
    figure = Figure(0.25, 0.2, 0.3, 100)
    evaluation = replace(subject.evaluation, through_index={"bridge": {"self_retrieval@10": figure}})
    text = Page(render(replace(subject, evaluation=evaluation))).text
    assert "Finds itself in ten" in text
    assert "20–30" in text


def test_what_queries_touch(subject: Subject) -> None:
    assert "What queries touch" not in render(subject)
    found = {"touched": Touched(50, 200, 30, 300), "touched_through_index": Touched(50, 200, 2_500, 1_000_000)}
    text = " ".join(Page(render(replace(subject, evaluation=replace(subject.evaluation, **found)))).text.split())
    assert "Among the searched items 50 queries touch 30 of 300 rows (10.0%)" in text
    assert "In the whole table, through its index, 50 queries touch 2,500 of 1,000,000 rows (0.2%)" in text


def test_the_cost_of_re_embedding(labelled: Subject) -> None:
    text = " ".join(Page(render(labelled)).text.split())
    assert "20,000,000 rows at 350 rows per second" in text
    assert "16 hours" in text


def test_a_narrow_window_stacks_tables_and_wraps_long_words(labelled: Subject) -> None:
    queries = Queries(labelled.queries.vectors, ["x" * 1000] * 120)
    html = render(replace(labelled, queries=queries))
    assert "x" * 240 + " …" in html
    assert "x" * 241 not in html
    assert "max-width: 40rem" in html


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        (40, [10, 20, 40]),
        (999, [249, 499, 999]),
        (1000, [500, 1000]),
        (5000, [500, 1000, 2000, 5000]),
        (12_500, [500, 1000, 2000, 5000, 10_000, 12_500]),
        (100_000, [500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000]),
        (2, [2]),
    ],
)
def test_sizes_of_the_learning_curve(pairs: int, expected: list[int]) -> None:
    assert sizes(pairs) == expected


def test_the_curve_measures_what_evaluate_does(labelled: Subject, parts: tuple[Pairs, Pairs]) -> None:
    fitted, test = parts
    asked = {"queries": test.source[:120], "labels": [[key] for key in test.keys[:120]]}
    last = labelled.curve[-1]
    evaluation = evaluate(
        drift_pg.fit(fitted.take(np.random.default_rng(0).permutation(600)), "spectral"), test, **asked
    )
    assert last.pairs == 600
    assert last.figures["overlap@10"] == evaluation.agreement["overlap@10"]
    assert last.figures["retention_recall@10"] == evaluation.searches["bridge"]["retention_recall@10"]


def test_the_curve_is_told_of_its_progress_and_repeats(parts: tuple[Pairs, Pairs]) -> None:
    told: list[tuple[int, int]] = []
    adapter = drift_pg.fit(parts[0], "procrustes")
    yardstick = Yardstick.of(adapter, parts[1])
    points = learning_curve(parts[0], yardstick, lambda *done: told.append(done))
    assert told == [(1, 3), (2, 3), (3, 3)]
    assert points == learning_curve(parts[0], yardstick, lambda *_: None)
    gained = points[-1].figures["overlap@10"].value - points[-2].figures["overlap@10"].value
    assert [p.pairs for p in points] == [150, 300, 600]
    assert gain_of_doubling(points, "overlap@10") == pytest.approx(gained)
    assert gain_of_doubling(points[:1], "overlap@10") is None
    assert gain_of_doubling([], "overlap@10") is None


def test_a_perfect_adapter_puts_every_item_in_its_quarter(rng: np.random.Generator) -> None:
    legacy = rng.normal(size=(500, 8)).astype(np.float32)
    new = legacy @ rotation(rng, 8)
    pairs = Pairs(new, legacy)
    picture = Picture.of(drift_pg.fit(pairs, "procrustes", centre=False), pairs)
    assert picture.kept(picture.adapted) == 1
    assert picture.unadapted is not None
    assert picture.kept(picture.unadapted) < 0.9
    assert len(picture.legacy) == 400


def test_pictures_of_degenerate_spaces() -> None:
    pairs = Pairs(np.eye(4, dtype=np.float32), np.array([[1], [2], [-1], [-3]], np.float32))
    picture = Picture.of(drift_pg.fit(pairs, "procrustes"), pairs)
    assert np.isfinite(picture.legacy).all()
    assert charts.scatter("a", "b", picture.legacy, picture.quarters, picture.limit)
    equal = Pairs(np.ones((5, 3), np.float32), np.ones((5, 3), np.float32))
    assert Picture.of(drift_pg.fit(equal, "procrustes"), equal).limit > 0


def test_words() -> None:
    assert [words.duration(h) for h in (0.005, 0.5, 3.2, 100)] == ["18 seconds", "30 minutes", "3 hours", "4 days"]
    assert [words.size(n) for n in (10, 1500, 31e9, 5e15)] == ["10 B", "1.5 kB", "31 GB", "5,000 TB"]
    assert words.search_name("bridge + rerank 200") == "Bridge, first 200 reordered"


@pytest.fixture
def files(tmp_path: Path, subject: Subject, parts: tuple[Pairs, Pairs]) -> Path:
    subject.adapter.save(tmp_path / "a.safetensors")
    parts[0].save(tmp_path / "fit.npz")
    parts[1].save(tmp_path / "test.npz")
    lines = [
        {"vector": v.tolist(), "legacy_vector": o.tolist(), "relevant": [k]}
        for v, o, k in zip(parts[1].source[:40], parts[1].target[:40], parts[1].keys[:40], strict=True)
    ]
    (tmp_path / "queries.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return tmp_path


def report(folder: Path, *more: str, exits: int = 0) -> Result:
    arguments = ["report", "--adapter-file", f"{folder}/a.safetensors", "--test-pairs", f"{folder}/test.npz"]
    result = CliRunner().invoke(main, [*arguments, "--output", f"{folder}/report.html", *more])
    assert result.exit_code == exits, result.output
    return result


def test_the_command_writes_a_page(files: Path) -> None:
    more = ["--pairs", f"{files}/fit.npz", "--queries", f"{files}/queries.jsonl", "--rows", "1000000", "--rate", "100"]
    assert "report.html" in report(files, *more).stdout
    text = Page((files / "report.html").read_text("utf-8")).text
    for part in ("Adapter a.safetensors", "Would more pairs help?", "1,000,000 rows", "query 1", "Re-embed everything"):
        assert part in text
    assert str(files) not in (files / "report.html").read_text("utf-8")


def test_the_command_refuses_to_overwrite(files: Path) -> None:
    (files / "report.html").write_text("mine")
    assert "--force" in report(files, exits=1).stderr
    assert (files / "report.html").read_text() == "mine"
    report(files, "--force")
    assert "<!DOCTYPE html>" in (files / "report.html").read_text("utf-8")


def test_the_command_warns_of_test_pairs_that_were_fitted_on(files: Path) -> None:
    assert "300 of 300 test vectors are among the pairs too" in report(files, "--pairs", f"{files}/test.npz").stderr


def test_the_command_s_wrong_usage(files: Path) -> None:
    assert "--rows and --rate" in report(files, "--rows", "5", exits=2).stderr
    assert "either an ADAPTER" in report(files, "7", exits=2).stderr
    assert "no folder" in report(files, "--output", f"{files}/none/r.html", exits=1).stderr


def test_a_stored_adapter_is_named_by_its_models_and_nothing_tells_of_the_server(
    files: Path, subject: Subject, conn: psycopg.Connection, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    drift_pg.register_model(conn, "old <b>", dimensions=LEGACY)
    drift_pg.register_model(conn, "new", dimensions=WIDTH)
    stored = drift_pg.store(conn, subject.adapter, source="new", target="old <b>")
    monkeypatch.setenv("DRIFT_PG_DSN", make_conninfo(dsn, application_name="hunter2"))
    arguments = ["report", str(stored), "--test-pairs", f"{files}/test.npz", "--output", f"{files}/r.html"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    html = (files / "r.html").read_text("utf-8")
    assert f"Adapter {stored}: new → old <b>" in Page(html).text
    assert subject.adapter.checksum in html
    secrets = {"hunter2", dsn, *(v for k, v in conninfo_to_dict(dsn).items() if k in {"host", "dbname", "password"})}
    assert not [secret for secret in secrets if str(secret) in html]


@pytest.mark.parametrize("missing", ["matplotlib", "jinja2"])
def test_without_the_extra_it_says_what_to_install(files: Path, missing: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; from drift_pg.cli import main; main()"
    arguments = ["report", "--adapter-file", "a.safetensors", "--test-pairs", "test.npz", "--output", "r.html"]
    run = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=files, capture_output=True, encoding="utf-8", check=False
    )
    assert run.returncode == 1
    assert missing in run.stderr
    assert "drift-pg[report]" in run.stderr
    assert not (files / "r.html").exists()


def test_the_command_line_does_not_import_matplotlib() -> None:
    code = "import sys, drift_pg.cli; print({'matplotlib', 'jinja2'} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=True)
    assert run.stdout == "set()\n"


def test_svg_is_well_formed(labelled: Subject) -> None:
    from xml.etree import ElementTree

    for chart in re.findall(r"<svg.*?</svg>", render(labelled), re.DOTALL):
        chart = chart.replace("<svg ", '<svg xmlns:xlink="http://www.w3.org/1999/xlink" ', 1)
        ElementTree.parse(io.StringIO(chart))

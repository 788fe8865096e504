"""`electra encode` and exported sentence-transformers folders: the same vectors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from model_folders import make_run
from tuned_folders import save

from electra.cli import main
from electra.errors import ConfigError
from electra.finetune.export import export
from electra.finetune.model_folder import load_finetuned
from electra.finetune.pair_loss import contrastive_loss, graded_loss
from electra.finetune.pretrained import load_pretrained, to_encode
from electra.inference.encode import encode
from electra.inference.predict import predict
from electra.inference.vector_files import write_vectors

TEXTS = ["the chef ate the meal", "a dog", "", "we saw [SEP] money, and a zoo!"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("embed") / "run"
    make_run(folder)
    return folder


def vectors_of(path: Path, **options: Any) -> np.ndarray:
    return encode(load_pretrained(path), TEXTS, **options)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("tuned", [False, True])
def test_sentence_transformers_gives_the_same_vectors(run: Path, tmp_path: Path, pooling: Any, tuned: bool) -> None:
    missing = "sentence-transformers is not installed: pip install 'electra[embed]'"
    package = pytest.importorskip("sentence_transformers", reason=missing)
    model = run
    if tuned:
        save(tmp_path / "tuned", "classify")
        model = tmp_path / "tuned"
    args = ["export", str(model), "--out", str(tmp_path / "st"), "--format", "sentence-transformers"]
    done = CliRunner().invoke(main, [*args, "--pooling", pooling])
    assert done.exit_code == 0 and "SentenceTransformer" in done.stdout, done.output
    theirs = package.SentenceTransformer(str(tmp_path / "st"), device="cpu")
    assert theirs.max_seq_length == 24
    np.testing.assert_allclose(theirs.encode(TEXTS), vectors_of(model, pooling=pooling), atol=1e-4, rtol=1e-4)
    card = (tmp_path / "st" / "README.md").read_text()
    assert "library_name: sentence-transformers" in card and "SentenceTransformer(" in card


def test_a_model_of_pairs_and_its_losses_are_those_of_sentence_transformers(tmp_path: Path) -> None:
    package = pytest.importorskip("sentence_transformers", reason="needs: pip install 'electra[embed]'")
    from sentence_transformers.sentence_transformer import losses

    save(tmp_path / "tuned", "pairs", length=20, pretrained_length=24)
    with pytest.raises(ConfigError, match="--pooling: its vectors were trained as means"):
        export(tmp_path / "tuned", tmp_path / "no", form="sentence-transformers", pooling="cls")
    export(tmp_path / "tuned", tmp_path / "st", form="sentence-transformers")
    theirs = package.SentenceTransformer(str(tmp_path / "st"), device="cpu")
    assert theirs.max_seq_length == 20, "as long as in fine-tuning"
    ours = encode(to_encode(tmp_path / "tuned"), TEXTS)
    np.testing.assert_allclose(theirs.encode(TEXTS), ours, atol=1e-4, rtol=1e-4)
    rows = list(zip(TEXTS[:3], TEXTS[1:], strict=True))
    cosines = [row["cosine"] for row in predict(load_finetuned(tmp_path / "tuned"), rows)]
    similar = np.diag(theirs.similarity(theirs.encode(TEXTS[:3]), theirs.encode(TEXTS[1:])).numpy())
    np.testing.assert_allclose(cosines, similar, atol=1e-4)
    assert "not trained to be compared" not in (tmp_path / "st" / "README.md").read_text()
    vectors = torch.randn(3, 8, 5, generator=torch.Generator().manual_seed(0))
    mnrl = losses.MultipleNegativesRankingLoss(theirs, scale=20.0).compute_loss_from_embeddings(list(vectors), None)
    mine = contrastive_loss(vectors.transpose(0, 1), torch.arange(24).view(8, 3), scale=20.0) / 8
    assert float(mine) == pytest.approx(float(mnrl), rel=1e-5)
    scores = torch.tensor([0.0, 1, 1, 2, 3, 3, 4, 5])
    cosent = losses.CoSENTLoss(theirs, scale=20.0).compute_loss_from_embeddings(list(vectors[:2]), scores)
    own = graded_loss(vectors[:2].transpose(0, 1), scores[:, None].expand(8, 2), scale=20.0) / 8
    assert float(own) == pytest.approx(float(cosent), rel=1e-5)


def test_the_folder_is_a_model_of_ours_too(run: Path, tmp_path: Path) -> None:
    export(run, tmp_path / "st", form="sentence-transformers")
    np.testing.assert_allclose(vectors_of(tmp_path / "st"), vectors_of(run), atol=1e-6)


def call(*args: object) -> Any:
    done = CliRunner().invoke(main, ["encode", *map(str, args)])
    assert done.exit_code == 0, done.output
    return done


def test_files_of_every_format_hold_the_same_vectors(run: Path, tmp_path: Path) -> None:
    table = tmp_path / "texts.jsonl"
    table.write_text("".join(json.dumps({"body": text}) + "\n" for text in TEXTS))
    wanted = vectors_of(run)
    for name in ("v.npy", "v.jsonl", "v.parquet"):
        done = call("--model", run, "--input", table, "--text", "body", "--out", tmp_path / name)
        assert "4 vectors of 64" in done.stderr and done.stdout == ""
    assert np.array_equal(np.load(tmp_path / "v.npy"), wanted)
    rows = [json.loads(line) for line in (tmp_path / "v.jsonl").read_text().splitlines()]
    assert [row["text"] for row in rows] == TEXTS
    assert np.array_equal(np.array([row["vector"] for row in rows], np.float32), wanted), "to the last bit"
    parquet = pytest.importorskip("pyarrow.parquet")
    read = parquet.read_table(tmp_path / "v.parquet").to_pydict()
    assert read["text"] == TEXTS and np.array_equal(np.array(read["vector"], np.float32), wanted)


def test_texts_and_lines_come_out_as_json(run: Path, tmp_path: Path) -> None:
    (tmp_path / "texts.csv").write_text('text\n"the chef ate the meal"\na dog\n')
    (tmp_path / "texts.txt").write_text("the chef ate the meal\na dog\n")
    wanted = vectors_of(run)[:2]
    sources = [TEXTS[:2], ["--input", tmp_path / "texts.csv"], ["--input", tmp_path / "texts.txt"]]
    for source in sources:
        found = [json.loads(line) for line in call("--model", run, *source).stdout.splitlines()]
        np.testing.assert_allclose([row["vector"] for row in found], wanted, atol=1e-6)


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (("--out", "v.txt", "a dog"), 2, "end it in .npy or .jsonl or .parquet"),
        ((), 2, "give either a TEXT or --input FILE"),
        (("--input", "none.txt"), 4, "none.txt"),
        (("--text", "body", "a dog"), 2, "no columns to choose from"),
    ],
)
def test_promise_20_what_cannot_be_encoded(
    run: Path, tmp_path: Path, args: tuple[str, ...], code: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, ["encode", "--model", str(run), *args])
    assert done.exit_code == code and message in done.stderr and len(done.stderr.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_no_texts_are_an_empty_table(tmp_path: Path) -> None:
    write_vectors(tmp_path / "v.npy", [], np.zeros((0, 4), np.float32))
    assert np.load(tmp_path / "v.npy").shape == (0, 4)

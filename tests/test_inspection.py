"""`prepare --inspect`: its figures are those of the real preparation, and it leaves nothing behind."""

from __future__ import annotations

import json
import re
import tempfile
from dataclasses import replace
from pathlib import Path

import corpora
import numpy as np
import pytest
from click.testing import CliRunner, Result

from electra.batches.epoch_plan import plan_epoch
from electra.batches.layout import Specials
from electra.cli.prepare import command
from electra.config.schema import DataConfig
from electra.corpus import streams
from electra.errors import DataError
from electra.inspection import as_text, inspect_corpus, trial
from electra.inspection.cuts import Cuts, cut
from electra.inspection.languages import guess_language
from electra.inspection.measures import lengths
from electra.inspection.terminal import cells, wrapped
from electra.report.inspection_page import render
from electra.shards.build import prepare
from electra.shards.dataset import Prepared, open_data
from electra.shards.options import PrepareOptions
from electra.tokenizer.codec import SPECIALS, Tokenizer

OPTIONS = PrepareOptions(vocab_size=300, held_out_share=0.1)
LANGUAGES = Path(__file__).parent / "languages"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(command, [str(one) for one in arguments])


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """A folder with two files of text, one document twice, one too short, and files of other kinds."""
    folder = tmp_path / "text"
    some = corpora.documents(40)
    corpora.write_corpus(folder / "a.txt", 60, "a")
    rows = [json.dumps({"text": "\n".join(lines)}) for lines in [*some, some[0], ["x"]]]
    (folder / "b.jsonl").write_text("\n".join(rows))
    for name in ("c.pdf", "d.PDF", "e.docx", ".hidden.doc", "Makefile"):
        (folder / name).write_bytes(b"\0")
    return folder


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary folders are made."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def count_padding(data: Prepared, length: int) -> float:
    tokenizer = data.tokenizer()
    epoch = plan_epoch(data.train, DataConfig(length=length), Specials.of(tokenizer), seed=0, epoch=0)
    return float((epoch.rows(np.arange(epoch.count)).ids == tokenizer.pad_id).mean())


def test_the_figures_are_those_of_the_real_preparation(text: Path, tmp_path: Path, places: Path) -> None:
    found = inspect_corpus([str(text)], options=OPTIONS)
    prepare([str(text)], out=tmp_path / "data", options=OPTIONS, workers=1)
    data = open_data(tmp_path / "data")
    splits, counters = data.manifest["splits"], data.manifest["counters"]
    for name in ("documents", "sentences", "tokens"):
        assert found.training[name] == splits["train"][name] and found.held_out[name] == splits["held-out"][name]
    assert found.too_short == counters["dropped_short"] == 1
    assert found.repeated == counters["dropped_duplicate"] == 1
    assert found.tokens == data.train.n_tokens + data.held_out.n_tokens and found.extent.whole
    used = {*data.train.slice(0, data.train.n_tokens), *data.held_out.slice(0, data.held_out.n_tokens)}
    assert found.vocabulary.occurring == len(used) and found.vocabulary.entries == data.vocab_size
    assert found.sentence_lengths.longest == max(
        np.diff(data.train.sentence_starts).max(), np.diff(data.held_out.sentence_starts).max()
    )
    assert found.document_lengths.count == data.train.n_documents + data.held_out.n_documents
    for row in found.rows:
        assert row.padding == pytest.approx(count_padding(data, row.length), abs=1e-9)
    assert list(places.iterdir()) == []


def test_files_that_are_not_read_are_counted(text: Path) -> None:
    found = inspect_corpus([str(text)], options=OPTIONS)
    assert found.extent.left_out == {".pdf": 2, ".docx": 1, "no suffix": 1}
    assert "files not read: 2 .pdf, 1 .docx, 1 no suffix" in " ".join(as_text(found).split())


def test_of_many_files_some_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(12):
        corpora.write_corpus(tmp_path / "text" / f"{number:02}.txt", 60, number)
    whole = inspect_corpus([str(tmp_path / "text")], options=OPTIONS)
    monkeypatch.setattr(trial, "MOST_FILES", 6)
    monkeypatch.setattr(trial, "SLICE_BYTES", 2000)
    monkeypatch.setattr(trial, "SAMPLE_BYTES", 40_000)
    part = inspect_corpus([str(tmp_path / "text")], options=OPTIONS)
    assert whole.extent.whole and not part.extent.whole
    assert (part.extent.files, part.extent.files_read) == (12, 6)
    assert 20_000 <= part.extent.sample_bytes <= 40_000 < whole.extent.sample_bytes == whole.extent.text_bytes
    assert part.tokens == pytest.approx(whole.tokens, rel=0.1)
    assert part.extent.text_bytes == pytest.approx(whole.extent.text_bytes, rel=0.05)
    assert "from 6 of the files" in " ".join(as_text(part).split())


def test_of_a_large_file_the_beginning_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = corpora.write_corpus(tmp_path / "a.txt", 3000)
    monkeypatch.setattr(
        streams, "_READ_BYTES", 1 << 12
    )  # as small beside the file as the real buffer beside a real one
    monkeypatch.setattr(trial, "MOST_READ", path.stat().st_size // 3)
    with trial.trial([str(path)], options=OPTIONS) as tried:
        extent, read = tried.extent, tried.documents
    assert not extent.whole and extent.text_bytes == pytest.approx(path.stat().st_size, rel=0.05)
    assert 0.3 < extent.sample_bytes / path.stat().st_size < 0.4
    assert read[:5] == [list(lines) for lines in corpora.documents(5)]


def test_what_prepare_refuses_is_refused(tmp_path: Path, places: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"one\xff\xfe two three\n\nfour five six\n")
    with pytest.raises(DataError, match=re.escape(str(tmp_path / "a.txt"))):
        inspect_corpus([str(tmp_path / "a.txt")], options=OPTIONS)
    (tmp_path / "b.txt").write_text("")
    with pytest.raises(DataError, match="is empty"):
        inspect_corpus([str(tmp_path / "b.txt")], options=OPTIONS)
    assert list(places.iterdir()) == []


def test_the_encoding_that_is_named_is_read(tmp_path: Path) -> None:
    text = corpora.text(
        [[line.encode("latin-1", "ignore").decode("latin-1") for line in lines] for lines in corpora.documents(60)]
    )
    (tmp_path / "old.txt").write_bytes(text.encode("latin-1"))
    (tmp_path / "new.txt").write_text(text)
    old = inspect_corpus([str(tmp_path / "old.txt")], options=replace(OPTIONS, encoding="latin-1"))
    new = inspect_corpus([str(tmp_path / "new.txt")], options=OPTIONS)
    assert (old.training, old.held_out, old.tokens) == (new.training, new.held_out, new.tokens)


def test_held_out_files_and_a_vocabulary_are_used(text: Path, tmp_path: Path) -> None:
    vocab = corpora.write_vocab(tmp_path / "v.txt", leave_out="river")
    apart = corpora.write_corpus(tmp_path / "apart.txt", 7, "apart")
    found = inspect_corpus([str(text)], options=OPTIONS, vocab=vocab, held_out=[str(apart)])
    assert found.vocabulary.given and found.vocabulary.entries == len(vocab.read_text().split())
    assert found.held_out["documents"] == 7 and found.training["documents"] == 100


def test_lengths_by_hand() -> None:
    found = lengths(np.array([1, 8, 9, 64, 65, 600, 512, 513]))
    assert found.shares == tuple(n / 8 for n in (2, 1, 0, 1, 1, 0, 1, 2))
    assert (found.count, found.median, found.longest) == (8, 64, 600)
    assert lengths(np.array([], np.int64)).count == 0


VOCAB = [*SPECIALS, "play", "##ing", "the", "game", "s", "##s", ".", ",", "北", "京", "a", "##b", "ab"]


def test_cuts_by_hand() -> None:
    tokenizer = Tokenizer(VOCAB, lowercase=True, strip_accents=False)
    cuts = Cuts(tokenizer)
    cuts.add("the playing games, game.")  # the | play ##ing | game ##s | , | game | .
    cuts.add("ab zzz")  # ab | [UNK]
    cuts.add("北京。")  # 北 | 京 | [UNK]
    cuts.add("...")  # no letters
    latin, han = cuts.pieces()
    assert (latin.script, latin.lines, latin.spaced, han.script, han.spaced) == ("Latin", 2, True, "Han", False)
    assert latin.per_unit == (8 + 2) / (4 + 2) and han.per_unit == 1
    assert latin.unknown == 3 / (21 + 5) and han.unknown == 1 / 3
    assert (cuts.total("whole"), cuts.total("words")) == (3, 6)  # the, game, ab


def test_a_line_is_shown_as_its_tokens() -> None:
    pieces = cut("the playing zz.", Tokenizer(VOCAB, lowercase=True, strip_accents=False))
    assert [(one.text, one.spaced, one.unknown) for one in pieces] == [
        ("the", False, False), ("play", True, False), ("ing", False, False), ("[UNK]", True, True), (".", False, False),
    ]  # fmt: skip


@pytest.mark.parametrize("path", sorted(LANGUAGES.glob("*.txt")), ids=lambda path: path.stem)
def test_languages_are_guessed_or_left_open(path: Path) -> None:
    guesses = [guess_language(document) for document in path.read_text(encoding="utf-8").split("\n\n")]
    right = guesses.count(path.stem.capitalize())
    wrong = len(guesses) - right - guesses.count(None)
    assert right >= 30 and wrong <= 1, guesses


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("Der Hund ist nicht mit der Katze auf dem Dach, und das ist gut.", "German"),
        ("The king of the hill is not with us, and it was to be that way.", "English"),
        ("El perro no está en la casa, y los gatos se van con una mujer por el camino.", "Spanish"),
        ("Це не так, як ви думаєте, але може бути для вас.", "Ukrainian"),
        ("Η γρήγορη αλεπού", "Greek"),
        ("私は学生です", "Japanese"),
        ("我是学生", "Chinese"),
        ("Xyzzy plugh foo bar baz", None),
        ("12 + 3 = 15", None),
        ("", None),
    ],
)
def test_a_guess_needs_evidence(text: str, language: str | None) -> None:
    assert guess_language(text) == language


def test_wide_characters_count_twice() -> None:
    assert cells("ab") == 2 and cells("北京") == 4 and cells("ที่") == 1 and cells("e\u0301") == 1
    assert list(wrapped(["北京市", "ab"], 4)) == ["北京", "市", "ab"]
    assert list(wrapped(["ab", "cd", "e"], 5)) == ["ab cd", "e"]


@pytest.mark.parametrize("path", sorted(LANGUAGES.glob("*.txt")), ids=lambda path: path.stem)
def test_the_text_fits_a_terminal(path: Path) -> None:
    shown = as_text(inspect_corpus([str(path)], options=PrepareOptions(vocab_size=2000)))
    assert max(map(cells, shown.split("\n"))) <= 80
    assert f"Languages     {path.stem.capitalize()} " in shown
    for name in ("Scripts", "Training", "Held out", "Vocabulary", "Row length", "Lines as tokens"):
        assert name in shown
    assert shown.count("\n  > ") == 5


def test_the_page_is_one_file_that_loads_nothing(tmp_path: Path) -> None:
    hostile = "<script>alert('x')</script> <img src=x onerror=alert(1)> and more of the text &amp; that is here."
    lines = [f"{hostile} {number}" for number in range(30)]
    (tmp_path / "a<b.txt").write_text("\n\n".join(lines))
    page = render(inspect_corpus([str(tmp_path / "a<b.txt")], options=PrepareOptions(vocab_size=200)))
    assert "<script" not in page and "<img" not in page and "a<b" not in page
    assert not re.search(r"""(src|href)\s*=\s*["'](?!#)""", page) and "url(" not in re.sub(r"url\(#", "", page)
    assert "default-src 'none'" in page and "prefers-color-scheme: dark" in page and "width=device-width" in page
    for heading in ("Scripts and languages", "Lines as tokens", "Lengths", "What will be kept"):
        assert f"<h2>{heading}</h2>" in page


def test_the_command_shows_and_writes_only_the_page(text: Path, tmp_path: Path, places: Path) -> None:
    before = corpora.digests(tmp_path)
    plain = run(text, "--inspect", "--vocab-size", "300")
    assert plain.exit_code == 0 and plain.output.startswith("Text          2 files")
    assert corpora.digests(tmp_path) == before
    result = run(text, "--inspect", "--vocab-size", "300", "--html", tmp_path / "page.html")
    assert result.exit_code == 0 and f"page: {tmp_path / 'page.html'}" in result.output
    assert corpora.digests(tmp_path).keys() - before.keys() == {"page.html"}


@pytest.mark.parametrize("arguments", [[], ["--html", "a.html", "--out", "data"], ["--inspect", "--out", "data"]])
def test_inspecting_and_preparing_are_not_mixed(text: Path, arguments: list[str]) -> None:
    result = run(text, *arguments)
    assert result.exit_code == 2 and "--inspect" in result.output and not Path("data").exists()

"""`electra prepare`: its options reach the data, and its summary says what happened."""

from __future__ import annotations

import csv
import gzip
import json
import subprocess
import sys
from pathlib import Path

import corpora
import pytest
from click.testing import CliRunner, Result

from electra.cli.prepare import command
from electra.shards import build
from electra.shards.dataset import open_data


def run(*arguments: object) -> Result:
    result = CliRunner().invoke(command, [str(one) for one in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


@pytest.mark.parametrize(
    ("flags", "options"),
    [
        ([], {"lowercase": False, "strip_accents": False, "tokenizer": "auto", "split_sentences": True}),
        (["--lowercase"], {"lowercase": True, "strip_accents": False}),
        (["--strip-accents"], {"lowercase": False, "strip_accents": True}),
        (["--tokenizer", "bytes"], {"tokenizer": "bytes"}),
        (["--no-split-sentences"], {"split_sentences": False}),
        (["--min-chars", "70"], {"min_chars": 70}),
        (["--held-out-share", "0.25"], {"held_out_share": 0.25}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_flags_reach_the_data(tmp_path: Path, flags: list[str], options: dict[str, object]) -> None:
    path = corpora.write_corpus(tmp_path / "a.txt", 60)
    plain = run(path, "--out", tmp_path / "plain", "--vocab-size", "300").stdout
    run(path, "--out", tmp_path / "data", "--vocab-size", "300", *flags)
    data = open_data(tmp_path / "data", verify=True)
    assert options.items() <= data.manifest["options"].items()
    assert 200 < data.vocab_size <= 300 and "300 entries of WordPiece" in plain
    same = corpora.digests(tmp_path / "plain") == corpora.digests(tmp_path / "data")
    assert same == (not flags)  # every flag has an effect


def test_the_summary_counts(tmp_path: Path) -> None:
    some = corpora.documents(40)
    rows = [json.dumps({"body": "\n".join(lines)}) for lines in [*some, some[0], ["x"]]]
    (tmp_path / "a.jsonl").write_text("\n".join(rows))
    vocab = corpora.write_vocab(tmp_path / "v.txt")
    arguments = [tmp_path / "a.jsonl", "--out", tmp_path / "data", "--vocab", vocab, "--text-column", "body"]
    output = run(*arguments).stdout
    splits = open_data(tmp_path / "data").manifest["splits"]
    assert f"training    {splits['train']['documents']} documents" in output
    assert f"held out    {splits['held-out']['documents']} documents" in output
    assert "dropped     1 too short, 1 seen before" in output
    assert "of the characters unknown" in output and "MB/s" in output
    assert "rows        data.length=128 keeps 100.0% of the tokens; " in output
    assert "already prepared; every file verified" in run(*arguments).stdout


def test_semicolons_tabs_and_tsv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tokens of the same files with commas, with one process or two; a line names the first file of each kind."""
    monkeypatch.setattr(build, "BLOCK_BYTES", 20_000)
    some = corpora.documents(600)
    for name, kinds in {"commas": ",,,,", "others": ";\t;,"}.items():
        (tmp_path / name).mkdir()
        for at, separator in enumerate(kinds):
            with open(tmp_path / name / f"{at}.csv", "w", newline="", encoding="utf-8") as file:
                table = csv.writer(file, delimiter=separator)
                table.writerows([["n", "text"], *([n, "\n".join(lines)] for n, lines in enumerate(some[at::5]))])
        rows = [f'7\t"{" ".join(lines)}\n' for lines in some[4::5]]
        (tmp_path / name / "4.tsv.gz").write_bytes(gzip.compress("".join(["n\ttext\n", *rows]).encode()))
    said = {}
    for name, workers in (("commas", 1), ("others", 2)):
        out = tmp_path / f"{name}-data"
        said[name] = run(tmp_path / name, "--out", out, "--vocab-size", "300", "--workers", workers).stderr
    shards = [corpora.digests(tmp_path / f"{name}-data") for name in said]
    for one in shards:  # which name the files and their sums
        del one["data.json"], one["manifest.json"]
    assert shards[0] == shards[1] and any("train" in file for file in shards[0])
    assert "between them" not in said["commas"]
    files = {"semicolons": tmp_path / "others" / "0.csv", "tabs": tmp_path / "others" / "1.csv"}
    for kind, path in files.items():
        assert said["others"].count(f"{path}: its fields have {kind} between them\n") == 1
    assert said["others"].count("between them") == 2


def test_given_held_out_text_and_parts(tmp_path: Path) -> None:
    path, held = corpora.write_corpus(tmp_path / "a.txt", 40), corpora.write_corpus(tmp_path / "b.txt", 42)
    output = run(path, "--held-out", held, "--out", tmp_path / "data", "--vocab-size", "300", "--worker", "2/2").stdout
    assert "part done" in output
    (tmp_path / "more.txt").write_text(corpora.text(corpora.documents(50)))
    output = run(tmp_path / "more.txt", "--held-out", held, "--out", tmp_path / "other", "--vocab-size", "300").stdout
    assert "42 also held out" in output and "training    8 documents" in output


def test_help_is_light() -> None:
    code = (
        "import sys; import electra.cli.prepare; print([m for m in ('torch','numpy','tokenizers') if m in sys.modules])"
    )
    src = str(Path(__file__).parents[1] / "src")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={"PYTHONPATH": src})
    assert done.stdout.strip() == "[]", done.stderr

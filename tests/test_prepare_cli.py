"""`electra prepare`: its options reach the data, and its summary says what happened."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import corpora
import pytest
from click.testing import CliRunner, Result

from electra.cli.prepare import command
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

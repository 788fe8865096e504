"""Which tokens look replaced: the numbers, the windows, the marks and the command."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import one_process
import pytest
import torch
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from model_folders import MLM, WORDS, make_run

from electra.cli.detect import command
from electra.cli.encode import command as encode
from electra.cli.score import command as score
from electra.errors import CheckpointError, DataError
from electra.inference.detect import detect, detect_all, probabilities
from electra.inference.overlapping_windows import best_windows, cut, window_starts
from electra.inference.results import DetectedToken, Detection
from electra.interop.models import Loaded, load_model
from electra.tokenizer.many_texts import FlatIds

TEXT = "The chef ate the zebra, and we saw money!"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("detect") / "run"
    make_run(folder)
    return folder


@pytest.fixture(scope="module")
def loaded(run: Path) -> Loaded:
    return load_model(run)


def test_detected_tokens_stand_on_the_text(loaded: Loaded) -> None:
    tokens = detect(loaded, TEXT, threshold=0.4).tokens
    joined = "".join(TEXT[v.start : v.end] for v in tokens)
    assert joined == TEXT.replace(" ", "")
    assert [v.token for v in tokens][:4] == ["the", "chef", "ate", "the"]
    assert any(v.token.startswith("##") for v in tokens)
    assert all(v.flagged == (v.probability >= 0.4) for v in tokens)
    ids = [loaded.tokenizer.cls_id, *loaded.tokenizer.encode(TEXT), loaded.tokenizer.sep_id]
    direct = loaded.probabilities(torch.tensor([ids]))[0, 1:-1].tolist()
    assert [v.probability for v in tokens] == pytest.approx(direct, abs=1e-6)


def test_nothing_gives_nothing(loaded: Loaded) -> None:
    assert detect(loaded, "").tokens == () and detect(loaded, " \t ").tokens == ()


def test_unicode_offsets_are_characters(loaded: Loaded) -> None:
    text = "\N{GRINNING FACE} the caf\N{LATIN SMALL LETTER E WITH ACUTE} \N{LATIN CAPITAL LETTER I WITH DOT ABOVE}!"
    tokens = detect(loaded, text, threshold=0.0).tokens
    assert text[tokens[1].start : tokens[1].end] == "the"
    assert tokens[0].token == "[UNK]" and (tokens[0].start, tokens[0].end) == (0, 1)


@given(count=st.integers(0, 400), capacity=st.integers(1, 60))
def test_windows_cover_every_token_and_are_full(count: int, capacity: int) -> None:
    starts = window_starts(count, capacity)
    covered = {place for start in starts for place in range(start, min(count, start + capacity))}
    assert covered == set(range(count))
    assert starts == sorted(set(starts))
    assert all(start + capacity <= count for start in starts) or len(starts) == 1
    if count > capacity >= 4:  # a token far from both ends of the text has a quarter of a window on each side
        for place in range(capacity // 2, count - capacity // 2):
            assert (
                max(min(place - s, s + capacity - 1 - place) for s in starts if s <= place < s + capacity)
                >= capacity // 4 - 1
            )


def test_a_long_text_is_read_in_windows(loaded: Loaded) -> None:
    words = [WORDS[number * 7 % len(WORDS)] for number in range(500)]
    ids = loaded.tokenizer.encode(" ".join(words))
    capacity = loaded.length - 2
    assert len(ids) == 500 and capacity == 22
    (found,) = probabilities(loaded, [ids])
    # By hand: the first window decides its first tokens, the last one its last, a middle one what stands in its middle.
    cls, sep = loaded.tokenizer.cls_id, loaded.tokenizer.sep_id

    def window(start: int) -> list[float]:
        row = torch.tensor([[cls, *ids[start : start + capacity], sep]])
        return loaded.probabilities(row)[0, 1:-1].tolist()  # type: ignore[no-any-return]

    assert found[:11] == pytest.approx(window(0)[:11], abs=1e-6)
    assert found[-10:] == pytest.approx(window(500 - capacity)[-10:], abs=1e-6)
    assert found[11 * 9 + 6 : 11 * 9 + 16] == pytest.approx(window(11 * 9)[6:16], abs=1e-6)


def test_many_texts_give_what_each_gives_alone(loaded: Loaded) -> None:
    texts = ["", TEXT, "we saw", "the dog " * 40, "money"]
    for text, together in zip(texts, detect_all(loaded, texts, batch_size=3), strict=True):
        alone = detect(loaded, text).tokens
        assert together.text == text and [v.token for v in together.tokens] == [v.token for v in alone]
        assert [v.probability for v in together.tokens] == pytest.approx([v.probability for v in alone], abs=1e-6)


def test_probabilities_are_read_without_tokens(loaded: Loaded) -> None:
    texts = ["we saw", "", "the dog " * 40, "money"]
    found = detect_all(loaded, texts, threshold=0.3)
    assert len(found) == 4 and found[1].tokens == () and not len(found.probabilities(1))
    for number, one in enumerate(found):
        assert found.probabilities(number).tolist() == [token.probability for token in one.tokens]
        assert one == found[number] == found[number - 4]
    assert [one.text for one in found[1:3]] == texts[1:3]
    assert found.probabilities(-1).tolist() == found.probabilities(3).tolist()
    for wrong in (4, -5):
        with pytest.raises(IndexError):
            found[wrong]


@given(count=st.integers(0, 300), capacity=st.integers(1, 40))
def test_each_token_goes_to_the_window_with_the_most_context(count: int, capacity: int) -> None:
    starts = window_starts(count, capacity)

    def context(place: int, start: int) -> int:
        return min(place - start, start + min(capacity, count) - 1 - place)

    best = [max(starts, key=lambda start: (context(place, start), -start)) for place in range(count)]
    assert best_windows(count, capacity) == best


@given(sizes=st.lists(st.integers(0, 30), max_size=6), capacity=st.integers(1, 12))
def test_windows_of_many_texts_are_those_of_each(loaded: Loaded, sizes: list[int], capacity: int) -> None:
    texts = [[100 * text + place for place in range(size)] for text, size in enumerate(sizes)]
    tokenizer, windows = loaded.tokenizer, cut(FlatIds.of(texts), capacity=capacity, tokenizer=loaded.tokenizer)
    parts = [ids[start : start + capacity] for ids in texts for start in window_starts(len(ids), capacity) or [0]]
    flat = windows.sequences
    cut_out = [flat.ids[start : start + size].tolist() for start, size in zip(flat.starts, flat.sizes, strict=True)]
    assert cut_out == [[tokenizer.cls_id, *part, tokenizer.sep_id] for part in parts]
    ends = np.cumsum(sizes, dtype=np.int64)
    counts = [len(window_starts(size, capacity) or [0]) for size in sizes]
    assert windows.firsts_N.tolist() == [sum(counts[:number]) for number in range(len(counts))]
    chosen = [
        windows.starts_W[window]
        for window in range(len(parts))
        for _ in range(windows.best_W[window], windows.best_ends_W[window])
    ]
    shifted = [
        end - size + best for end, size in zip(ends, sizes, strict=True) for best in best_windows(size, capacity)
    ]
    assert chosen == shifted


def test_models_that_cannot_detect_are_named(loaded: Loaded, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="length of 2 leaves no place"):
        detect(replace(loaded, length=2), TEXT)
    make_run(tmp_path / "bert", MLM)
    done = CliRunner().invoke(command, ["--model", str(tmp_path / "bert"), TEXT])
    assert isinstance(done.exception, CheckpointError) and "no replaced-token head" in str(done.exception)


def found(start: int, end: int, probability: float, *, flagged: bool = True) -> DetectedToken:
    return DetectedToken(token="x", start=start, end=end, probability=probability, flagged=flagged)


def test_marks() -> None:
    text = "the chef cooked\x1b[31m it"
    tokens = (found(0, 3, 0.1, flagged=False), found(4, 8, 0.934), found(9, 12, 0.5), found(12, 15, 1.0))
    assert (
        str(Detection(text=text, tokens=tokens))
        == "the [chef|0.93] [coo|0.50][ked|1.00]\N{REPLACEMENT CHARACTER}[31m it"
    )
    assert str(Detection(text="ab", tokens=(found(0, 1, 0.9), found(0, 1, 0.8)))) == "[a|0.90]b"


def test_a_text_without_marks_names_its_likeliest_token() -> None:
    unmarked = Detection(text="a cloud", tokens=(found(0, 1, 0.1, flagged=False), found(2, 7, 0.19, flagged=False)))
    assert str(unmarked) == "a cloud (no token is marked; the highest is 'cloud' with 0.19)"
    assert unmarked.marked == "a cloud" and "'cloud' with 0.19" in repr(unmarked)
    assert str(Detection(text="", tokens=())) == ""


def test_command_marks_and_json(run: Path) -> None:
    plain = CliRunner().invoke(command, ["--model", str(run), "--threshold", "0", "the dog", "a cat"])
    assert plain.exit_code == 0
    first, second = plain.output.splitlines()
    assert first.startswith("[the|0.") and "[dog|0." in first and second.startswith("[a|0.")
    none = CliRunner().invoke(command, ["--model", str(run), "--threshold", "1", "the dog"])
    assert none.stdout == "the dog\n"
    said = re.fullmatch(
        r"no token reaches 1; the highest is '(the|dog)' with (0\.\d\d) \(--threshold (.*) marks it\)\n", none.stderr
    )
    assert said, none.stderr
    marked = CliRunner().invoke(command, ["--model", str(run), "--threshold", said[3], "the dog"])
    assert f"[{said[1]}|{said[2]}]" in marked.stdout and marked.stderr == ""
    both = CliRunner().invoke(command, ["--model", str(run), "--json"], input="the dog\n\nwe saw\r\n")
    rows = [json.loads(line) for line in both.output.splitlines()]
    assert [row["text"] for row in rows] == ["the dog", "", "we saw"]
    assert [len(row["tokens"]) for row in rows] == [2, 0, 2]
    assert set(rows[0]["tokens"][1]) == {"token", "start", "end", "probability", "flagged"}
    assert (rows[0]["tokens"][1]["start"], rows[0]["tokens"][1]["end"]) == (4, 7)


def test_command_refuses_bad_input(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = CliRunner().invoke(command, ["--model", str(run)], input=b"fine\n\xff\xfe\n")
    assert isinstance(done.exception, DataError) and "line 2 is not valid UTF-8" in str(done.exception)
    for verb in (command, encode, score):  # a byte of the command line that is not UTF-8
        done = CliRunner().invoke(verb, ["--model", str(run), "caf\udce9"])
        assert isinstance(done.exception, DataError) and "TEXT: is not valid UTF-8" in str(done.exception)
    assert CliRunner().invoke(command, ["--model", str(run), "--threshold", "1.5", "x"]).exit_code == 2
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", terminal)
    with pytest.raises(Exception, match="give a TEXT"):
        command.main(["--model", str(run)], standalone_mode=False)


def test_colour_on_a_terminal(run: Path) -> None:
    def seen(**environment: str) -> str:
        keep, give = pty.openpty()
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TERM": "xterm-256color", **environment}
        args = [sys.executable, *one_process.program(), "detect", "--model", str(run), "--threshold", "0", "the dog"]
        process = subprocess.run(args, stdout=give, stdin=subprocess.DEVNULL, env=env, timeout=120)
        os.close(give)
        text = os.read(keep, 10_000).decode()
        os.close(keep)
        assert process.returncode == 0
        return text

    assert "\x1b[1;37;41mthe\x1b[0m" in seen()
    plain = seen(NO_COLOR="1")
    assert "\x1b" not in plain and plain.startswith("[the|0.")

"""SQuAD files, sliding windows and span decoding: every answer is an exact slice of its passage."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from electra.errors import ConfigError, DataError
from electra.fsio import read_json
from electra.metrics.squad import normalise, squad_scores
from electra.tasks.rows import Question
from electra.tasks.spans import SpanScores, decode
from electra.tasks.squad_files import gold_texts, read_squad, write_predictions
from electra.tasks.windows import MAX_CONTEXT_TOKENS, Windows, cut_windows, encode_context
from electra.tokenizer.backends import SPECIALS
from electra.tokenizer.codec import Tokenizer
from electra.tokenizer.vocabulary import read_vocab

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,?-'北京東한"
TOKENIZER = Tokenizer([*SPECIALS, *LETTERS, *("##" + one for one in LETTERS), "the", "king", "##dom", "cafe", "river"])
CASED = Tokenizer(TOKENIZER.vocab, lowercase=False)
real_data = pytest.mark.skipif(not os.environ.get("ELECTRA_DATA"), reason="ELECTRA_DATA names no folder with squad/")


def squad(path: Path, *entries: dict[str, Any], context: object = "The old king saw the river, the old river.") -> Path:
    whole = {"version": "1.1", "data": [{"title": "t", "paragraphs": [{"context": context, "qas": list(entries)}]}]}
    path.write_text(json.dumps(whole), encoding="utf-8")
    return path


def asked(id: str = "q", *answers: tuple[str, int], **more: object) -> dict[str, Any]:
    listed = [{"text": text, "answer_start": start} for text, start in answers]
    return {"id": id, "question": " who? ", "answers": listed, **more}


def test_both_versions_are_read(tmp_path: Path) -> None:
    path = squad(
        tmp_path / "f.json",
        asked("1", ("king", 8), ("old king", 4)),
        asked("2", ("river", 21), is_impossible=False),
        asked("3", is_impossible=True, plausible_answers=[{"text": "king", "answer_start": 8}]),
        {"id": "4", "question": "unlabelled?"},
        asked("5"),
    )
    read = read_squad(path)
    context = "The old king saw the river, the old river."
    first = Question(id="1", question="who?", context=context, answers=(("king", 8), ("old king", 4)))
    assert read[0] == first
    assert [one.impossible for one in read] == [False, False, True, False, False]
    assert gold_texts(read) == {"1": ("king", "old king"), "2": ("river",), "3": (), "4": (), "5": ()}


def test_a_wrong_offset_is_looked_up_nearest_first_and_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = squad(
        tmp_path / "f.json",
        asked("1", ("river", 35)),
        asked("2", ("river", -1)),
        asked("3", ("The  OLD\nking", 0)),
        asked("4", ("river.", 900)),
    )
    found = [one.answers[0] for one in read_squad(path)]
    assert found == [("river", 36), ("river", 21), ("The old king", 0), ("river.", 36)]
    assert "4 answers not at answer_start, so looked up in the passage; first '1'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (asked("7", ("queen", 3)), "question '7': the answer 'queen' is not in its context"),
        (asked("7", (" ", 3)), "question '7': has a blank answer"),
        ({"question": "who?", "answers": []}, "paragraph 1, question 1: has no 'id'"),
        ({"id": 7, "question": "who?"}, "question 1: 'id' must be a text, not 7"),
        ({"id": "7"}, "question '7': has no 'question'"),
        ({"id": "7", "question": None}, "question '7': 'question' must be a text, not None"),
        ({"id": "7", "question": "w", "answers": {"text": ["king"]}}, "question '7': 'answers' must be a list"),
        ({"id": "7", "question": "w", "answers": ["king"]}, "question '7': is not a JSON object"),
        ({"id": "7", "question": "w", "answers": [{"text": "king"}]}, "question '7': has no 'answer_start'"),
        (
            {"id": "7", "question": "w", "answers": [{"text": "king", "answer_start": 8.5}]},
            "question '7': 'answer_start' must be a whole number, not 8.5",
        ),
        (asked("7", ("king", 8), is_impossible=True), "question '7': is_impossible is true, yet there are answers"),
        (asked("7", is_impossible=False), "question '7': is_impossible is false, yet there is no answer"),
        (asked("7", is_impossible="no"), "question '7': 'is_impossible' must be a true or false, not 'no'"),
        ("who?", "question 1: is not a JSON object"),
    ],
)
def test_a_bad_question_is_named(tmp_path: Path, entry: Any, reason: str) -> None:
    path = squad(tmp_path / "f.json", entry)
    with pytest.raises(DataError) as caught:
        read_squad(path)
    assert str(caught.value).startswith(f"{path}, ") and reason in str(caught.value)
    assert "\n" not in str(caught.value) and caught.value.exit_code == 4


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "cannot be read as JSON"),
        ('{"data": "\\ud83d"}', "it holds half a surrogate pair"),
        ("[]", "is not a JSON object"),
        ("{}", "has no 'data'"),
        ('{"data": []}', "has no questions"),
        ('{"data": [{}]}', "article 1: has no 'paragraphs'"),
        ('{"data": [{"paragraphs": [{"qas": []}]}]}', "paragraph 1: has no 'context'"),
        ('{"data": [{"paragraphs": [{"context": " ", "qas": []}]}]}', "paragraph 1: its context is blank"),
        ("[" * 100_000, "cannot be read as JSON"),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "f.json"
    path.write_text(text)
    with pytest.raises(DataError, match=reason) as caught:
        read_squad(path)
    assert str(path) in str(caught.value)


def test_missing_files_bytes_that_are_no_text_and_twin_ids(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        read_squad(tmp_path / "none.json")
    (tmp_path / "f.json").write_bytes(b'{"data": "\xff"}')
    with pytest.raises(DataError, match="cannot be read as JSON"):
        read_squad(tmp_path / "f.json")
    with pytest.raises(DataError, match="question 'q': stands twice"):
        read_squad(squad(tmp_path / "g.json", asked(), asked()))


def test_prediction_files(tmp_path: Path) -> None:
    write_predictions(tmp_path / "one", {"a": "König", "b": "x"})
    assert read_json(tmp_path / "one" / "predictions.json") == {"a": "König", "b": "x"}
    assert not (tmp_path / "one" / "null_odds.json").exists()
    odds = {"a": -3.0, "b": 1.5}
    write_predictions(tmp_path / "two", {"a": "König", "b": "x"}, null_odds=odds)
    assert read_json(tmp_path / "two" / "predictions.json") == {"a": "König", "b": "x"}
    assert read_json(tmp_path / "two" / "null_odds.json") == odds
    write_predictions(tmp_path / "two", {"a": "König", "b": "x"}, null_odds=odds, threshold=-2.75)
    assert read_json(tmp_path / "two" / "predictions.json") == {"a": "König", "b": ""}


# Windows


def ask(context: str, *answers: str, question: str = "who?", impossible: bool = False) -> Question:
    placed = tuple((text, context.index(text)) for text in answers)
    return Question(id="q", question=question, context=context, answers=placed, impossible=impossible)


def test_a_window_by_hand() -> None:
    made = cut_windows(
        [ask("a b c d e f g", "d e")], tokenizer=TOKENIZER, length=9, max_question=1, stride=3, targets=True
    )
    # [CLS] who? cut to 1 token [SEP] + 5 of 7 context tokens + [SEP], then 3 further
    cls, sep, ids = TOKENIZER.cls_id, TOKENIZER.sep_id, TOKENIZER.encode("a b c d e f g")
    head = [cls, TOKENIZER.encode("who?")[0], sep]
    assert made.features.ids == [[*head, *ids[0:5], sep], [*head, *ids[3:7], sep]]
    assert made.features.a_lengths == [3, 3]
    assert made.question.tolist() == [0, 0]
    assert made.features.targets is not None
    assert np.asarray(made.features.targets).tolist() == [[6, 7, 0], [3, 4, 0]]
    assert [one.tolist() for one in made.spans] == [
        [[n, n + 1] for n in range(0, 10, 2)],
        [[n, n + 1] for n in range(6, 14, 2)],
    ]
    # token 3: one to its right in window 0, none to its left in window 1; token 4: none, and one to its left
    assert [one.tolist() for one in made.max_context] == [[True] * 4 + [False], [False, True, True, True]]


def test_targets_say_whether_the_question_is_unanswerable_not_the_window() -> None:
    long = "a " * 12 + "king " + "b " * 12
    settings = {"tokenizer": TOKENIZER, "length": 16, "max_question": 4, "stride": 4, "targets": True}
    made = cut_windows([ask(long, "king"), ask(long, impossible=True)], **settings)
    rows = np.asarray(made.features.targets)
    answerable, impossible = rows[made.question == 0], rows[made.question == 1]
    assert (answerable[:, 2] == 0).all() and (answerable[:, 0] == 0).any() and (answerable[:, 0] > 0).any()
    assert (impossible == [0, 0, 1]).all()
    king = TOKENIZER.encode("king")[0]
    for sequence, row in zip(made.features.ids, rows, strict=True):
        assert row[0] == 0 or sequence[row[0] : row[1] + 1] == [king]


def test_answers_inside_a_word_take_the_fewest_pieces_that_cover_them() -> None:
    context = "the kingdom river"
    for text, pieces in {"dom": "##dom", "gd": "king ##dom", "om riv": "##dom river", " the"[1:]: "the"}.items():
        made = cut_windows([ask(context, text)], tokenizer=TOKENIZER, targets=True)
        start, end, _ = np.asarray(made.features.targets)[0]
        assert " ".join(TOKENIZER.token(n) for n in made.features.ids[0][start : end + 1]) == pieces


def test_answers_that_cover_no_token_are_left_out_and_named() -> None:
    bad = Question(id="gap", question="q", context="a  b", answers=((" ", 1),))
    moved = Question(id="moved", question="q", context="a  b", answers=(("b", 0),))
    fine = ask("a b", "b")
    made = cut_windows([bad, fine, moved], tokenizer=TOKENIZER, targets=True)
    assert made.skipped == ("gap", "moved") and made.question.tolist() == [1]
    assert cut_windows([bad, fine, moved], tokenizer=TOKENIZER).question.tolist() == [0, 1, 2]
    unlabelled = Question(id="open", question="q", context="a b")
    with pytest.raises(DataError, match="dev.json, question 'open': has no answer to learn from"):
        cut_windows([unlabelled], tokenizer=TOKENIZER, targets=True, where="dev.json")


def test_lengths_that_cannot_work() -> None:
    with pytest.raises(ConfigError, match="length: 67 leaves no tokens"):
        cut_windows([ask("a")], tokenizer=TOKENIZER, length=67)
    with pytest.raises(ConfigError, match="stride"):
        cut_windows([ask("a")], tokenizer=TOKENIZER, stride=0)
    with pytest.raises(DataError, match="f.json, question 'q': its context has 50000 tokens"):
        cut_windows([ask("a " * 50_000)], tokenizer=TOKENIZER, where="f.json")
    assert len(cut_windows([ask("a " * MAX_CONTEXT_TOKENS)], tokenizer=TOKENIZER)) == 254


@pytest.mark.parametrize("tokenizer", [TOKENIZER, CASED], ids=["uncased", "cased"])
@pytest.mark.parametrize(
    ("context", "words"),
    [
        ("the cafe\u0301 is", ["the", "cafe\u0301", "is"]),
        ("the café is", ["the", "café", "is"]),
        ("x\u0301\u0323, y", ["x\u0301\u0323", ",", "y"]),
        ("北京東 a", ["北", "京", "東", "a"]),
        ("한 a", ["한", "a"]),
        ("\u2764\ufe0f ok", ["\u2764\ufe0f", "ok"]),
        ("\U0001f469\u200d\U0001f680 up \U0001f600!", ["\U0001f469\u200d\U0001f680", "up", "\U0001f600", "!"]),
        ("a\u00adb \u200bc", ["a\u00adb", "c"]),
        ("ÀÉ\tİx\u00a0y", ["ÀÉ", "İx", "y"]),
    ],
)
def test_characters_of_words_are_exact(tokenizer: Tokenizer, context: str, words: list[str]) -> None:
    _, spans = encode_context(context, tokenizer=tokenizer)
    for word in words:
        at = context.index(word)
        inside = [span for span in spans.tolist() if span[0] < at + len(word) and span[1] > at]
        assert (min(inside)[0], max(span[1] for span in inside)) == (at, at + len(word))


scripts = st.text(st.sampled_from("abc kingdom. é\u0301北京한\u200b\t\n\u00a0\U0001f600\ufe0fİß["), max_size=80)


@given(scripts, st.integers(8, 24), st.integers(1, 12), st.sampled_from([TOKENIZER, CASED]))
@settings(max_examples=200)
def test_windows_cover_every_token_once_in_full_context(
    context: str, length: int, stride: int, tokenizer: Tokenizer
) -> None:
    one = Question(id="q", question="a b c d e f", context=context)
    made = cut_windows([one], tokenizer=tokenizer, length=length, max_question=4, stride=stride)
    ids, whole = encode_context(context, tokenizer=tokenizer)
    assert ids == tokenizer.encode(context)
    assert (whole[:, 0] < whole[:, 1]).all() and (np.diff(whole, axis=0) >= 0).all()
    for number, (first, last) in zip(ids, whole.tolist(), strict=True):
        piece = tokenizer.token(number).removeprefix("##")
        alone = "".join(tokenizer.token(n).removeprefix("##") for n in tokenizer.encode(context[first:last]))
        assert number == tokenizer.unk_id or piece in alone
    first, full = 0, np.zeros(len(ids), dtype=int)
    for sequence, head, spans, best in zip(
        made.features.ids, made.features.a_lengths, made.spans, made.max_context, strict=True
    ):
        count = len(spans)
        assert len(sequence) == head + count + 1 <= length
        assert sequence[head:-1] == ids[first : first + count] and sequence[-1] == tokenizer.sep_id
        assert (spans == whole[first : first + count]).all()
        full[first : first + count] += best
        reached = first + count
        first += min(count, stride)
    assert reached == len(ids)
    assert (full == 1).all()


@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 12))
@example(700, 420, 200)  # a last window so much shorter that its length counts
def test_full_context_goes_by_the_published_rule(tokens: int, room: int, stride: int) -> None:
    one = Question(id="q", question="a", context="a " * tokens)
    made = cut_windows([one], tokenizer=TOKENIZER, length=room + 4, max_question=1, stride=stride)
    firsts = [int(spans[0, 0]) // 2 for spans in made.spans]
    lengths = [len(spans) for spans in made.spans]
    assert lengths[:-1] == [room] * (len(made) - 1) and lengths[-1] == tokens - firsts[-1] <= room
    assert firsts == [min(room, stride) * n for n in range(len(made))]
    assert len(made) == 1 or firsts[-2] + room < tokens  # the last window was needed
    for token in range(tokens):
        scores = [
            min(token - first, first + length - 1 - token) + 0.01 * length if first <= token < first + length else -1.0
            for first, length in zip(firsts, lengths, strict=True)
        ]
        shown = [n for n, first in enumerate(firsts) if token - first in range(lengths[n])]
        assert [n for n in shown if made.max_context[n][token - firsts[n]]] == [scores.index(max(scores))]


def test_an_answer_that_leaves_a_window_is_not_in_it() -> None:
    for text, inside in {"d e": [1, 1], "e f": [0, 1], "c d": [1, 0], "a": [1, 0], "g": [0, 1]}.items():
        one = ask("a b c d e f g", text)
        made = cut_windows([one], tokenizer=TOKENIZER, length=9, max_question=1, stride=3, targets=True)
        assert (np.asarray(made.features.targets)[:, 0] > 0).tolist() == [bool(n) for n in inside]


def test_equal_contexts_are_encoded_once_in_order() -> None:
    made = cut_windows([ask("a b"), ask("c"), ask("a b")], tokenizer=TOKENIZER)
    assert made.question.tolist() == [0, 1, 2]
    assert np.shares_memory(made.spans[0], made.spans[2])
    assert made.features.targets is None


# Decoding


def sure(windows: Windows, rows: np.ndarray, *, beam: int = 3) -> SpanScores:
    """Scores of a head that is sure of the given (start, end, impossible) in each window."""
    count = len(windows)
    starts, ends = np.full((count, beam), -50.0), np.full((count, beam, beam), -50.0, dtype=np.float32)
    start_at, end_at = np.zeros((count, beam), dtype=np.int64), np.zeros((count, beam, beam), dtype=np.int32)
    starts[:, 0], ends[:, :, 0] = -0.01, -0.02
    start_at[:, 0], end_at[:, :, 0] = rows[:, 0], rows[:, 1, None]
    return SpanScores(
        starts_NK=starts,
        start_at_NK=start_at,
        ends_NKK=ends,
        end_at_NKK=end_at,
        impossible_N=np.where(rows[:, 2] > 0, 8.0, -8.0),
    )


Flat = list[tuple[str, list[tuple[str, int, int, float]], float]]


def by_loops(scores: SpanScores, windows: Windows, questions: list[Question], n_best: int, longest: int) -> Flat:
    """The rules, one candidate at a time."""
    answers: Flat = []
    for number, one in enumerate(questions):
        found: dict[tuple[int, int], float] = {}
        odds = []
        for w in np.flatnonzero(windows.question == number):
            odds.append(float(scores.impossible_N[w]))
            head, spans, best = windows.features.a_lengths[w], windows.spans[w], windows.max_context[w]
            for i in range(scores.starts_NK.shape[1]):
                for j in range(scores.ends_NKK.shape[2]):
                    s, e = int(scores.start_at_NK[w, i]) - head, int(scores.end_at_NKK[w, i, j]) - head
                    if not (0 <= s <= e < len(spans)) or not best[s] or e - s + 1 > longest:
                        continue
                    place = (int(spans[s, 0]), int(spans[e, 1]))
                    score = float(scores.starts_NK[w, i]) + float(scores.ends_NKK[w, i, j])
                    found[place] = max(score, found.get(place, -np.inf))
        ranked = sorted(found.items(), key=lambda item: (-item[1], item[0]))[:n_best]
        answers.append((one.id, [(one.context[a:b], a, b, score) for (a, b), score in ranked], min(odds)))
    return answers


@given(st.integers(0, 10_000), st.integers(1, 6), st.integers(1, 8))
def test_decoding_equals_a_plain_loop(seed: int, n_best: int, longest: int) -> None:
    draw = np.random.default_rng(seed)
    contexts = ["the king saw 한 river. " * 3, "북 cafe\u0301 kingdom", "a b c " * 9, "\u0301"]
    questions = [
        Question(id=str(n), question="who saw it?"[: int(draw.integers(0, 11))], context=contexts[draw.integers(4)])
        for n in range(4)
    ]
    made = cut_windows(questions, tokenizer=TOKENIZER, length=20, max_question=5, stride=4)
    count, beam = len(made), 4
    scores = SpanScores(
        starts_NK=draw.normal(size=(count, beam)),
        start_at_NK=draw.integers(0, 21, (count, beam)),
        ends_NKK=draw.normal(size=(count, beam, beam)),
        end_at_NKK=draw.integers(0, 21, (count, beam, beam)),
        impossible_N=draw.normal(size=count),
    )
    found = decode(scores, windows=made, questions=questions, n_best=n_best, max_answer=longest)
    flat = [(a.id, [(s.text, s.start, s.end, s.score) for s in a.spans], a.null_odds) for a in found]
    assert flat == by_loops(scores, made, questions, n_best, longest)
    for answer, one in zip(found, questions, strict=True):
        assert answer.text == (answer.spans[0].text if answer.spans else "")
        assert all(span.text == one.context[span.start : span.end] for span in answer.spans)


def test_what_is_outside_the_context_is_no_answer() -> None:
    made = cut_windows([ask("the king")], tokenizer=TOKENIZER)
    head, length = made.features.a_lengths[0], len(made.features.ids[0])
    for start, end in [(0, 0), (0, head), (1, head), (head, length - 1), (head + 1, head), (head, 600), (-1, head)]:
        assert decode(sure(made, np.array([[start, end, 0]])), windows=made, questions=[ask("the king")])[0].text == ""
    assert (
        decode(sure(made, np.array([[head, head + 1, 1]])), windows=made, questions=[ask("the king")])[0].null_odds == 8
    )
    with pytest.raises(ValueError, match="scores of 1 windows for 2"):
        two = cut_windows([ask("a"), ask("b")], tokenizer=TOKENIZER)
        decode(sure(made, np.array([[0, 0, 0]])), windows=two, questions=[ask("a"), ask("b")])


def test_the_smallest_impossible_logit_of_the_windows_counts() -> None:
    one = ask("a " * 30)
    made = cut_windows([one], tokenizer=TOKENIZER, length=16, max_question=4, stride=8)
    rows = np.zeros((len(made), 3), dtype=int)
    rows[:, 2] = 1
    rows[1, 2] = 0
    assert len(made) > 2
    assert decode(sure(made, rows), windows=made, questions=[one])[0].null_odds == -8.0


# Real data


@real_data
@pytest.mark.parametrize(
    ("name", "rows", "unanswerable", "share"),
    [
        ("train-v1.1", 15003, 0, 99.0),
        ("dev-v1.1", 10570, 0, 99.5),
        ("dev-v2.0", 11873, 5945, 99.5),
        ("split-train-v2.0", 9634, 4721, 99.5),
        ("split-dev-v2.0", 2239, 1224, 99.5),
    ],
)
def test_gold_positions_decode_to_gold_answers_on_the_whole_file(
    name: str, rows: int, unanswerable: int, share: float, capsys: pytest.CaptureFixture[str]
) -> None:
    data = Path(os.environ["ELECTRA_DATA"])
    tokenizer = Tokenizer(read_vocab(data / "vocab" / "bert-uncased.txt"))
    questions = read_squad(data / "squad" / f"{name}.json")
    assert len(questions) == rows and sum(one.impossible for one in questions) == unanswerable
    made = cut_windows(questions, tokenizer=tokenizer, targets=True)
    assert made.skipped == ()
    answers = decode(sure(made, np.asarray(made.features.targets)), windows=made, questions=questions)
    same = [
        normalise(found.text) == normalise(one.answers[0][0])
        for found, one in zip(answers, questions, strict=True)
        if one.answers
    ]
    assert 100 * np.mean(same) > share
    odds = {one.id: one.null_odds for one in answers} if unanswerable else None
    scores = squad_scores({one.id: one.text for one in answers}, gold_texts(questions), null_odds=odds)
    assert scores["f1"] >= scores["exact"] > share
    assert scores.get("NoAns_exact", 100.0) == 100.0
    assert capsys.readouterr().err == ""

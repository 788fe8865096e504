"""Task files as they are published, quirks included, and as users write them; broken ones named by file and line."""

from __future__ import annotations

import lzma
import os
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from electra.errors import ConfigError, DataError
from electra.tasks.conll import (
    chunk_tags,
    is_chunked,
    read_conll,
    scheme_of,
    scheme_of_labels,
    tags_of,
    to_iob1,
    to_iob2,
    to_scheme,
)
from electra.tasks.glue_files import find_tasks, has_split, read_glue
from electra.tasks.glue_tasks import TASKS, glue_task
from electra.tasks.rows import Example, Sentence

MNLI_HEADER = (
    "index promptID pairID genre sentence1_binary_parse sentence2_binary_parse sentence1_parse sentence2_parse "
    "sentence1 sentence2"
).split()
STS_HEADER = "index genre filename year old_index source1 source2 sentence1 sentence2".split()


def write(path: Path, *rows: list[str], end: str = "\n", bom: bool = False) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join("\t".join(row) + end for row in rows)
    path.write_bytes((b"\xef\xbb\xbf" if bom else b"") + text.encode())
    return path


# GLUE


def test_task_table() -> None:
    assert list(TASKS) == "cola sst2 mrpc stsb qqp mnli qnli rte wnli ax".split()
    assert [task.title for task in TASKS.values()] == "CoLA SST-2 MRPC STS-B QQP MNLI QNLI RTE WNLI AX".split()
    assert TASKS["mnli"].labels == TASKS["ax"].labels == ("contradiction", "entailment", "neutral")
    assert TASKS["rte"].labels == TASKS["qnli"].labels == ("entailment", "not_entailment")
    assert {name for name, task in TASKS.items() if task.unordered} == {"mrpc", "stsb"}
    assert TASKS["cola"].metric == "matthews" and TASKS["stsb"].metrics == ("spearman", "pearson")
    assert TASKS["mrpc"].metrics == TASKS["qqp"].metrics == ("accuracy", "f1") and TASKS["rte"].metric == "accuracy"
    assert TASKS["stsb"].scale == 5 and TASKS["ax"].model_of == "mnli" and TASKS["ax"].splits == ()
    assert all(set(task.official_rows) == {*task.splits, *task.tests} for task in TASKS.values())
    assert TASKS["qqp"].official_rows["train"] == 363_846
    with pytest.raises(ConfigError, match=r"unknown GLUE task 'colla'.*did you mean 'cola'"):
        glue_task("colla")


def test_cola_has_no_header_but_its_test_file_has(tmp_path: Path) -> None:
    write(tmp_path / "CoLA" / "train.tsv", ["gj04", "1", "", "Fred sings."], ["gj04", "0", "*", 'He "quoted.'])
    write(tmp_path / "CoLA" / "test.tsv", ["index", "sentence"], ["0", "Bill slept."], ["1", "Them sleep."])
    assert read_glue(TASKS["cola"], tmp_path, "train") == [
        Example(id="0", text="Fred sings.", label="1"),
        Example(id="1", text='He "quoted.', label="0"),
    ]
    assert read_glue(TASKS["cola"], tmp_path, "test")[1] == Example(id="1", text="Them sleep.")


def test_quotes_line_separators_and_windows_ends_are_left_alone(tmp_path: Path) -> None:
    rows = [["sentence", "label"], ['"it is\u2028good ', "1"], ['"" bad', "0"]]
    write(tmp_path / "SST-2" / "dev.tsv", *rows, end="\r\n", bom=True)
    found = read_glue(TASKS["sst2"], tmp_path, "dev")
    assert [(one.text, one.label) for one in found] == [('"it is\u2028good ', "1"), ('"" bad', "0")]
    write(tmp_path / "SST-2" / "test.tsv", ["index", "sentence"], ["7", "fine"])
    assert read_glue(TASKS["sst2"], tmp_path, "test") == [Example(id="7", text="fine")]


def test_mrpc_in_the_glue_layout(tmp_path: Path) -> None:
    header = ["Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"]
    write(tmp_path / "MRPC" / "train.tsv", header, ["1", "10", "11", 'A "b.', "C."], bom=True)
    write(tmp_path / "MRPC" / "test.tsv", ["index", *header[1:]], ["0", "20", "21", "X.", "Y."])
    assert read_glue(TASKS["mrpc"], tmp_path, "train") == [Example(id="0", text='A "b.', pair="C.", label="1")]
    assert read_glue(TASKS["mrpc"], tmp_path, "test") == [Example(id="0", text="X.", pair="Y.")]


def test_mrpc_in_the_original_layout(tmp_path: Path) -> None:
    header = ["Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"]
    rows = [["1", "10", "11", "A.", "B."], ["0", "12", "13", "C.", "D."], ["0", "10", "13", "E.", "F."]]
    folder = tmp_path / "MRPC"
    write(folder / "msr_paraphrase_train.txt", header, *rows, end="\r\n", bom=True)
    write(folder / "msr_paraphrase_test.txt", header, ["1", "30", "31", "G.", "H."], end="\r\n", bom=True)
    mrpc = TASKS["mrpc"]
    with pytest.raises(DataError, match=r"dev_ids\.tsv: no such file; it says which rows"):
        read_glue(mrpc, tmp_path, "train")
    write(folder / "dev_ids.tsv", ["12", "13"])
    assert [one.text for one in read_glue(mrpc, tmp_path, "train")] == ["A.", "E."]
    assert read_glue(mrpc, tmp_path, "dev") == [Example(id="0", text="C.", pair="D.", label="0")]
    assert read_glue(mrpc, tmp_path, "test") == [Example(id="0", text="G.", pair="H.")]
    (folder / "dev_ids.tsv").rename(folder / "mrpc_dev_ids.tsv")
    assert len(read_glue(mrpc, tmp_path, "dev")) == 1
    write(folder / "train.tsv", header, ["1", "1", "2", "glue", "layout"])
    assert [one.text for one in read_glue(mrpc, tmp_path, "train")] == ["glue"]


def test_stsb_is_read_from_the_end_of_the_row(tmp_path: Path) -> None:
    row = ["0", "main", "file", "2012", "0001", "none", "none", "A plane.", "An air plane."]
    write(tmp_path / "STS-B" / "train.tsv", [*STS_HEADER, "score"], [*row, "3.800"], [*row[:7], "extra", *row[7:], "5"])
    write(tmp_path / "STS-B" / "test.tsv", STS_HEADER, row)
    first, second = read_glue(TASKS["stsb"], tmp_path, "train")
    assert first == Example(id="0", text="A plane.", pair="An air plane.", label=3.8)
    assert (second.text, second.label) == ("A plane.", 5.0)
    assert read_glue(TASKS["stsb"], tmp_path, "test") == [Example(id="0", text="A plane.", pair="An air plane.")]
    for bad, message in (
        ([*row, "5.5"], "line 2: '5.5' is not a score from 0 to 5"),
        ([*row, "nan"], "line 2: 'nan'"),
        ([*row, "x"], "line 2: 'x'"),
        (row, "line 2 has 9 of the 10 fields that STS-B needs"),
    ):
        write(tmp_path / "STS-B" / "train.tsv", [*STS_HEADER, "score"], bad)
        with pytest.raises(DataError, match=message):
            read_glue(TASKS["stsb"], tmp_path, "train")


def test_broken_qqp_rows_are_left_out_and_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    header = ["id", "qid1", "qid2", "question1", "question2", "is_duplicate"]
    rows = [["5", "1", "2", "Why?", "How?", "0"], ["6", "3", "4", "half a"], [""], ["", "", "", "", "Who?", "1"]]
    path = write(tmp_path / "QQP" / "train.tsv", header, *rows)
    found = read_glue(TASKS["qqp"], tmp_path, "train")
    assert found == [
        Example(id="0", text="Why?", pair="How?", label="0"),
        Example(id="1", text="", pair="Who?", label="1"),
    ]
    assert capsys.readouterr().err == f"{path}: 2 rows with missing fields left out, the first in line 3\n"
    write(tmp_path / "QQP" / "test.tsv", ["id", "question1", "question2"], ["0", "a", "b"])
    assert read_glue(TASKS["qqp"], tmp_path, "test") == [Example(id="0", text="a", pair="b")]
    write(tmp_path / "QQP" / "test.tsv", ["id", "question1", "question2"], ["0", "a"])
    with pytest.raises(DataError, match="line 2 has 2 of the 3"):  # each row needs an answer
        read_glue(TASKS["qqp"], tmp_path, "test")


def test_mnli_and_its_many_files(tmp_path: Path) -> None:
    filler = ["x"] * 7
    train = [*MNLI_HEADER, "label1", "gold_label"]
    dev = [*MNLI_HEADER, "label1", "label2", "label3", "label4", "label5", "gold_label"]
    folder = tmp_path / "MNLI"
    write(folder / "train.tsv", train, ["0", *filler, "p", "h", "neutral", "entailment"])
    write(folder / "dev_matched.tsv", dev, ["0", *filler, "pm", "hm", *["neutral"] * 5, "contradiction"])
    write(folder / "dev_mismatched.tsv", dev, ["0", *filler, "px", "hx", *["neutral"] * 5, "neutral"])
    write(folder / "test_matched.tsv", MNLI_HEADER, ["3", *filler, "tp", "th"])
    write(folder / "test_mismatched.tsv", MNLI_HEADER, ["4", *filler, "xp", "xh"])
    write(folder / "diagnostic.tsv", ["index", "sentence1", "sentence2"], ["9", "dp", "dh"])
    read = {s: read_glue(TASKS["mnli"], tmp_path, s)[0] for s in (*TASKS["mnli"].splits, *TASKS["mnli"].tests)}
    assert read["train"] == Example(id="0", text="p", pair="h", label="entailment")
    assert read["dev"] == Example(id="0", text="pm", pair="hm", label="contradiction")
    assert read["dev_mismatched"].label == "neutral"
    assert read["test"] == Example(id="3", text="tp", pair="th")
    assert read["test_mismatched"] == Example(id="4", text="xp", pair="xh")
    assert read_glue(TASKS["ax"], tmp_path, "test") == [Example(id="9", text="dp", pair="dh")]
    assert [task.name for task in find_tasks(tmp_path)] == ["mnli", "ax"]
    with pytest.raises(ConfigError, match="MNLI has no split 'dev_matched'; it has train dev dev_mismatched test"):
        read_glue(TASKS["mnli"], tmp_path, "dev_matched")


@pytest.mark.parametrize("place", ["AX/test.tsv", "AX/AX.tsv", "AX.tsv", "diagnostic/diagnostic.tsv"])
def test_places_of_the_diagnostic_set(tmp_path: Path, place: str) -> None:
    write(tmp_path / "MNLI" / "test.tsv", ["not", "ours"])
    write(tmp_path / place, ["index", "sentence1", "sentence2"], ["0", "p", "h"])
    assert read_glue(TASKS["ax"], tmp_path, "test") == [Example(id="0", text="p", pair="h")]


@pytest.mark.parametrize("name", ["rte", "qnli", "wnli"])
def test_plain_pair_tasks(tmp_path: Path, name: str) -> None:
    task = TASKS[name]
    columns = ["question", "sentence"] if name == "qnli" else ["sentence1", "sentence2"]
    write(tmp_path / task.title / "dev.tsv", ["index", *columns, "label"], ["0", "a", "b", task.labels[1]])
    assert read_glue(task, tmp_path, "dev") == [Example(id="0", text="a", pair="b", label=task.labels[1])]


def test_folders_of_other_names_the_tasks_own_folder_and_packed_files(tmp_path: Path) -> None:
    row = [["sentence", "label"], ["good", "1"]]
    path = write(tmp_path / "sst" / "dev.tsv", *row)
    (tmp_path / "sst" / "dev.tsv.xz").write_bytes(lzma.compress(path.read_bytes()))
    path.unlink()
    expected = [Example(id="0", text="good", label="1")]
    assert read_glue(TASKS["sst2"], tmp_path, "dev") == expected
    assert read_glue(TASKS["sst2"], tmp_path / "sst", "dev") == expected
    assert has_split(TASKS["sst2"], tmp_path, "dev") and not has_split(TASKS["sst2"], tmp_path, "train")
    assert [task.name for task in find_tasks(tmp_path)] == ["sst2"]


def test_missing_files_and_folders(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"RTE/train\.tsv: no such file \(put the RTE files of GLUE there\)"):
        read_glue(TASKS["rte"], tmp_path, "train")
    with pytest.raises(DataError, match="no GLUE task here"):
        find_tasks(tmp_path)
    with pytest.raises(DataError, match="no such folder"):
        find_tasks(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no column 'sentence1'; found none"),
        (b"index\tsentence1\tsentence2\tlabel\n", "holds no rows"),
        (b"index\tsentence1\tsentence2\n0\ta\tb\n", "no column 'label'; found index, sentence1, sentence2"),
        (b"index\tsentence1\tsentence2\tlabel\n0\ta\tb\n", "line 2 has 3 of the 4 fields"),
        (b"index\tsentence1\tsentence2\tlabel\n0\ta\tb\tentailment\n1\ta\tb\tmaybe\n", "line 3: unknown label 'maybe'"),
        (b"index\tsentence1\tsentence2\tlabel\n0\t\xff\tb\tentailment\n", "byte 3 of line 2"),
        (b"index\tsentence1\tsentence2\tlabel\n0\ta\0\tb\tentailment\n", "line 2 holds a NUL byte"),
        (b"index\tsentence1\tsentence2\tlabel\n\n0\ta\tb\tentailment\n", "line 2 has 1 of the 4 fields"),
    ],
)
def test_broken_files_are_one_line_with_file_and_line(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "RTE" / "dev.tsv"
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        read_glue(TASKS["rte"], tmp_path, "dev")
    assert str(caught.value).startswith(f"{path}: ") and "\n" not in str(caught.value)


ROWS_AT_HAND = {
    "cola": (8551, 1043),
    "sst2": (67349, 872),
    "mrpc": (3668, 408),
    "stsb": (5749, 1500),
    "qqp": (46000, 5000),
    "mnli": (19636, 9815, 1000),
    "qnli": (9999, 5463),
    "rte": (2490, 277),
    "wnli": (635, 71),
}


@pytest.mark.skipif(not os.environ.get("ELECTRA_DATA"), reason="ELECTRA_DATA names no folder with glue/")
def test_row_counts_of_the_real_files(capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path(os.environ["ELECTRA_DATA"]) / "glue"
    counts = {
        task.name: tuple(len(read_glue(task, folder, split)) for split in task.splits) for task in find_tasks(folder)
    }
    assert counts == ROWS_AT_HAND
    partial = {name for name, rows in counts.items() if rows[0] != TASKS[name].official_rows["train"]}
    assert partial == {"qqp", "mnli", "qnli"}
    assert capsys.readouterr().err == ""


# CoNLL

CONLL = """-DOCSTART- -X- O O

EU NNP I-NP I-ORG
rejects VBZ I-VP O
German JJ I-NP I-MISC
call NN I-NP O


Peter NNP I-NP I-PER
Blackburn NNP I-NP I-PER
"""


def test_conll_columns(tmp_path: Path) -> None:
    path = tmp_path / "eng.train"
    path.write_text(CONLL, encoding="utf-8")
    first, second = read_conll(path)
    assert first.words == ("EU", "rejects", "German", "call") and first.tags == ("I-ORG", "O", "I-MISC", "O")
    assert second.words == ("Peter", "Blackburn") and (first.id, second.id) == ("0", "1")
    assert read_conll(path, tag=1)[1].tags == ("NNP", "NNP")
    assert read_conll(path, tag=None)[1].tags is None
    assert tags_of([first, second]) == ("O", "I-MISC", "I-ORG", "I-PER")
    assert chunk_tags([first, second], "bioes")[:5] == ("O", "B-MISC", "I-MISC", "E-MISC", "S-MISC")
    assert len(chunk_tags([first, second], "bioes")) == 13
    assert chunk_tags([first, second], "iob2")[:3] == ("O", "B-MISC", "I-MISC")
    path.write_text("New York\tB-LOC\r\nis\tO\r\n\r\n\u00a0\tO\r\n", encoding="utf-8", newline="")
    assert [one.words for one in read_conll(path)] == [("New York", "is"), ("\u00a0",)]


@pytest.mark.parametrize(
    ("content", "columns", "message"),
    [
        ("", {}, "holds no sentences"),
        ("a O\nb X O\n", {}, "line 2 has 3 columns, the lines before have 2"),
        ("a O\n\nb\n", {}, "line 3 has 1 columns"),
        ("a O\n", {"tag": 2}, "the tag column is 2, but the lines have 2 columns"),
        ("\na\n", {}, r"line 2 has one column \(a word, then a tab or a space, then its tag\)"),
        ("a O\n", {"tag": 0}, "words and tags would come from the same column 0"),
        ("a\t\n", {}, "line 1: the tag is empty"),
    ],
)
def test_broken_conll(tmp_path: Path, content: str, columns: dict[str, int], message: str) -> None:
    path = tmp_path / "bad.txt"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=message):
        read_conll(path, **columns)


def test_tag_schemes_by_hand() -> None:
    iob1 = "I-PER I-PER O I-LOC B-LOC I-LOC I-ORG O B-X".split()
    iob2 = "B-PER I-PER O B-LOC B-LOC I-LOC B-ORG O B-X".split()
    bioes = "B-PER E-PER O S-LOC B-LOC E-LOC S-ORG O S-X".split()
    bilou = "B-PER L-PER O U-LOC B-LOC L-LOC U-ORG O U-X".split()
    for tags in (iob1, iob2, bioes, bilou):
        assert to_scheme(tags, "bioes") == tuple(bioes)
        assert to_scheme(tags, "bilou") == tuple(bilou)
        assert to_scheme(tags, "iob2") == to_iob2(tags) == tuple(iob2)
        assert to_scheme(tags, "iob1") == to_iob1(tags) == (*iob1[:-1], "I-X")
    assert to_scheme(["I-geo-loc", "I-geo-loc"], "bioes") == ("B-geo-loc", "E-geo-loc")
    assert to_scheme([], "bioes") == ()
    for scheme, tags in {"iob1": iob1, "iob2": iob2, "bioes": bioes, "bilou": bilou}.items():
        tagged = [Sentence(id="0", words=("a",) * len(tags), tags=tuple(tags))]
        assert scheme_of(tagged) == scheme == scheme_of_labels(chunk_tags(tagged, scheme))  # type: ignore[arg-type]
    assert scheme_of([Sentence(id="0", words=("a",) * 6, tags=("B-A", "I-A", "O", "I-A", "B-B", "O"))]) == "iob2"
    assert scheme_of_labels(("DET", "NOUN")) is None
    assert is_chunked(iob1) and not is_chunked(["NN", "O"]) and not is_chunked(["O"]) and not is_chunked([])


SPANS = st.lists(st.tuples(st.sampled_from(["O", "A", "B"]), st.integers(1, 4)), max_size=8)


@given(SPANS)
def test_schemes_convert_into_each_other(runs: list[tuple[str, int]]) -> None:
    gold: list[str] = []
    for kind, size in runs:
        gold += ["O"] * size if kind == "O" else [f"B-{kind}", *[f"I-{kind}"] * (size - 1)]
    for there in (partial(to_scheme, scheme="bioes"), partial(to_scheme, scheme="bilou"), to_iob1, to_iob2):
        assert to_iob2(there(gold)) == tuple(gold)
        assert there(there(gold)) == there(gold)

"""RTD beside MLM from records: leads by hand, what may be compared, the table and the plot."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from electra.cli import main
from electra.errors import DataError
from electra.finetune.task_results import GLUE_5
from electra.speedrun import screen
from electra.speedrun.lead import Series, comparisons, leads
from electra.speedrun.lead_page import plot, section
from electra.speedrun.record import Record, TaskScore, append, glue5_of, read
from electra.speedrun.records_page import curves, page


def record(
    entry: str, minutes: float, scores: list[float], *, real: float, seed: int = 1, rules: float = 2.0
) -> Record:
    """A run whose tasks all have these scores, one a fine-tuning seed; `bert` is MLM."""
    seeds = {str(10 + place): score for place, score in enumerate(scores)}
    tasks = {name: TaskScore.over(seeds, title=name, metric="accuracy") for name in GLUE_5}
    rtd_loss = None if entry == "bert" else 0.2
    return Record(
        entry=entry,
        preset="small",
        changes=(f"seed={seed}",),
        finetune=(),
        minutes=minutes,
        seconds=60 * minutes,
        steps=100,
        tokens=1e9,
        tokens_padded=1e8 * minutes,
        flops_real=real,
        flops_paper=rules * real,
        parameters=14_000_000,
        seed=seed,
        purpose="report",
        scores=glue5_of(tasks),
        held_out={"rtd_loss": rtd_loss, "rtd_auc": None, "mlm_loss": 3.0, "mlm_accuracy": None},
        curve=[[30.0, 1.0, rtd_loss, None, 4.0, None]],
        device="gpu",
        data_sha256="da7a",
        commit="c0ffee",
    )


RUNS = [
    record("faithful", 10, [72.0, 74.0], real=2e17),
    record("faithful", 10, [75.0, 75.0], real=2e17, seed=2),
    record("faithful", 20, [76.0, 78.0], real=4e17),
    record("bert", 10, [70.0, 70.0], real=2.5e17, rules=2.4),
    record("bert", 20, [71.0, 71.0], real=5e17, rules=2.4),
]


def pair(records: list[Record]) -> tuple[Series, Series]:
    ((rtd, mlm),) = comparisons(records)[0].pairs
    assert (rtd.title, mlm.title) == ("faithful", "bert")
    return rtd, mlm


def test_leads_by_hand() -> None:
    ten, twenty = leads(*pair(RUNS), "minutes")
    assert (ten.at, ten.rtd, ten.mlm, ten.value) == (10, 74.0, 70.0, 4.0)
    assert (twenty.at, twenty.rtd, twenty.mlm, twenty.value) == (20, 77.0, 71.0, 6.0)
    # Of two seeds a resample has the lower twice in a quarter of all draws, and the higher twice.
    assert (twenty.low, twenty.high) == (5.0, 7.0)
    # Of two runs likewise; the first of them has its lower seed twice in a quarter of those: 72 - 70 in 1 of 16.
    assert (ten.low, ten.high) == (2.0, 5.0)


def test_between_two_runs_a_score_is_read_off_over_the_logarithm() -> None:
    found = leads(*pair(RUNS), "FLOPs, real")
    assert [lead.at for lead in found] == [2.5e17, 4e17], "beyond the runs of the other nothing is said"
    first, second = found
    assert first.rtd == pytest.approx(74 + 3 * math.log(1.25) / math.log(2)) and first.mlm == 70.0
    assert second.mlm == pytest.approx(70 + math.log(1.6) / math.log(2)) and second.rtd == 77.0
    assert (first.between, second.between) == ("faithful", "bert")
    rules = leads(*pair(RUNS), "FLOPs, paper's rules")
    assert [lead.at for lead in rules] == [pytest.approx(6e17), pytest.approx(8e17)]
    assert rules[1].mlm == pytest.approx(70 + math.log(8 / 6) / math.log(2))


def test_only_what_differs_in_the_run_alone_is_compared() -> None:
    other = [replace(RUNS[3], **change) for change in ({"scorer": "x"}, {"data_sha256": "0"}, {"finetune": ("lr=1",)})]
    assert not any(comparison.pairs for comparison in comparisons([*RUNS[:3], *other]))
    first, *rest = comparisons([*RUNS, *other])
    assert len(first.pairs) == 1 and len(rest) == 3


def test_an_entry_is_compared_with_the_bert_of_its_own_recipe() -> None:
    def mlm(**changed: str | None) -> Record:
        return replace(RUNS[3], **changed)  # type: ignore[arg-type]

    modern = replace(RUNS[0], entry="modern", changes=("objective.base_rate_start=false",))
    preset = replace(RUNS[0], entry=None, preset="small")
    runs = [RUNS[0], modern, preset, mlm(), mlm(entry="modern-bert"), mlm(entry=None, preset="bert-small")]
    pairs = {(rtd.title, other.title) for rtd, other in comparisons(runs)[0].pairs}
    everything = {(rtd.title, other.title) for rtd in runs[:3] for other in runs[3:]}
    assert everything - pairs == {("faithful", "modern-bert"), ("modern objective.base_rate_start=false", "bert")}


def test_the_table_and_the_plot_of_a_page() -> None:
    shown, images = page(RUNS), curves(RUNS)
    assert "## RTD beside MLM\n\n![" in shown and "(images/records/lead.svg)" in shown
    assert "| minutes | 10 | 74.0 | 70.0 | **+4.0** | +2.0 to +5.0 |" in shown
    assert "| FLOPs, real | 2.50e+17 | ~75.0 | 70.0 | **+5.0** |" in shown
    assert "- In 20 minutes MLM computed 1.25 times the FLOPs of RTD, by the paper's rules 1.50 times." in shown
    assert "faithful: 74.0 at 10 minutes, 77.0 at 20 minutes" in images["lead.svg"]
    assert "RTD beside MLM" not in page(RUNS[:3]) and "lead.svg" not in curves(RUNS[:3])


@pytest.mark.parametrize("few", [[0, 3], [0, 4], [2]])
def test_few_points_can_be_drawn(few: list[int]) -> None:
    comparison = comparisons([RUNS[place] for place in few])[0]
    drawing = ElementTree.fromstring(plot(comparison))
    written = [one for one in drawing.iter() if one.text and one.text.strip()]
    texts, height = [one.text for one in written], float(drawing.attrib["viewBox"].split()[3])
    places = [float(one.attrib["y"]) for one in written if "y" in one.attrib]
    assert len(places) > 3 and max(places) < height, "nothing is written below the picture"
    assert "GLUE-5 (line: range over seeds)" in texts
    assert ("+3.0" in texts) == (few == [0, 3])
    assert not section(comparison) if few == [2] else section(comparison)
    assert few != [0, 4] or "nothing equal between them" in section(comparison)[0]


def test_the_command(tmp_path: Path) -> None:
    files = [tmp_path / "rtd.jsonl", tmp_path / "mlm.jsonl"]
    for one in RUNS:
        append(files[one.entry == "bert"], one)
    append(files[0], replace(RUNS[0], purpose="choice", minutes=3.0))
    arguments = ["speedrun", "compare", *map(str, files), "--plot", str(tmp_path / "lead.svg")]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0 and "| minutes | 20 | 77.0 | 71.0 | **+6.0** | +5.0 to +7.0 |" in done.output
    assert "3 minutes" not in done.output and (tmp_path / "lead.svg").read_text().startswith("<?xml")
    alone = CliRunner().invoke(main, ["speedrun", "compare", str(files[0])])
    assert alone.exit_code == 4 and "no RTD and MLM runs of one text" in alone.output
    assert "faithful (RTD) of text without a name, data da7a, gpu, scored by electra" in alone.output


def test_a_run_counts_once_however_often_it_is_written(tmp_path: Path) -> None:
    """A second copy would narrow the interval as a second pre-training seed does."""
    copy = replace(RUNS[2], commit="0ther", text="in words")
    assert leads(*pair([*RUNS, RUNS[2], copy]), "minutes") == leads(*pair(RUNS), "minutes")
    path = tmp_path / "records.jsonl"
    for one in (RUNS[2], RUNS[3], copy):
        append(path, one)
    assert read(path) == [copy, RUNS[3]], "what is said of a run is replaced"


def test_a_record_is_added_behind_a_last_line_without_an_end(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    append(path, RUNS[0])
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    append(path, RUNS[1])
    assert read(path) == RUNS[:2]


def test_a_screen_takes_the_record_of_the_seeds_for_choosing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else a run was scored by since: the same screen may be asked for again, with more trials."""
    monkeypatch.setattr(screen, "_run", lambda workers, logs, failures: None)
    chosen = replace(RUNS[0], purpose="choice")
    for one in (chosen, RUNS[2], replace(RUNS[3], purpose="choice", finetune=("lr=1e-4",))):
        append(tmp_path / "runs" / "control" / "records.jsonl", one)
    trial = screen.Trial(name="control", changes=())
    [found] = screen.screen([trial], data=tmp_path, glue=tmp_path, out=tmp_path, minutes=10)
    assert found.record == chosen and read(tmp_path / "records.jsonl") == [chosen]


def test_two_records_of_one_run_are_refused() -> None:
    other = replace(record("faithful", 10, [60.0, 60.0], real=2e17), commit="0ther")
    reason = r"faithful, 10 minutes, seed 1: GLUE-5 73.00 of commit c0ffee and GLUE-5 60.00 of commit 0ther \(take one"
    with pytest.raises(DataError, match=reason):
        comparisons([*RUNS, other])


def test_runs_of_other_settings_are_not_taken_together() -> None:
    """An entry changes between commits: its settings tell, or where a record has none, parameters and FLOPs."""
    first, second = (replace(run, settings={"optim.lr": "0.1", "seed": str(run.seed)}) for run in RUNS[:2])
    assert len(pair([first, second, *RUNS[2:]])[0].points[0].runs) == 2, "the seed is no setting"
    changes = ({"settings": {"optim.lr": "0.2"}}, {"parameters": 1}, {"flops_real": 3e17}, {"preset": "base"})
    for change in changes:
        runs = [first, replace(second, **change), RUNS[3]]  # type: ignore[arg-type]
        if "settings" not in change:
            runs = [replace(run, settings={}) for run in runs]
        titles = [rtd.title for rtd, _ in comparisons(runs)[0].pairs]
        assert titles == ["faithful (1, commit c0ffee)", "faithful (2, commit c0ffee)"], change


def test_the_table_names_what_is_unknown_of_runs_taken_together() -> None:
    shown = "\n".join(section(comparisons(RUNS)[0]))
    assert "- Not every record of faithful has its settings: of its runs, parameters and FLOPs per token" in shown
    assert "has its settings" not in "\n".join(section(comparisons([RUNS[0], RUNS[3]])[0]))


@pytest.mark.parametrize(
    "change",
    [
        {"entry": None, "preset": "tiny"},
        {"changes": ("model.width=128",)},
        {"changes": ("model.dropout_share=0.5",)},
        {"settings": {"model.layers": "6"}},
    ],
)
def test_other_encoders_and_changes_make_no_pair(change: dict[str, Any]) -> None:
    mlm = replace(RUNS[3], settings={"model.layers": "12"}) if "settings" in change else RUNS[3]
    assert not comparisons([replace(RUNS[0], **change), mlm])[0].pairs
    assert comparisons([replace(RUNS[0], **change), replace(mlm, **change)])[0].pairs


def test_objectives_may_differ_and_other_recipes_are_named() -> None:
    own = replace(RUNS[0], changes=("seed=4", "objective.rtd_weight=20", "generator.width=0.5"))
    assert section(comparisons([own, RUNS[3]])[0])
    assert "Recipes differ" not in "".join(section(comparisons([own, RUNS[3]])[0]))
    preset = replace(RUNS[0], entry=None, preset="small")
    shown = section(comparisons([preset, RUNS[3]])[0])
    found = 'data.layout "sentences", "paper-official"'
    assert f"- Recipes differ, by the presets of this version (RTD, MLM): {found}." in shown

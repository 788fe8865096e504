"""The page of records: a table of all, then each run's command, commit and curve."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256

from electra.finetune.task_results import GLUE_5
from electra.progress import scaled
from electra.report.plots import Chart, Line, line_chart, standalone
from electra.report.rendering import style_sheet
from electra.speedrun import lead_page
from electra.speedrun.lead import Comparison, comparisons
from electra.speedrun.markdown import markdown_table
from electra.speedrun.record import CURVE, Record

IMAGES = "images/records"
"""Folder of the curves, beside the page."""
LEAD = "lead.svg"
"""The plot of RTD beside MLM, in that folder."""
SCORE_COLUMNS = ("minutes", "run", "GLUE-5", "std", "CoLA", "SST-2", "MRPC", "STS-B", "RTE", "text", "scored by")
COST_COLUMNS = (
    *("minutes", "run", "seconds", "RTD loss", "AUC", "MLM loss"),
    *("parameters", "tokens", "FLOPs, real", "FLOPs, paper's rules"),
)
_PROTOCOL = """\
How good an encoder gets in a given number of minutes. [How to run one and add it here](how-to/speedrun.md).

- **Minutes** are wall-clock from the command's start: start-up, evaluations, checkpoints and everything that a killed
  run had lost count.
- **GLUE-5** is the mean of five medians over fine-tuning seeds 10 to 14, on the dev sets: CoLA (Matthews), SST-2, MRPC
  and RTE (accuracy), STS-B (Spearman). All rows, the paper's fine-tuning. `std` is over the seeds, of a seed's mean
  over the tasks.
- **Text** is what the encoder was trained on. Film reviews help on SST-2, whose sentences come from such reviews.
  The text is not in the repository: the open part is listed in the [card](../src/electra/bundled/small/README.md) of
  `electra:small`, reviews and blogs are for research only.
- **An entry** is that of the run's commit. Since d08ccf7 `modern` is without `generator.dropout_scale=0` and
  `optim.decay_share=0.5`, and `modern-bert` without the latter; since b99d46e both have `data.copies=0.7`,
  `data.copies_share=0.2` and `objective.overlap_weight=5`.
- **Held-out losses** compare only between runs of the same `Data`.
- Settings are chosen on seeds 0 to 4. Pre-training seeds that served in choosing are not reported.
- **Scored by** `electra` is `electra speedrun score`; by `transformers` is a plain loop on the exported model.
"""


def page(records: Sequence[Record]) -> str:
    """The page in Markdown; runs that were scored for a choice are left out."""
    shown = sorted(
        (record for record in records if record.purpose == "report"),
        key=lambda record: (record.minutes, -record.scores.glue5),
    )
    parts = ["# Records", _PROTOCOL.rstrip(), "## Scores"]
    if not shown:
        return "\n\n".join([*parts, markdown_table(SCORE_COLUMNS, ()), "There is no record yet."]) + "\n"
    runs = list({slug(record): record for record in shown}.values())
    names = _names(runs)
    parts += [markdown_table(SCORE_COLUMNS, (_scores(record, names) for record in shown)), *_notes(shown, names)]
    parts += ["## Cost and held-out figures", markdown_table(COST_COLUMNS, (_cost(run, names) for run in runs))]
    if both := _with_both(shown):
        parts += ["## RTD beside MLM", f"![GLUE-5 and the lead of RTD over the minutes]({IMAGES}/{LEAD})"]
        parts += [paragraph for comparison in both for paragraph in lead_page.section(comparison)]
    parts.append("## Runs")
    for record in runs:
        parts += _run(record, names)
    return "\n\n".join(parts) + "\n"


def curves(records: Sequence[Record]) -> dict[str, str]:
    """File names in `IMAGES`, and the curve in each as SVG."""
    shown = [record for record in records if record.purpose == "report"]
    runs = {slug(record): record for record in shown}
    drawn = {f"{name}.svg": standalone(line_chart(_chart(record)), style_sheet()) for name, record in runs.items()}
    return drawn | ({LEAD: lead_page.plot(both[0])} if (both := _with_both(shown)) else {})


def slug(record: Record) -> str:
    """A name for a run: the same for all its records, another for another run."""
    title = record.title
    if title != record.label:  # a file's name holds no long list of keys
        title = f"{record.label} {sha256(title.encode()).hexdigest()[:8]}"
    chosen = [f"{record.minutes:g}min", title, f"seed{record.seed}", (record.commit or "unknown")[:7]]
    return re.sub(r"[^a-z0-9]+", "-", " ".join(chosen).lower()).strip("-")


def _with_both(records: Sequence[Record]) -> list[Comparison]:
    return [comparison for comparison in comparisons(records) if comparison.pairs]


def _chart(record: Record) -> Chart:
    figure, label = (
        ("rtd_loss", "RTD loss") if record.held_out.get("rtd_loss") is not None else ("mlm_loss", "MLM loss")
    )
    place = CURVE.index(figure)
    points = [(row[0] / 60, row[place]) for row in record.curve if row[0] is not None]
    known = [(minutes, value) for minutes, value in points if value is not None]
    return Chart(
        name="record",
        title=f"Held-out {label}",
        lines=[Line(label=label, points=known, dots=len(known) < 40)],
        x_label="minutes",
    )


def _scores(record: Record, names: Mapping[str, str]) -> tuple[str, ...]:
    scores = record.scores
    tasks = (f"{scores.tasks[name].median:.1f}" for name in GLUE_5)
    glue5 = (f"**{scores.glue5:.1f}**", f"{scores.glue5_std:.1f}")
    return f"{record.minutes:g}", _link(record, names), *glue5, *tasks, record.text, record.scorer


def _cost(record: Record, names: Mapping[str, str]) -> tuple[str, ...]:
    held_out = (record.held_out.get(name) for name in ("rtd_loss", "rtd_auc", "mlm_loss"))
    return (
        *(f"{record.minutes:g}", _link(record, names), f"{record.seconds:.1f}"),
        *("" if value is None else f"{value:.3f}" for value in held_out),
        *(scaled(record.parameters), scaled(record.tokens)),
        *(f"{record.flops_real:.2e}", f"{record.flops_paper:.2e}"),
    )


def _run(record: Record, names: Mapping[str, str]) -> list[str]:
    started = f"--entry {record.entry}" if record.entry else f"--preset {record.preset}"
    changes = " ".join(["", *record.changes])
    finetune = " ".join(["", *record.finetune])
    commands = [
        f"electra speedrun train --data DATA --out RUN --minutes {record.minutes:g} {started}{changes}",
        f"electra speedrun score --run RUN --glue GLUE{finetune}",
    ]
    return [
        f"### {names[slug(record)]}",
        "```\n" + "\n".join(commands) + "\n```",
        f"Commit `{record.commit or 'unknown'}`, {record.device}, {record.steps:,} steps, seed {record.seed}.\n"
        f"Data `{record.data_sha256[:12]}`.",
        f"![Held-out loss over the minutes]({IMAGES}/{slug(record)}.svg)",
    ]


def _notes(records: Iterable[Record], names: Mapping[str, str]) -> list[str]:
    notes = [f"- {names[slug(record)]}, {record.scorer}: {note}" for record in records for note in record.scores.notes]
    return ["\n".join(notes)] if notes else []


def _names(runs: Iterable[Record]) -> dict[str, str]:
    """What each run is called on the page, by its slug: a number tells apart what would be called the same."""
    names: dict[str, str] = {}
    for run in runs:
        name = f"{run.minutes:g} minutes, {run.label}, seed {run.seed}"
        same = sum(other.partition(" (")[0] == name for other in names.values())
        names[slug(run)] = f"{name} ({same + 1})" if same else name
    return names


def _link(record: Record, names: Mapping[str, str]) -> str:
    name = names[slug(record)]
    anchor = re.sub(r"[^\w\- ]", "", name.lower()).replace(" ", "-")
    return f"[{name.partition(', ')[2]}](#{anchor})"

"""How far RTD is ahead of MLM: at equal minutes, at equal real FLOPs and at equal FLOPs by the paper's rules."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from electra.errors import DataError
from electra.speedrun.alike import by_setting, detects, distinct, same_changes, same_encoder
from electra.speedrun.entry import MLM_ENTRIES
from electra.speedrun.record import Record

DRAWS = 10_000
TAIL = 0.025  # a 95 % interval


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """The runs of one title and as many minutes: one for each pre-training seed."""

    runs: tuple[Record, ...]

    @property
    def glue5(self) -> float:
        """The mean of the runs'."""
        return _mean(run.scores.glue5 for run in self.runs)

    @property
    def seeds(self) -> list[float]:
        """GLUE-5 of each fine-tuning seed of each run."""
        return [float(value) for run in self.runs for value in _by_seed(run).mean(axis=1)]

    @property
    def minutes(self) -> float:
        return self.runs[0].minutes

    @property
    def flops_real(self) -> float:
        return _mean(run.flops_real for run in self.runs)

    @property
    def flops_paper(self) -> float:
        return _mean(run.flops_paper for run in self.runs)

    def resampled(self, random: np.random.Generator) -> NDArray[np.float64]:
        """GLUE-5 over and over: of runs drawn with replacement, each with fine-tuning seeds drawn so."""
        drawn = []
        for run in self.runs:
            scores = _by_seed(run)
            chosen = random.integers(len(scores), size=(DRAWS, len(scores)))
            drawn.append(np.median(scores[chosen], axis=1).mean(axis=1))
        chosen = random.integers(len(drawn), size=(DRAWS, len(drawn)))
        means: NDArray[np.float64] = np.stack(drawn, axis=1)[np.arange(DRAWS)[:, None], chosen].mean(axis=1)
        return means


MEASURES: dict[str, Callable[[Point], float]] = {
    "minutes": lambda point: point.minutes,
    "FLOPs, real": lambda point: point.flops_real,
    "FLOPs, paper's rules": lambda point: point.flops_paper,
}
"""What can be equal, by name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """The points of one title and one setting, the cheapest first."""

    title: str
    detects: bool
    """RTD; otherwise MLM alone."""
    points: tuple[Point, ...]

    @property
    def runs(self) -> list[Record]:
        """Of all points."""
        return [run for point in self.points for run in point.runs]

    @property
    def name(self) -> str:
        """Of the entry or preset."""
        return self.title.split()[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class Lead:
    """GLUE-5 of both where a measure is equal; `low` to `high` holds the lead in 95 % of resampled seeds."""

    measure: str
    at: float
    rtd: float
    mlm: float
    low: float
    high: float
    between: str = ""
    """Which of the two is read off between two of its points."""

    @property
    def value(self) -> float:
        return self.rtd - self.mlm


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Runs of the same text, device, fine-tuning and scorer."""

    scorer: str
    series: tuple[Series, ...]

    @property
    def pairs(self) -> list[tuple[Series, Series]]:
        """Each RTD series beside each MLM one of as large an encoder, of the same changes and of no other recipe."""
        detecting = [one for one in self.series if one.detects]
        others = [one for one in self.series if not one.detects]
        return [(rtd, mlm) for rtd in detecting for mlm in others if _may_pair(rtd, mlm)]


def comparisons(records: Iterable[Record]) -> list[Comparison]:
    """The records that may be compared, together; the largest such group first. A record twice counts once."""
    groups: dict[tuple[str, tuple[str, ...], str, str], list[Record]] = {}
    for record in distinct(records):
        groups.setdefault((record.scorer, record.finetune, record.device, record.data_sha256), []).append(record)
    ordered = sorted(groups.items(), key=lambda item: (-len(item[1]), item[0][0]))
    return [Comparison(scorer=scorer, series=tuple(_series(runs))) for (scorer, *_), runs in ordered]


def comparisons_of_both(records: Sequence[Record]) -> list[Comparison]:
    """Those with both RTD and MLM; refused where there are none."""
    both = [comparison for comparison in comparisons(records) if comparison.pairs]
    if not both:
        kinds = "; ".join(sorted({_described(record) for record in records})) or "no record at all"
        reason = "no RTD and MLM runs of one text, recipe, encoder, device, fine-tuning and scorer"
        fix = "add as many minutes of `--entry bert` for faithful, of `--entry modern-bert` for modern, changed alike"
        raise DataError("records", f"{reason}: {kinds}", fix=fix)
    return both


def leads(rtd: Series, mlm: Series, measure: str) -> list[Lead]:
    """The lead at each point of the two, where the other has runs on both sides or right there.

    Between two runs a score lies on the straight line over the logarithm of what is equal; beyond them nothing is said.
    """
    size, found = MEASURES[measure], dict[float, Lead]()
    for own, other, name in ((rtd, mlm, mlm.title), (mlm, rtd, rtd.title)):
        for point in own.points:
            at = size(point)
            if (place := _place(other, size, at)) is None or at in found:
                continue
            random = np.random.default_rng(0)
            (low, high), share = place
            theirs = (1 - share) * low.glue5 + share * high.glue5
            drawn = (1 - share) * low.resampled(random) + share * high.resampled(random)
            ahead = (point.resampled(random) - drawn) * (1 if own is rtd else -1)
            found[at] = Lead(
                measure=measure,
                at=at,
                rtd=point.glue5 if own is rtd else theirs,
                mlm=theirs if own is rtd else point.glue5,
                low=float(np.quantile(ahead, TAIL)),
                high=float(np.quantile(ahead, 1 - TAIL)),
                between=name if 0 < share < 1 else "",
            )
    return [found[at] for at in sorted(found)]


def _may_pair(rtd: Series, mlm: Series) -> bool:
    """Whether two series have the same encoder and changes, and entries that are not of different recipes."""
    recipes = mlm.name not in MLM_ENTRIES.values() or MLM_ENTRIES.get(rtd.name, mlm.name) == mlm.name
    ours, theirs = rtd.runs[0], mlm.runs[0]
    return recipes and same_encoder(ours, theirs) and same_changes(ours, theirs)


def _described(record: Record) -> str:
    """All that must be equal in what is compared."""
    kind = "RTD" if detects(record) else "MLM"
    text = f"{record.text or 'text without a name'}, data {record.data_sha256[:12]}"
    return f"{record.title} ({kind}) of {text}, {record.device}, scored by {record.scorer}"


def _place(series: Series, size: Callable[[Point], float], at: float) -> tuple[tuple[Point, Point], float] | None:
    """The two neighbours of a place, and how far from the first to the second it is."""
    for low, high in zip(series.points, (*series.points[1:], series.points[-1]), strict=True):
        first, last = size(low), size(high)
        if math.isclose(at, first, rel_tol=1e-9):
            return (low, low), 0.0
        if first < at < last:
            return (low, high), math.log(at / first) / math.log(last / first)
    return None


def _series(records: Sequence[Record]) -> list[Series]:
    by_title: dict[str, list[Record]] = {}
    for record in records:
        by_title.setdefault(record.title, []).append(record)
    made = []
    for title, runs in by_title.items():
        settings = by_setting(runs)
        for number, alike in enumerate(settings, 1):
            named = f"{title} ({number}, commit {alike[0].commit})" if len(settings) > 1 else title
            lengths = sorted({run.minutes for run in alike})
            points = (Point(runs=tuple(run for run in alike if run.minutes == minutes)) for minutes in lengths)
            made.append(Series(title=named, detects=detects(alike[0]), points=tuple(points)))
    return made


def _by_seed(run: Record) -> NDArray[np.float64]:
    """A row of its tasks' scores for each fine-tuning seed."""
    return np.array([[*task.seeds.values()] for task in run.scores.tasks.values()]).T


def _mean(values: Iterable[float]) -> float:
    return float(np.mean([*values]))

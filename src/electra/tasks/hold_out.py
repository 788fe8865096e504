"""A part of the rows held out of training: each class by its share, rows of one text on one side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

import numpy as np

from electra.batches.order import permutation
from electra.errors import DataError
from electra.progress import counted
from electra.tasks.rows import Example, Kind
from electra.tasks.tables import label_names

Row = TypeVar("Row")

FEW_SHARE, FEW_ROWS = 0.2, 50
"""Of few rows a fifth is held out, up to so many, ..."""
MANY_SHARE, MOST_ROWS = 0.1, 10_000
"""... of more a tenth, and no more than measure a tenth of a percent."""
_BINS = 5  # of a regression's values
_EPOCH = 1 << 29  # addresses of its own for drawing


def hold_out(
    rows: Sequence[Row],
    *,
    group: Callable[[Row], Hashable],
    stratum: Callable[[Row], Hashable],
    share: float = 0.0,
    seed: int = 0,
    where: object,
) -> tuple[list[Row], list[Row]]:
    """Rows to train on and rows held out, each in their order; a function of the rows and the seed.

    Rows of one `group` stay together. Each `stratum` gives its share, rounded down; the rest come from those that lost
    the most by rounding. A stratum of a single group is trained on. `share` 0 is `usual_share`.
    """
    strata: dict[Hashable, dict[Hashable, list[int]]] = {}
    home: dict[Hashable, Hashable] = {}
    for number, row in enumerate(rows):
        one = group(row)
        at = home.setdefault(one, stratum(row))
        strata.setdefault(at, {}).setdefault(one, []).append(number)
    wanted = (share or usual_share(len(rows))) * len(rows)
    quotas = _quotas([sum(map(len, groups.values())) for groups in strata.values()], round(wanted))
    held: set[int] = set()
    for place, (groups, quota) in enumerate(zip(strata.values(), quotas, strict=True)):
        members = list(groups.values())
        taken = 0
        for at in permutation(len(members), seed=seed, epoch=_EPOCH + place)[
            :-1
        ].tolist():  # one stays, to be trained on
            if taken + len(members[at]) <= quota:
                held.update(members[at])
                taken += len(members[at])
    if not held:
        reason = f"{counted(len(rows), 'row')} with {counted(len(home), 'different text')} are too few to hold some out"
        raise DataError(where, reason, fix="give more, or a file of its own with --dev")
    train = [row for number, row in enumerate(rows) if number not in held]
    return train, [row for number, row in enumerate(rows) if number in held]


def usual_share(rows: int) -> float:
    """The share of so many rows that is held out where nobody asks for another."""
    few = min(FEW_SHARE * rows, FEW_ROWS)
    return min(max(few, MANY_SHARE * rows), MOST_ROWS) / max(1, rows)


def hold_out_examples(
    examples: Sequence[Example], *, kind: Kind, share: float, seed: int, where: object
) -> tuple[list[Example], list[Example]]:
    """The same for texts. Strata are classes, fifths of a regression's values, or of several labels the rarest.

    Pairs without scores stay together by their first text, since each of its second texts is right.
    """
    alone = kind == "pairs" and not _are_numbers(examples)
    return hold_out(
        examples,
        group=(lambda one: one.text) if alone else (lambda one: (one.text, one.pair)),
        stratum=_stratum(examples, kind),
        share=share,
        seed=seed,
        where=where,
    )


def _stratum(examples: Sequence[Example], kind: Kind) -> Callable[[Example], Hashable]:
    if kind == "regress" or (kind == "pairs" and _are_numbers(examples)):
        edges = np.quantile([_number(one) for one in examples], np.linspace(0, 1, _BINS + 1)[1:-1])
        return lambda one: int(np.searchsorted(edges, _number(one)))
    counts = Counter(name for one in examples for name in label_names(one.label))
    return lambda one: min(label_names(one.label), key=lambda name: (counts[name], name), default="")


def _are_numbers(examples: Sequence[Example]) -> bool:
    return any(isinstance(one.label, float) for one in examples)


def _number(example: Example) -> float:
    assert isinstance(example.label, float | int)
    return float(example.label)


def _quotas(sizes: Sequence[int], wanted: int) -> list[int]:
    """`wanted` rows over strata of these sizes, by the largest remainder; at least one of a stratum of two or more."""
    total = max(1, sum(sizes))
    exact = [wanted * size / total for size in sizes]
    quotas = [max(int(one), int(size > 1)) for one, size in zip(exact, sizes, strict=True)]
    by_remainder = sorted(range(len(sizes)), key=lambda at: (quotas[at] - exact[at], at))
    for at in by_remainder[: max(0, wanted - sum(quotas))]:
        quotas[at] += 1
    return quotas

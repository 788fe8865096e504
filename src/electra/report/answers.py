"""Did it work? One sentence about a run, a fine-tuned model, an experiment, or several of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

from electra.finetune.task_results import TaskResult
from electra.metrics.rtd import entropy
from electra.metrics.spread import share_interval
from electra.progress import counted
from electra.report.paper_points import ONE_ANSWER
from electra.report.reading import Run, number
from electra.report.subjects import Subject, Tried
from electra.report.tuned import Tuned
from electra.reproduce.comparison_table import last_rows
from electra.reproduce.experiments import EXPERIMENTS
from electra.reproduce.scale import SMOKE

YES, PARTLY, NO, OPEN = "Yes", "Partly", "No", "Too early to say"
LEARNED_AUC, STARTED_AUC = 0.6, 0.53
LEARNED_LOSS = 0.6
"""Of ln(vocabulary): knowing only how often each token occurs costs about 0.7 of it."""
TRUSTED_LOSS = 0.7
"""Of the MLM loss at the start: a generator above it samples nearly at random, and such tokens are easy to spot."""
SURE_POINTS = 2.0
"""Percentage points above one answer for every row that count as learning, where the rows are many."""
CORRELATIONS = ("spearman", "pearson", "matthews")
"""Of answers that know nothing they are 0 with a standard deviation of 1 / sqrt(rows - 1)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """Yes or no, and the figures that say so."""

    word: str
    reason: str

    def __str__(self) -> str:
        return f"{self.word}. {self.sentence}"

    @property
    def sentence(self) -> str:
        return f"{self.reason[:1].upper()}{self.reason[1:]}."


def answer_to(subjects: Sequence[Subject]) -> Answer:
    """The sentence that a page leads with."""
    answers = [answer_about(subject) for subject in subjects]
    if len(answers) == 1:
        return answers[0]
    worked = sum(one.word == YES for one in answers)
    word = YES if worked == len(answers) else PARTLY if worked else answers[0].word
    best = _best([one for one in subjects if isinstance(one, Run)])
    pairs = [(one.name, answer.word.lower()) for one, answer in zip(subjects, answers, strict=True)]
    rest = (
        ""
        if worked == len(answers)
        else "; " + ", ".join(f"{name}: {found}" for name, found in pairs if found != "yes")
    )
    count = f"{worked} of {len(answers)} worked" if worked else f"none of {len(answers)} worked fully"
    return Answer(word=word, reason=f"{count}{best}{rest}")


def _best(runs: Sequence[Run]) -> str:
    """Which of several runs tells replaced tokens best, or why their AUC does not say so."""
    known = [(auc, run) for run in runs if (auc := run.last("eval/rtd_auc")) is not None]
    scored = sorted(known, key=lambda pair: (-pair[0], pair[1].name))
    if len(scored) < 2:
        return ""
    differing = [name for name, of in SAME_TASK.items() if any(of(run) != of(scored[0][1]) for _, run in scored)]
    values = [f"{run.name} {auc:.3f}" for auc, run in scored]
    if differing:
        return f"; AUC does not compare, since these differ in {' and '.join(differing)}: {', '.join(values)}"
    return (
        f"; {scored[0][1].name} tells replaced tokens best, with an AUC of {scored[0][0]:.3f} ({', '.join(values[1:])})"
    )


def _generator(run: Run) -> tuple[object, ...]:
    model, generator = run.config.model, run.config.generator
    return generator, model.width * generator.width, model.layers * generator.depth


SAME_TASK: dict[str, Callable[[Run], object]] = {
    "objective": lambda run: run.config.objective,
    "generator": _generator,
    "masking": lambda run: run.config.masking,
    "steps": lambda run: run.step,
    "data": lambda run: run.facts.get("data_sha256"),
}
"""What makes replaced tokens as easy to tell, by name."""


def answer_about(subject: Subject) -> Answer:
    """The sentence about one folder."""
    if isinstance(subject, Run):
        return _of_run(subject)
    if isinstance(subject, Tuned):
        return _of_tuned(subject)
    return _of_experiment(subject)


def _of_run(run: Run) -> Answer:
    if (run.folder / "diverged").is_dir():
        return Answer(
            word=NO, reason=f"training diverged after step {run.step:,}; the run folder keeps the state it came to"
        )
    auc, mlm = run.last("eval/rtd_auc"), run.last("eval/mlm_loss")
    if mlm is None or not run.step:
        return Answer(word=OPEN, reason="there is no evaluation after a step of training yet")
    planned = run.config.train.steps
    timed = run.config.train.max_minutes > 0
    when = f"at step {run.step:,}" + ("" if timed or run.step >= planned else f" of {planned:,}")
    if auc is None:
        return _of_masked_lm(run, mlm, when)
    loss, rate = run.last("eval/rtd_loss"), run.last("eval/replaced_rate") or 0.0
    blind = entropy(rate) if 0 < rate < 1 else math.inf
    ahead = loss is not None and loss < blind
    if run.start:
        return _of_adapted(run)
    begun, early = _at_start(run), run.step < planned and not timed
    blank = math.log(run.config.model.vocab_size)
    first = begun.get("eval/mlm_loss", blank)
    learns = run.config.generator.kind in ("transformer", "two-tower")
    if learns and first < TRUSTED_LOSS * blank:
        return _of_continued(run, begun, when, early=early)
    figure = f"it tells replaced from original tokens of held-out text with an AUC of {auc:.3f} {when}"
    figure, helped = figure + _tuned_in_demo(run), _helped(run)
    if learns and auc >= STARTED_AUC and mlm >= TRUSTED_LOSS * first:
        untaught = f"its generator has an MLM loss of {mlm:.2f} there, {first:.2f} at the start, so it replaces tokens"
        return Answer(
            word=OPEN, reason=f"{figure}, but {untaught} nearly at random, and those are easy to spot; train longer"
        )
    if begun.get("eval/rtd_auc", 0.0) >= LEARNED_AUC:
        since = f"it began with {begun['eval/rtd_auc']:.3f} beside a fresh generator, whose samples grew harder"
        return Answer(
            word=OPEN, reason=f"{figure}; {since}; fine-tune it and the model that it went on from to compare them"
        )
    if auc >= LEARNED_AUC and ahead:
        assert loss is not None
        below = f"its loss is {1 - loss / blind:.0%} below that of knowing only the base rate"
        return Answer(word=YES if helped else PARTLY, reason=f"{figure}; {below}")
    if auc >= STARTED_AUC:
        return Answer(word=PARTLY, reason=f"{figure}; an AUC of 0.5 is a coin toss, so it has only begun to learn")
    return Answer(word=OPEN if early else NO, reason=f"{figure}, and 0.5 is a coin toss; train longer")


def _at_start(run: Run) -> dict[str, float]:
    """The figures of the evaluation before the first step; none where there was no such evaluation."""
    line = next((one for one in run.evals if one["step"] == 0), {})
    return {key: value for key in line if (value := number(line[key])) is not None}


def _of_continued(run: Run, begun: dict[str, float], when: str, *, early: bool) -> Answer:
    """Of a run that went on from a trained model: whether it now tells replaced tokens better than that did."""
    pairs = [(begun.get(f"eval/{name}"), run.last(f"eval/{name}")) for name in ("rtd_auc", "rtd_loss")]
    (auc_before, auc), (loss_before, loss) = pairs
    if auc_before is None or loss_before is None or auc is None or loss is None:
        return Answer(word=OPEN, reason="it went on from a trained model, and how well that did was not measured")
    lower, better = loss < loss_before, auc > auc_before
    moved = f"it {'lowered' if lower else 'did not lower'} its held-out RTD loss: {loss_before:.3f} before,"
    moved += f" {loss:.3f} {when} (AUC {auc_before:.3f} and {auc:.3f})"
    word = YES if lower and better else PARTLY if lower or better else OPEN if early else NO
    return Answer(word=word, reason=f"going on from a trained model, {moved}")


def _of_adapted(run: Run) -> Answer:
    """Of the demo: whether going on from a model lowered its loss on the new text, and what its encoders score."""
    assert run.demo is not None
    losses, aucs = run.series("eval/rtd_loss"), run.series("eval/rtd_auc")
    adapted, bundled, untrained = (run.demo[key]["accuracy"] for key in ("pretrained", "bundled", "untrained"))
    lower, pays = losses[-1][1] < losses[0][1], min(adapted, bundled) > untrained
    minutes = f"{counted(run.config.train.max_minutes, 'minute')} on this machine’s documentation"
    moved = f"{'lowered' if lower else 'did not lower'} its held-out RTD loss: {losses[0][1]:.3f} before,"
    moved += f" {losses[-1][1]:.3f} after (AUC {aucs[0][1]:.3f} and {aucs[-1][1]:.3f})"
    scores = f"fine-tuned, the adapted encoder gives {adapted:.1%} right answers, {run.start} as it is {bundled:.1%}"
    reason = f"{minutes} {moved}; {scores}, and the same network without pre-training {untrained:.1%}"
    return Answer(word=YES if lower and pays else PARTLY if lower or pays else NO, reason=reason)


def _demo_scores(run: Run) -> tuple[float, float] | None:
    """The accuracy of the demo's fine-tuned encoder, and without pre-training."""
    if not run.demo or not run.demo.get("pretrained") or not run.demo.get("untrained"):
        return None
    return run.demo["pretrained"]["accuracy"], run.demo["untrained"]["accuracy"]


def _helped(run: Run) -> bool:
    scores = _demo_scores(run)
    return scores is None or scores[0] > scores[1]


def _tuned_in_demo(run: Run) -> str:
    scores = _demo_scores(run)
    if scores is None:
        return ""
    return f"; fine-tuned, it gives {scores[0]:.1%} right answers, and {scores[1]:.1%} without pre-training"


def _of_masked_lm(run: Run, loss: float, when: str) -> Answer:
    vocabulary = run.config.model.vocab_size
    start = math.log(vocabulary)
    main = run.last("eval/main_loss")
    if main is not None:
        loss = main
    accuracy = run.last("eval/mlm_accuracy" if main is None else "eval/main_accuracy") or 0.0
    figure = f"it names {accuracy:.1%} of the masked tokens of held-out text {when}, at a loss of {loss:.2f}"
    figure += f" (blind: {start:.2f})"
    if loss < LEARNED_LOSS * start:
        return Answer(word=YES, reason=figure)
    return Answer(
        word=PARTLY if loss < 0.95 * start else NO, reason=f"{figure}: about what token frequencies alone give"
    )


def _of_tuned(tuned: Tuned) -> Answer:
    stuck = [result.title for result in tuned.suite.results if len(result.stuck) == len(result.seeds)]
    averages = tuned.suite.averages
    if averages:
        average = averages[0]
        floor = sum(
            ONE_ANSWER[one.task]
            for one in tuned.suite.results
            if one.title in average.titles and one.task in ONE_ANSWER
        )
        floor /= len(average.titles)
        figure = f"{average.label}: {average.value:.1f}; one answer for every row would give {floor:.1f}"
        return Answer(word=_word(average.value, floor, stuck), reason=figure + _stuck(stuck))
    result = tuned.suite.results[0]
    metric, summary = result.metrics[0], result.summary()
    spread = f" ({summary.min:.1f} to {summary.max:.1f} over {summary.n} seeds)" if summary.n > 1 else ""
    figure = f"{result.title}: {metric} {summary.median:.1f}{spread} on {_dev_rows(result)}"
    if metric in result.before:
        floor = result.before[metric]
        reason = f"{figure}; it was {floor:.1f} before fine-tuning{_stuck(stuck)}"
        return Answer(word=_word(summary.median, floor, stuck), reason=reason)
    base = one_answer(tuned, result)
    if base is not None:
        label, floor = base
        sure, doubt = _sure_score(result, floor)
        word = _word(summary.median, floor, stuck, sure=sure)
        doubt = doubt if summary.median >= floor + SURE_POINTS and word == PARTLY and not stuck else ""
        return Answer(word=word, reason=f"{figure}; always answering {label} gives {floor:.1f}{doubt}{_stuck(stuck)}")
    if stuck:
        return Answer(word=NO, reason=figure + _stuck(stuck))
    sure, doubt = _sure_score(result, 0.0)
    if summary.median > sure:
        return Answer(word=YES, reason=figure)
    return Answer(word=NO, reason=figure + (doubt if summary.median > SURE_POINTS else ""))


def one_answer(tuned: Tuned, result: TaskResult) -> tuple[str, float] | None:
    """One answer for every row and its score, where it is known."""
    rows = result.rows.get("dev")
    if result.task in ONE_ANSWER and rows == result.full.get("dev", rows):
        return "one and the same", ONE_ANSWER[result.task]
    most = tuned.evaluations[0].most_frequent if tuned.evaluations else None
    if result.metrics[0] == "accuracy" and most is not None:
        return f"“{most[0]}”", 100 * most[1]
    return None


def _dev_rows(result: TaskResult) -> str:
    rows = result.rows.get("dev")
    return f"{rows:,} rows that it was not trained on" if rows else "rows that it was not trained on"


def _sure_score(result: TaskResult, floor: float) -> tuple[float, str]:
    """The score from which a task is above `floor` by more than the chance of its rows, and what to say below it."""
    metric, score, rows = result.metrics[0], result.summary().median, result.rows.get("dev", 0)
    sure = floor + SURE_POINTS
    if metric in CORRELATIONS and rows > 1:
        chance = 200 / math.sqrt(rows - 1)
        return max(sure, floor + chance), f"; on so few rows chance alone gives up to {chance:.1f}"
    if metric == "accuracy" and floor and rows and 0 <= score <= 100:
        low, high = (100 * end for end in share_interval(round(score * rows / 100), rows))
        doubt = f"; on so few rows that means {low:.0f} to {high:.0f} % of many more"
        return sure if low > floor else math.inf, doubt
    return sure, ""


def _word(score: float, floor: float, stuck: list[str], *, sure: float | None = None) -> str:
    """`sure` is the score that is enough; by default SURE_POINTS above the floor."""
    if score <= floor:
        return NO
    return PARTLY if stuck or score < (floor + SURE_POINTS if sure is None else sure) else YES


def _stuck(titles: list[str]) -> str:
    return f"; stuck on one answer: {', '.join(titles)}" if titles else ""


def _of_experiment(tried: Tried) -> Answer:
    outcome = tried.outcome
    rows = last_rows(outcome)
    if len(rows) < 2:
        done = f"{counted(len(rows), 'configuration')} finished"
        more = f", {len(outcome.missing)} to come" if outcome.missing else ", so there is nothing to compare"
        return Answer(word=OPEN, reason=done + more)
    ranked = sorted(rows, key=lambda row: -row.score.value)
    best = f"best here is {ranked[0].title} with {ranked[0].score.value:.1f}"
    if outcome.scale == SMOKE:
        return Answer(
            word=OPEN, reason=f"every configuration ran, but scores at scale {outcome.scale} mean nothing; {best}"
        )
    pairs = [
        (a, b) for a, b in combinations(rows, 2) if a.paper is not None and b.paper is not None and a.paper != b.paper
    ]
    if not pairs:
        apart = ranked[0].score.low > ranked[1].score.high
        tail = "" if apart else f"; {ranked[1].title} lies within the seeds' range"
        return Answer(word=YES if apart else PARTLY, reason=best + tail)
    alike = sum((a.score.value - b.score.value) * ((a.paper or 0) - (b.paper or 0)) > 0 for a, b in pairs)
    word = YES if alike == len(pairs) else PARTLY if alike > len(pairs) / 2 else NO
    finding = EXPERIMENTS[outcome.experiment].source.partition(" (")[0]
    return Answer(word=word, reason=f"{alike} of {len(pairs)} pairs stand in the paper's order ({finding}); {best}")

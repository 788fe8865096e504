"""Noticing a run that no longer learns: non-finite steps, divergence, a dead discriminator."""

from __future__ import annotations

import math
from collections.abc import Mapping

from electra.config.schema import Config, GuardConfig
from electra.errors import Diverged
from electra.metrics.rtd import entropy
from electra.train.meter import Line

SMOOTHING = 0.8
ADVICE = "lower optim.lr or raise optim.warmup_steps"
WORSE_THAN_GUESSING = 2.0
"""Times the loss of guessing; first weights of at most `GUESSING_START` are far below it."""
GUESSING_START = 0.1
AT_FLOOR = 0.99, 1.05
"""Shares of the base-rate entropy between which a discriminator knows the base rate and nothing else."""
BLIND_AUC = 0.55
_FIX = "(lower optim.lr, or train in fp32: train.precision=fp32)"


class Guard:
    """Watches the figures of each log line and evaluation; a loss that `may_rise` does so when the generator learns."""

    def __init__(self, guard: GuardConfig, *, may_rise: bool = False) -> None:
        self._guard, self._may_rise = guard, may_rise
        self._smooth: float | None = None
        self._best = math.inf
        self._skipped = 0.0
        self._learned = self._stuck = False
        self._parts: set[str] = set()

    def check(self, *, step: int, line: Line) -> None:
        """Raise `Diverged` with the reason when the run is beyond help."""
        loss, skipped = line["train/loss"], line["optim/skipped"]
        assert loss is not None and skipped is not None
        self._stuck = nothing_done = math.isnan(loss) and skipped > 0
        # Lines without one good step count on: they may be shorter than the limit.
        self._skipped = skipped + (self._skipped if nothing_done else 0.0)
        if self._skipped >= self._guard.max_skipped:
            raise Diverged(f"step {step}: {self._skipped:.0f} steps had a non-finite gradient and were skipped {_FIX}")
        if nothing_done:
            return
        if not math.isfinite(loss):
            raise Diverged(f"step {step}: the loss is {loss} (lower optim.lr)")
        self._learned = True
        parts = {key for key in line if key.startswith("train/") and key.endswith("_loss")}
        if parts != self._parts:  # a sum of other parts has a best of its own
            self._parts, self._smooth, self._best = parts, None, math.inf
        self._smooth = loss if self._smooth is None else SMOOTHING * self._smooth + (1 - SMOOTHING) * loss
        self._best = min(self._best, self._smooth)
        if self._smooth > self._guard.max_rise * self._best and not self._may_rise:
            raise Diverged(
                f"step {step}: the smoothed loss rose to {self._smooth:.2f}, over {self._guard.max_rise:g} times its"
                f" best {self._best:.2f} ({ADVICE})"
            )

    def finish(self, *, step: int) -> None:
        """Raise `Diverged` where the run ends and its last steps, or all of them, changed nothing.

        One bad step at the very end of a healthy run is none of that.
        """
        if self._stuck and (self._skipped > 1 or not self._learned):
            raise Diverged(
                f"step {step}: the run ends with {self._skipped:.0f} steps whose gradient was not finite {_FIX}"
            )


def check_held_out(figures: Mapping[str, float], *, step: int, config: Config) -> None:
    """Raise `Diverged` where the weights of a run that ends are worth nothing on held-out text.

    A few bad steps may hide behind good ones in the last line of figures.
    """
    for name in ("mlm_loss", "rtd_loss"):
        if math.isnan(figures.get(name, 0.0)):
            raise Diverged(f"step {step}: the run ends, and its {name} on held-out text is not a number {_FIX}")
    # Adversarial, or without weight, nothing lowers the generator's MLM loss.
    trained = config.train.algorithm != "adversarial" and config.objective.mlm_weight > 0
    trained &= config.model.init_std <= GUESSING_START
    guessing = math.log(config.model.vocab_size)
    if trained and (loss := figures.get("mlm_loss", 0.0)) > WORSE_THAN_GUESSING * guessing:
        raise Diverged(
            f"step {step}: the run ends, and its mlm_loss on held-out text is {loss:,.1f}, where guessing any of the"
            f" {config.model.vocab_size:,} tokens alike has {guessing:.1f} ({ADVICE})"
        )


def loss_may_rise(algorithm: str, objective: str) -> bool:
    """Whether a healthy run's loss rises: its discriminator's task gets harder the better the generator gets.

    Over all tokens it does not, as more of them are the original ones then. Over the masked positions alone, nearly all
    are replaced at first, so that one answer does for all.
    """
    return algorithm == "adversarial" or objective == "rtd-15"


def discriminator_warning(figures: Mapping[str, float], *, objective: str) -> str:
    """A sentence naming a discriminator that knows the base rate only, or less; empty where there is none.

    rtd-15's is asked about masked positions alone, nearly all of which are replaced, and held-out detection is over all
    tokens: its loss there is high where all is well, and says nothing.
    """
    if "rtd_auc" not in figures or objective == "rtd-15":
        return ""
    loss, rate, auc = figures["rtd_loss"], figures["replaced_rate"], figures["rtd_auc"]
    floor = entropy(rate)
    if not floor or loss < AT_FLOOR[0] * floor:  # no floor: one class only, so nothing to tell apart
        return ""
    base = f"the base-rate entropy {floor:.3f} of {rate:.1%} replaced tokens"
    if loss <= AT_FLOOR[1] * floor:
        same = f"its AUC is {auc:.2f}: it gives every token nearly the same probability"
        early = f"normal in the first few hundred steps; later, {ADVICE}"
        return "" if auc > BLIND_AUC else f"dead discriminator: its loss {loss:.3f} is {base} and {same} ({early})"
    if auc > BLIND_AUC and loss <= math.log(2):
        return ""
    early = f"normal in the first few hundred steps; later, the run diverges: {ADVICE}"
    return f"the discriminator is worse than knowing nothing: its loss {loss:.4g} is above {base} ({early})"

"""What to change before preparing, as whole sentences: only what the figures say."""

from __future__ import annotations

from electra.inspection.facts import Inspection

MOST_UNKNOWN = 0.001
FEW_TOKENS = 5_000_000
FEW_HELD_OUT = 5_000


def advice(found: Inspection) -> list[str]:
    """One sentence a finding that a user should act on; none where all is well."""
    hints = [f"{warning}." for warning in found.warnings]
    if found.vocabulary.unknown > MOST_UNKNOWN:
        fix = "train one instead of --vocab" if found.vocabulary.given else "raise --vocab-size"
        hints.append(f"{found.vocabulary.unknown:.2%} of the characters would become [UNK]: {fix}.")
    if found.tokens < FEW_TOKENS:
        about = "" if found.extent.whole else "about "
        hints.append(
            f"{about}{found.tokens:,} tokens are few: pre-training on fewer than 5 million did not beat an untrained "
            "encoder."
        )
    if found.extent.whole and found.held_out["tokens"] < FEW_HELD_OUT:
        hints.append(f"{found.held_out['tokens']:,} held-out tokens make a noisy evaluation: raise --held-out-share.")
    return [hint[:1].upper() + hint[1:] for hint in hints]

"""A look at a corpus before it is prepared: `inspect_corpus` measures, `as_text` prints."""

from electra.inspection.facts import Inspection
from electra.inspection.inspect_corpus import inspect_corpus
from electra.inspection.terminal import as_text

__all__ = ["Inspection", "as_text", "inspect_corpus"]

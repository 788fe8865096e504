"""Electra: pre-train text encoders as discriminators.

The verbs of the command line as functions: `electra.prepare`, `pretrain`, `resume`, `load`, `finetune`, `evaluate`,
`predict`, `detect`, `score`, `encode` and `export`. They are loaded when first used: `import electra` is instant.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from electra.api import (
        Model,
        detect,
        encode,
        evaluate,
        export,
        finetune,
        load,
        predict,
        prepare,
        pretrain,
        resume,
        score,
    )

__version__ = "0.2.0"

# Threads that wait for each other spin for a tenth of a millisecond, then sleep. libgomp, which reads this when torch
# is loaded, has them spin for ten: beside one other busy program a step on a CPU then takes three times as long.
if not os.environ.keys() & {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}:
    os.environ["GOMP_SPINCOUNT"] = "3000"

__all__ = [
    "prepare",
    "pretrain",
    "resume",
    "load",
    "finetune",
    "evaluate",
    "predict",
    "detect",
    "score",
    "encode",
    "export",
    "Model",
    "__version__",
]
_LAZY = frozenset(__all__) - {"__version__"}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from electra.platforms import require_supported

    require_supported()
    from electra import api

    return getattr(api, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Package(ModuleType):
    """`electra.pretrain` and `electra.finetune` are the verbs, although modules have these names too.

    Importing such a module sets it as an attribute of the package, which would hide the verb.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _LAZY and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package

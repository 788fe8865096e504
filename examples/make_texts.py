"""Text and a task from the documentation of Python and NumPy on this machine, for the tutorial.

    python examples/make_texts.py

writes my-texts/, a folder of .txt files, and packages.csv, passages with the package that they describe.
"""

from __future__ import annotations

import csv
import importlib
import inspect
import random
from pathlib import Path
from pydoc_data.topics import topics

MODULES = {
    "numpy": ("numpy", "numpy.linalg", "numpy.fft"),
    "python": ("argparse", "builtins", "collections", "datetime", "email.message", "http.client", "inspect", "logging",
               "os", "pathlib", "random", "re", "shutil", "ssl", "statistics", "tarfile", "unittest", "zipfile"),
}  # fmt: skip


def passages(label: str) -> list[str]:
    """The documentation of a package's functions, classes and methods, each once, in a fixed order."""
    found = {}
    for module in map(importlib.import_module, MODULES[label]):
        for name, value in sorted(vars(module).items()):
            members = sorted(vars(value).items()) if inspect.isclass(value) else []
            for key, member in [(name, value), *((f"{name}.{one}", member) for one, member in members)]:
                text = inspect.getdoc(member) if callable(member) and "__" not in key else None
                if text and len(text) > 150:
                    found.setdefault(text, f"{module.__name__}.{key}")
    return sorted(found, key=found.__getitem__)


def main() -> None:
    """Write both."""
    texts = Path("my-texts")
    texts.mkdir(exist_ok=True)
    for name, text in topics.items():
        (texts / f"topic-{name}.txt").write_text(text, encoding="utf-8")
    rows = []
    for label in MODULES:
        for number, text in enumerate(found := passages(label)):
            (texts / f"{label}-{number}.txt").write_text(text, encoding="utf-8")
        first = [" ".join(text.partition("Parameters\n")[0].replace(label, "").split()[:30]) for text in found]
        rows += [(text, label) for text in random.Random(0).sample(sorted({*first}), 150)]
    random.Random(0).shuffle(rows)
    with open("packages.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("passage", "package"), *rows])
    print(f"my-texts: {len(list(texts.iterdir()))} files; packages.csv: {len(rows)} rows")


if __name__ == "__main__":
    main()

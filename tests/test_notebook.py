"""The notebooks run from their first cell to their last, on a CPU, and every cell shows something."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = Path(__file__).parents[1] / "docs" / "notebooks"


def read(name: str) -> dict[str, Any]:
    notebook: dict[str, Any] = json.loads((NOTEBOOKS / name).read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    return notebook


def cells(name: str, kind: str) -> list[str]:
    return ["".join(cell["source"]) for cell in read(name)["cells"] if cell["cell_type"] == kind]


def run(name: str, folder: Path) -> list[tuple[object, str]]:
    """What each cell of a notebook shows: the value of its last expression, and that as shown.

    As in a notebook, statements run in one namespace; in this process, which has imported what they need.
    """
    namespace: dict[str, Any] = {"__name__": "notebook"}
    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for cell in cells(name, "code"):
            body = ast.parse(cell).body
            last = body.pop() if isinstance(body[-1], ast.Expr) else None
            exec(compile(ast.Module(body, []), name, "exec"), namespace)
            if isinstance(last, ast.Expr):
                exec(compile(ast.parse(f"shown = {ast.unparse(last)}"), name, "exec"), namespace)
                value = namespace.pop("shown")
                found.append((value, getattr(value, "_repr_html_", value.__repr__)()))
    assert all(isinstance(value, str | int | tuple | list | dict) or shown[:7] == "<table>" for value, shown in found)
    return found


def test_first_steps_runs_end_to_end(tmp_path: Path) -> None:
    kinds = ["str", "PreparedData", "Run", "Detection", "tuple", "FinetuneResult", "Predictions", "Exported"]
    assert [type(value).__name__ for value, _ in run("first-steps.ipynb", tmp_path)] == kinds
    assert (tmp_path / "first-steps" / "hf" / "model.safetensors").is_file()


def test_from_a_csv_to_a_classifier_runs_end_to_end(tmp_path: Path) -> None:
    """The confusions are of the held-out rows, and every error shown is one."""
    kinds = ["str", "int", "PreparedData", "Run", "FinetuneResult", "list", "dict", "list", "Predictions"]
    shown = run("csv-to-classifier.ipynb", tmp_path)
    assert [type(value).__name__ for value, _ in shown] == kinds
    classes, confusion, errors = (ast.literal_eval(text) for _, text in shown[5:8])
    assert sum(map(sum, confusion.values())) == sum(support for *_, support in classes)
    assert {label for label, *_ in classes} == {"text", "files"} == confusion.keys()
    assert all(label != predicted and probability >= 0.5 for label, predicted, probability, _ in errors)


def test_notebooks_are_stored_without_outputs() -> None:
    for name in ("first-steps.ipynb", "csv-to-classifier.ipynb"):
        code = [cell for cell in read(name)["cells"] if cell["cell_type"] == "code"]
        assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)


def test_the_notebooks_explain_each_verb() -> None:
    wanted = {
        "first-steps.ipynb": (5, ("prepare", "pretrain", "load", "finetune", "export")),
        "csv-to-classifier.ipynb": (6, ("prepare", "pretrain", "finetune", "load")),
    }
    for name, (headings, verbs) in wanted.items():
        assert sum(text.startswith("## ") for text in cells(name, "markdown")) == headings
        for verb in verbs:
            assert any(f"electra.{verb}(" in text for text in cells(name, "code")), (name, verb)

"""The notebook runs from its first cell to its last, on a CPU, and every cell shows something."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

NOTEBOOK = Path(__file__).parents[1] / "docs" / "notebooks" / "first-steps.ipynb"

# What a notebook does with a cell: run its statements in one namespace, and show the value of a last expression.
RUNNER = """
import ast, json, sys
namespace = {"__name__": "__main__"}
for cell in json.loads(sys.stdin.read()):
    body = ast.parse(cell).body
    last = body.pop() if isinstance(body[-1], ast.Expr) else None
    exec(compile(ast.Module(body, []), "cell", "exec"), namespace)
    if last is not None:
        value = eval(compile(ast.Expression(last.value), "cell", "eval"), namespace)
        shown = getattr(value, "_repr_html_", value.__repr__)()
        print(json.dumps({"type": type(value).__name__, "shown": shown}))
"""


def cells(kind: str) -> list[str]:
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == kind]


def test_the_notebook_runs_end_to_end(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", RUNNER],
        input=json.dumps(cells("code")),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    shown = [json.loads(line) for line in done.stdout.splitlines()]
    kinds = ["str", "PreparedData", "Run", "Detection", "tuple", "FinetuneResult", "Predictions", "Exported"]
    assert [one["type"] for one in shown] == kinds
    assert all(one["shown"].startswith("<table>") for one in shown if one["type"] not in ("str", "tuple"))
    assert (tmp_path / "first-steps" / "hf" / "model.safetensors").is_file()


def test_the_notebook_is_stored_without_outputs_and_explains_each_verb() -> None:
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    assert sum(text.startswith("## ") for text in cells("markdown")) == 5
    for verb in ("prepare", "pretrain", "load", "finetune", "export"):
        assert any(f"electra.{verb}(" in text for text in cells("code")), verb

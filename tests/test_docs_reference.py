"""The generated reference pages are what the code gives."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parents[1] / "docs"


def load_generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GENERATOR = load_generator()


@pytest.mark.parametrize("name", ["reference/cli.md", "reference/config.md", "reference/api.md", "records.md"])
def test_page_is_fresh(name: str) -> None:
    written = (DOCS / name).read_text(encoding="utf-8")
    assert written == GENERATOR.pages()[name], f"docs/{name} is stale; run: python docs/generate.py"


def test_every_command_and_key_is_there() -> None:
    from electra.cli import COMMANDS
    from electra.config.finetune import FinetuneConfig
    from electra.config.keys import key_types
    from electra.config.schema import Config

    pages = GENERATOR.pages()
    for name in COMMANDS:
        assert f"\n## electra {name}\n" in pages["reference/cli.md"]
    for key in [*key_types(Config), *key_types(FinetuneConfig)]:
        assert f"| `{key}` |" in pages["reference/config.md"]


def test_the_api_page_shows_signature_and_docstring() -> None:
    def load(model: str, *, part: str = "discriminator") -> int:
        """Give the model of a folder."""

    shown = "\n\n".join(GENERATOR.object_parts("electra.load", load))
    assert "## electra.load" in shown and "Give the model of a folder." in shown
    assert "electra.load(model: 'str', *, part: 'str' = 'discriminator') -> 'int'" in shown

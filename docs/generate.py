"""Write the pages that come from the code (commands, configuration keys, the Python API) and the page of records.

python docs/generate.py            writes docs/reference/cli.md, config.md and api.md, docs/records.md and its curves
python docs/generate.py --check    writes nothing; exit code 1 where a page is stale
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import click

import electra
from electra.cli import COMMANDS, main
from electra.config.finetune import FinetuneConfig
from electra.config.keys import describe, flatten, toml_value
from electra.config.load import load, preset_names, preset_title
from electra.config.schema import Config
from electra.speedrun import records_page
from electra.speedrun.record import Record, read

DOCS = Path(__file__).parent
RECORDS = DOCS / "records.jsonl"
HEADER = "<!-- Generated from the code by `python docs/generate.py`. Do not edit. -->\n\n"


def pages() -> dict[str, str]:
    """Every generated page: its path in docs and its whole content."""
    return {
        "reference/cli.md": cli_page(),
        "reference/config.md": config_page(),
        "reference/api.md": api_page(),
        "records.md": HEADER + records_page.page(records()),
    }


def records() -> list[Record]:
    """The records that were added to docs/records.jsonl."""
    return read(RECORDS) if RECORDS.is_file() else []


def cli_page() -> str:
    """The commands, each with its usage, arguments and options."""
    context = click.Context(main, info_name="electra")
    rows = [(f"[`electra {name}`](#electra-{name})", text) for name, (_, text) in COMMANDS.items()]
    parts = [
        "# Commands",
        "Every command takes `--help`, and `--debug` for the traceback behind an error.\n"
        "[Exit codes](exit-codes.md) are the same everywhere. A `KEY=VALUE` is a [configuration key](config.md).",
        table(("command", "what it does"), rows),
    ]
    for name in COMMANDS:
        command = main.get_command(context, name)
        assert command is not None
        parts += command_parts(command, click.Context(command, info_name=name, parent=context), level=2)
    return HEADER + "\n\n".join(parts) + "\n"


def command_parts(command: click.Command, context: click.Context, *, level: int) -> Iterator[str]:
    """A heading, the usage, the help and the options of a command, then of the commands inside it."""
    yield f"{'#' * level} {context.command_path}"
    yield f"```\n{context.command_path} {' '.join(command.collect_usage_pieces(context))}\n```"
    yield from help_paragraphs(command.help or "")
    rows = [
        option_row(parameter, context)
        for parameter in command.get_params(context)
        if isinstance(parameter, click.Option) and not parameter.hidden and "--help" not in parameter.opts
    ]
    if rows:
        yield table(("option", "meaning"), rows)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            yield from command_parts(child, click.Context(child, info_name=name, parent=context), level=level + 1)


def help_paragraphs(text: str) -> Iterator[str]:
    """A help text as Markdown; what click must not wrap is a code block."""
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        if paragraph.startswith("\b"):
            yield f"```\n{paragraph.removeprefix(chr(8)).strip(chr(10))}\n```"
        else:
            yield " ".join(paragraph.split())


def option_row(option: click.Option, context: click.Context) -> tuple[str, str]:
    """The names of an option with its value, and what `--help` says about it."""
    record = option.get_help_record(context)
    assert record is not None
    names, meaning = record
    return f"`{names}`", " ".join(meaning.split())


def config_page() -> str:
    """Every key of pre-training and fine-tuning with type, default and meaning, and what the presets change."""
    parts = [
        "# Configuration keys",
        "A preset comes first, then a TOML file (`--config FILE`), then `KEY=VALUE` on the command line; each\n"
        "overrides the one before. An unknown key or a wrong type is refused with a suggestion.",
        "```\nelectra config show --preset small --help-keys    # this page, with the preset's values\n"
        "electra config diff tiny run                      # compares presets, TOML files and run folders\n```",
        "## Pre-training",
        "The defaults are those of the schema; a preset may change them (see [presets](#presets)).",
    ]
    sections: dict[str, list[tuple[str, ...]]] = {}
    for option in describe(Config):
        section = option.key.rpartition(".")[0]
        sections.setdefault(section, []).append(key_row(option.key, option.type, option.default, option.help))
    for section, rows in sections.items():
        parts += [f"### {section}"] if section else []
        parts.append(table(("key", "type", "default", "meaning"), rows))
    parts += [
        "## Presets",
        table(("preset", "what it is"), [(f"`{n}`", preset_title(n)) for n in preset_names()]),
        "Of presets that are as in the paper, sizes and rates are the paper's. Rows and the start of heads that\n"
        "predict tokens are ours; exactly the paper's: `objective.unigram_start=false data.layout=paper-official`.",
    ]
    for title, names in preset_families():
        parts += [f"### {title}", preset_table(names)]
    parts += [
        "## Fine-tuning",
        "The defaults are the paper's for `small`; `electra finetune` and `electra glue` change some by the model's\n"
        "size and the task ([how to fine-tune](../how-to/finetune.md#settings)).",
        table(
            ("key", "type", "default", "meaning"),
            [key_row(option.key, option.type, option.default, option.help) for option in describe(FinetuneConfig)],
        ),
    ]
    return HEADER + "\n\n".join(parts) + "\n"


def key_row(key: str, kind: str, default: Any, meaning: str) -> tuple[str, ...]:
    kinds = " ".join(f"`{one}`" for one in kind.split("|"))
    return f"`{key}`", kinds, f"`{toml_value(default)}`", meaning


def preset_families() -> list[tuple[str, list[str]]]:
    """The presets in tables narrow enough to read."""
    names = preset_names()
    bert = [name for name in names if name.startswith("bert")]
    return [
        ("Values of the ELECTRA presets", [name for name in names if name not in bert]),
        ("Values of the BERT presets", bert),
    ]


def preset_table(names: list[str]) -> str:
    """The keys that any of these presets changes, with the value of each."""
    defaults = flatten(Config())
    values = {name: flatten(load(name)) for name in names}
    changed = [key for key in defaults if key != "preset" and any(values[name][key] != defaults[key] for name in names)]
    rows = [(f"`{key}`", *(toml_value(values[name][key]).strip('"') for name in names)) for key in changed]
    return table(("key", *(f"`{name}`" for name in names)), rows)


def api_page() -> str:
    """The public names of the package, each with its signature and docstring."""
    names = [name for name in getattr(electra, "__all__", ()) if not name.startswith("_")]
    parts = [
        "# Python API",
        "The verbs of the [commands](cli.md), as functions. Paths are `str` or `pathlib.Path`. Importing `electra`\n"
        "imports nothing heavy; a function imports what it needs when it is called. Errors are those of\n"
        "`electra.errors`, one class for each [exit code](exit-codes.md).",
    ]
    if not names:
        return HEADER + "\n\n".join([*parts, "This version has no public names yet."]) + "\n"
    summaries = [(f"[`electra.{name}`](#electra{name.lower()})", first_line(getattr(electra, name))) for name in names]
    parts.append(table(("name", "what you get"), summaries))
    for name in names:
        parts += object_parts(f"electra.{name}", getattr(electra, name))
    for name, result in result_classes(names):
        parts += object_parts(name, result)
    return HEADER + "\n\n".join(parts) + "\n"


def result_classes(names: list[str]) -> list[tuple[str, Any]]:
    """The dataclasses of `electra.api` that functions return and that are not public names themselves."""
    try:
        api: ModuleType = importlib.import_module("electra.api")
    except ModuleNotFoundError:
        return []
    found = [value for name, value in vars(api).items() if dataclasses.is_dataclass(value) and not name.startswith("_")]
    return [(value.__name__, value) for value in found if isinstance(value, type) and value.__name__ not in names]


def object_parts(title: str, value: Any) -> Iterator[str]:
    """A heading, the signature, the docstring, and for a class its fields and methods."""
    yield f"## {title}"
    if inspect.isfunction(value):
        yield signature_block(title, value)
        yield inspect.getdoc(value) or ""
        return
    if not inspect.isclass(value):
        yield f"`{value!r}`"
        return
    yield inspect.getdoc(value) or ""
    if dataclasses.is_dataclass(value):
        yield table(("field", "type"), [(f"`{f.name}`", f"`{f.type}`") for f in dataclasses.fields(value)])
    for name, member in vars(value).items():
        if name.startswith("_"):
            continue
        if inspect.isfunction(member):
            yield f"### {title}.{name}"
            yield signature_block(name, member)
            yield inspect.getdoc(member) or ""
        elif isinstance(member, property):
            yield f"### {title}.{name}"
            yield inspect.getdoc(member) or ""


def signature_block(name: str, function: Any) -> str:
    """The signature as Python; one argument a line where it is long."""
    signature = inspect.signature(function)
    line = f"{name}{signature}"
    if len(line) > 100:
        arguments = re.sub(r"\)( -> .*)?$", "", str(signature).removeprefix("("))
        parts = ",\n    ".join(split_arguments(arguments))
        line = f"{name}(\n    {parts},\n){str(signature).removeprefix('(' + arguments + ')')}"
    return f"```\n{line}\n```"  # no language: a formatter must leave a generated block alone


def split_arguments(text: str) -> list[str]:
    """Arguments at the commas that stand in no bracket and no string."""
    parts, depth, quoted = [""], 0, False
    for character in text:
        quoted ^= character in "'\""
        depth += 0 if quoted else (character in "([{") - (character in ")]}")
        if character == "," and not depth and not quoted:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


def first_line(value: Any) -> str:
    return (inspect.getdoc(value) or "").partition("\n")[0]


def table(head: tuple[str, ...], rows: list[Any]) -> str:
    """A Markdown table."""
    cells = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in cells)


def stale() -> list[str]:
    """Names of the pages whose files are not what the code gives."""
    return [
        name
        for name, content in pages().items()
        if not (DOCS / name).is_file() or (DOCS / name).read_text(encoding="utf-8") != content
    ]


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        found = stale()
        print("\n".join(f"docs/{name} is stale; run: python docs/generate.py" for name in found))
        sys.exit(bool(found))
    for name, content in pages().items():
        (DOCS / name).write_text(content, encoding="utf-8")
        print(f"docs/{name}")
    images = DOCS / records_page.IMAGES
    for name, content in records_page.curves(records()).items():
        images.mkdir(parents=True, exist_ok=True)
        (images / name).write_text(content, encoding="utf-8")
        print(f"docs/{records_page.IMAGES}/{name}")

"""`electra config`: what a run would use, every key that exists, and how two configurations differ."""

from __future__ import annotations

from pathlib import Path

import click
from click.shell_completion import CompletionItem

from electra.cli.lines import echo
from electra.display import aligned
from electra.errors import ConfigError


def _complete_key(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The keys that begin so, for the shell; their values are not completed."""
    from electra.config.keys import describe

    return [CompletionItem(f"{one.key}=", help=one.help) for one in describe() if one.key.startswith(incomplete)]


OVERRIDES = click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...", shell_complete=_complete_key)
PRESET = click.option(
    "--preset", metavar="NAME", help="Start from this preset (default: small); `electra config presets` lists them."
)
FILE = click.option("--config", "file", type=click.Path(path_type=Path), metavar="FILE", help="TOML with changed keys.")


@click.group("config")
def command() -> None:
    """Show or compare configurations; list every option."""


@command.command()
@PRESET
@FILE
@click.option("--help-keys", is_flag=True, help="List every key with its type, default and meaning.")
@click.argument("arguments", nargs=-1, metavar="[PRESET|FILE|RUN] [KEY=VALUE]...", shell_complete=_complete_key)
def show(preset: str | None, file: Path | None, help_keys: bool, arguments: tuple[str, ...]) -> None:
    """The whole configuration as TOML, ready for --config: of a preset, a TOML file or a run folder."""
    from electra.config.load import load, load_any, preset_names, to_toml
    from electra.config.unread import warn_of_unread

    name, overrides = (arguments[0], arguments[1:]) if arguments else ("", ())
    if "=" in name or not (name in preset_names() or (name and Path(name).exists())):
        config = load(preset, file=file, overrides=arguments)
    elif preset is None and file is None:
        config = load_any(name, overrides=overrides)
    else:
        raise ConfigError(name, "is a second configuration", fix="leave out --preset and --config")
    warn_of_unread(config)
    echo(_keys(config) if help_keys else to_toml(config), nl=False)


@command.command()
def presets() -> None:
    """The presets, with what each is for."""
    from electra.config.load import preset_names, preset_title

    echo("\n".join(aligned([(name, preset_title(name)) for name in preset_names()])))


@command.command()
@click.argument("a")
@click.argument("b")
def diff(a: str, b: str) -> None:
    """What differs between two presets, TOML files or run folders."""
    from electra.config.keys import toml_value
    from electra.config.load import diff as differences
    from electra.config.load import load_any

    rows = [(key, toml_value(left), toml_value(right)) for key, left, right in differences(load_any(a), load_any(b))]
    echo("\n".join(aligned([("", a, b), *rows])) if rows else "no difference")


def _keys(config: object) -> str:
    from electra.config.keys import describe, flatten, toml_value

    values = flatten(config)
    blocks = [
        f"{option.key} = {toml_value(values[option.key])}  ({option.type})\n    {option.help}" for option in describe()
    ]
    return "\n".join(blocks) + "\n"

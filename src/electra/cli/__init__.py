"""The command line: commands are imported when they are called, so that `--help` is instant."""

from __future__ import annotations

import contextlib
import importlib
import os
import shlex
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import click

from electra import __version__, progress
from electra.errors import ConfigError, ElectraError, Resumable, is_out_of_memory, suggest
from electra.platforms import require_supported
from electra.stopping import Stopped, behind, last_line, stopped_by_signals
from electra.terminal import visible

COMMANDS = {
    "demo": ("electra.cli.demo", "From text to a fine-tuned model and a report, in minutes."),
    "prepare": ("electra.cli.prepare", "Raw text to a tokenizer and token shards."),
    "pretrain": ("electra.cli.pretrain", "Train generator and discriminator; run it again to resume."),
    "watch": ("electra.cli.watch", "Follow a run in the terminal, or see where it stands."),
    "track": ("electra.cli.track", "A run's metrics to TensorBoard or Weights & Biases, at any time."),
    "finetune": ("electra.cli.finetune", "Fine-tune a model on a task: GLUE, SQuAD, tagging, your own data."),
    "glue": ("electra.cli.glue", "Fine-tune on every GLUE task at hand; the paper's average."),
    "evaluate": ("electra.cli.evaluate", "The scores in a folder, or a model's on a labelled file."),
    "predict": ("electra.cli.predict", "A fine-tuned model's predictions for your rows."),
    "detect": ("electra.cli.detect", "Mark the tokens of a text that look replaced."),
    "score": ("electra.cli.score", "How likely texts are to an electric or masked language model."),
    "encode": ("electra.cli.encode", "Texts as vectors: the encoder's hidden states, pooled."),
    "serve": ("electra.cli.serve", "A page to try a model on, and a JSON API; follows a run."),
    "export": ("electra.cli.export", "A model for transformers, ONNX Runtime or sentence-transformers."),
    "import": ("electra.cli.import_", "A transformers or TensorFlow ELECTRA model as one of ours."),
    "push": ("electra.cli.push", "An exported folder to the Hugging Face hub, private by default."),
    "report": ("electra.cli.report", "One page about runs: curves, samples, scores, what differs."),
    "reproduce": ("electra.cli.reproduce", "An experiment of the paper, its numbers and yours."),
    "speedrun": ("electra.cli.speedrun", "How good an encoder gets in a given number of minutes."),
    "config": ("electra.cli.config", "Show or compare configurations; list every option."),
    "flops": ("electra.cli.flops", "Parameters and FLOPs of a configuration."),
    "bench": ("electra.cli.bench", "How fast training is here, and with transformers."),
    "doctor": ("electra.cli.doctor", "What this machine and this installation can do."),
}
"""Name to module and one-line help. A module's `command` is what runs."""

LONG = (
    "demo", "prepare", "pretrain", "finetune", "glue", "evaluate", "predict", "score", "encode", "export", "reproduce",
    "speedrun", "bench",
)  # fmt: skip
"""Commands that may take long: they have --quiet, --verbose and --log-file."""
DATA_EXIT = 4
OUT_OF_MEMORY = {
    "pretrain": "lower train.micro_batch, train.batch_size or data.length",
    "finetune": "lower batch_size or length, such as batch_size=8 length=64",
    "glue": "lower batch_size or length, such as batch_size=8 length=64",
}
"""What to lower, by command; pre-training itself names a value that fits."""


def debugging() -> bool:
    return os.environ.get("ELECTRA_DEBUG", "") not in ("", "0")


def _turn_on_debugging(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value:
        os.environ["ELECTRA_DEBUG"] = "1"


def _debug_option(*, hidden: bool) -> click.Option:
    return click.Option(
        ["--debug"],
        is_flag=True,
        expose_value=False,
        hidden=hidden,
        is_eager=True,
        callback=_turn_on_debugging,
        help="Show the traceback of an error (also ELECTRA_DEBUG=1).",
    )


def _accept_debug(command: click.Command) -> None:
    """Let `--debug` stand after the command too, where people type it."""
    if not any(parameter.name == "debug" for parameter in command.params):
        command.params.append(_debug_option(hidden=True))
    if isinstance(command, click.Group):
        for child in command.commands.values():
            _accept_debug(child)


def _choose_output(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    if value and parameter.name == "quiet":
        progress.show_less()
    elif value and parameter.name == "verbose":
        progress.show_more()
    elif value:
        progress.log_to(value)


def _accept_output(command: click.Command) -> None:
    """Give a long command the options that say how much it shows, and where else."""
    if isinstance(command, click.Group):
        for child in command.commands.values():
            _accept_output(child)
    elif not any(parameter.name == "log_file" for parameter in command.params):
        for name, about in (
            ("--quiet", "Show warnings and errors only."),
            ("--verbose", "Show details too, such as every line of metrics."),
        ):
            option = click.Option([name], is_flag=True, expose_value=False, callback=_choose_output, help=about)
            command.params.append(option)
        kind = click.Path(dir_okay=False, path_type=Path)
        about = "Append everything that is shown, and details, to this file."
        log_file = click.Option(["--log-file"], type=kind, expose_value=False, callback=_choose_output, help=about)
        command.params.append(log_file)


class LazyGroup(click.Group):
    """A group whose commands are imported when called, and whose errors are one line and an exit code."""

    _command = ""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module_name = COMMANDS[cmd_name][0]
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name == module_name:
                raise ConfigError(f"electra {cmd_name}", "this command is not in this installation") from error
            raise
        command: click.Command = module.command
        _accept_debug(command)
        if cmd_name in LONG:
            _accept_output(command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = self._command = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            hint = suggest(name, COMMANDS)
            ctx.fail(f"no such command '{name}'" + (f"; {hint}" if hint else ""))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> None:
        super().invoke(ctx)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> NoReturn:
        with stopped_by_signals(program=args is None), progress.output():
            sys.exit(self._exit_code(args, prog_name, complete_var, **extra))

    def _exit_code(self, args: Sequence[str] | None, prog_name: str | None, complete: str | None, **extra: Any) -> int:
        try:
            require_supported()
            # Only `ctx.exit(code)` yields a number: `invoke` above drops what commands return.
            self._command = ""
            code = super().main(args, prog_name or "electra", complete, standalone_mode=False, **extra)
            sys.stdout.flush()
        except BrokenPipeError:
            _discard_stdout()
            return 1
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            return error.exit_code
        except (Exception, KeyboardInterrupt) as error:
            return _report(error, self._command, sys.argv[1:] if args is None else args)
        return code if isinstance(code, int) else 0


def _discard_stdout() -> None:
    """The reader is gone: let the interpreter's last flush go nowhere instead of failing."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _report(error: BaseException, command: str, args: Sequence[str]) -> int:
    """Say what went wrong in one line; the exit code to leave with. A bug keeps its traceback."""
    error = behind(error)
    known = _line_and_code(error, command, args)
    if known is None:
        raise error
    if debugging():
        traceback.print_exception(error, file=sys.stderr)
    line, code = known
    progress.log(line)
    with contextlib.suppress(BrokenPipeError):
        print(visible(" ".join(line.split("\n"))), file=sys.stderr, flush=True)
    return code


def _as_setting(error: click.NoSuchOption, args: Sequence[str]) -> str:
    """`epochs=2` for `--epochs 2`, where that is a key of the command's configuration; otherwise an empty string."""
    from electra.config.finetune import FinetuneConfig
    from electra.config.keys import key_types

    key = error.option_name.lstrip("-").replace("-", "_")
    finetuning = error.ctx is not None and error.ctx.command.name in ("finetune", "glue")
    if "." not in key and not (finetuning and key in key_types(FinetuneConfig)):
        return ""
    given = [one.partition("=") for one in args]
    place = next((at for at, (name, _, _) in enumerate(given) if name == error.option_name), None)
    if place is None:
        return f"{key}=VALUE"
    following = args[place + 1] if place + 1 < len(args) and not args[place + 1].startswith("-") else "VALUE"
    return f"{key}={given[place][2] or following}"


def _line_and_code(error: BaseException, command: str, args: Sequence[str]) -> tuple[str, int] | None:
    if isinstance(error, click.NoSuchOption) and (setting := _as_setting(error, args)):
        return f"electra: error: {error.option_name}: settings have no dashes (write {setting})", error.exit_code
    if isinstance(error, click.ClickException):
        hint = f" (see '{error.ctx.command_path} --help')" if isinstance(error, click.UsageError) and error.ctx else ""
        return f"electra: error: {error.format_message()}{hint}", error.exit_code
    if isinstance(error, KeyboardInterrupt | click.Abort):
        cause = error.__cause__ if isinstance(error, click.Abort) else error
        return last_line(str(cause) if isinstance(cause, Stopped) else ""), Resumable.exit_code
    if isinstance(error, Resumable):
        return f"electra: {error}", error.exit_code
    if isinstance(error, ElectraError):
        return f"electra: error: {error}", error.exit_code
    if isinstance(error, ModuleNotFoundError):
        fix = f"{shlex.quote(sys.executable)} -m pip install {error.name}"
        return f"electra: error: the package '{error.name}' is missing ({fix})", 2
    if isinstance(error, OSError):
        from electra.fsio import DISK_ERRORS

        where = f"{error.filename}: " if error.filename is not None else ""
        fix = f" ({DISK_ERRORS[error.errno]})" if error.errno in DISK_ERRORS else ""
        return f"electra: error: {where}{error.strerror or error}{fix}", DATA_EXIT
    if is_out_of_memory(error):
        fix = OUT_OF_MEMORY.get(command, "lower the batch or the length, or take a smaller model")
        return f"electra: error: out of memory ({fix})", ElectraError.exit_code
    return None


@click.group(
    cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]}, params=[_debug_option(hidden=False)]
)
@click.version_option(__version__, prog_name="electra")
def main() -> None:
    """Pre-train text encoders as discriminators, from raw text to a model that transformers loads.

    Start with `electra demo`. Settings are given as key=value; `electra config show --help-keys` lists them.
    """

"""The command group: instant help, one-line errors, exit codes."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import types
from collections.abc import Callable

import click
import pytest
import tiny_runs

from electra import cli
from electra.errors import CheckpointError, ConfigError, DataError, Diverged, Resumable

ENV = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
ENV.pop("ELECTRA_DEBUG", None)
HEAVY = ("torch", "numpy", "rich", "transformers", "tokenizers", "safetensors")


def electra(*args: str, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "electra", *args]
    return subprocess.run(command, capture_output=True, text=True, env=ENV, timeout=60, **options)  # type: ignore[call-overload]


def test_help_is_quick_and_light() -> None:
    code = (
        "import sys\nfrom electra.cli import main\n"
        f"try: main(['--help'])\nfinally: print([m for m in {HEAVY} if m in sys.modules])"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=ENV, timeout=60, check=True
    )
    assert shown.stdout.splitlines()[-1] == "[]"
    for name, (_, text) in cli.COMMANDS.items():
        assert f"  {name} " in shown.stdout and text in shown.stdout
    before = seconds_of_children()
    for _ in range(5):
        electra("--help")
    mean = (seconds_of_children() - before) / 5
    assert mean < 0.3 * 3, "the bar is 0.3 s; three times that is a slow machine, not a slow import"


def seconds_of_children() -> float:
    """What the processes started here have computed: on a busy machine they take longer and compute no more."""
    spent = os.times()
    return spent.children_user + spent.children_system


def test_every_command_module_is_light() -> None:
    """A command's module is imported by its --help: nothing heavy belongs at its top."""
    code = (
        "import sys, importlib\nfrom electra.cli import COMMANDS\n"
        "for module, _ in COMMANDS.values():\n"
        "    try: importlib.import_module(module)\n"
        "    except ModuleNotFoundError as error:\n"
        "        if error.name != module: raise\n"
        f"    heavy = [m for m in {HEAVY} if m in sys.modules]\n"
        "    if heavy: sys.exit(f'{module} imports {heavy}')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=ENV, timeout=60)
    assert done.returncode == 0, done.stderr


def test_version_and_no_arguments() -> None:
    assert electra("--version").stdout.startswith("electra, version ")
    bare = electra()
    assert bare.returncode == 2 and "Commands:" in bare.stderr


@pytest.mark.parametrize(
    ("args", "fragment"),
    [
        (("pretrian",), "no such command 'pretrian'; did you mean 'pretrain'?"),
        (("zzz",), "no such command 'zzz'"),
        (("--verson",), "Did you mean '--version'?"),
        (("config", "shwo"), "did you mean 'show'?"),
        (("config", "show", "--presett", "tiny"), "--preset"),
        (("config", "show", "--train.steps=5"), "write train.steps=5"),
        (("config", "show", "train.step=5"), "did you mean 'train.steps'?"),
        (("doctor", "--jso"), "--json"),
    ],
)
def test_promise_20_typos_get_a_suggestion(args: tuple[str, ...], fragment: str) -> None:
    done = electra(*args)
    assert done.returncode == 2 and done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("electra: error: ") and fragment.lower() in done.stderr.lower()


def failing(error: BaseException) -> Callable[[], None]:
    def run() -> None:
        raise error

    return run


class OutOfMemoryError(RuntimeError):
    """Named as torch's."""


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    monkeypatch.setenv("ELECTRA_DEBUG", "")

    def run(body: Callable[[], object], *args: str) -> tuple[int, str, str]:
        module = types.ModuleType("electra_test_command")
        module.command = click.Command("try", callback=body)  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "electra_test_command", module)
        monkeypatch.setitem(cli.COMMANDS, "try", ("electra_test_command", "A command of this test."))
        with pytest.raises(SystemExit) as stop:
            cli.main.main(list(args or ("try",)))
        shown = capsys.readouterr()
        return int(stop.value.code or 0), shown.out, shown.err

    return run


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (
            ConfigError("train.steps", "0 is not positive", fix="try 1000"),
            2,
            "train.steps: 0 is not positive (try 1000)",
        ),
        (Diverged("loss is nan at step 7"), 3, "loss is nan at step 7"),
        (DataError("a.txt", "not text"), 4, "a.txt: not text"),
        (CheckpointError("step-1", "damaged"), 5, "step-1: damaged"),
        (PermissionError(errno.EACCES, "Permission denied", "out/x"), 4, "out/x: Permission denied"),
        (
            OSError(errno.ENOSPC, "No space left on device", "p.csv"),
            4,
            "p.csv: No space left on device (free some space, or write to another disk)",
        ),
        (MemoryError(), 1, "out of memory (lower the batch or the length, or take a smaller model)"),
        (OutOfMemoryError("CUDA"), 1, "out of memory (lower the batch or the length, or take a smaller model)"),
        (ModuleNotFoundError("No module named 'zstandard'", name="zstandard"), 2, "the package 'zstandard' is missing"),
        (click.ClickException("plain"), 1, "plain"),
        (DataError("a.txt", "two\nlines"), 4, "a.txt: two lines"),
    ],
)
def test_promise_20_errors_are_one_line(
    call: Callable[..., tuple[int, str, str]], error: Exception, code: int, line: str
) -> None:
    exit_code, out, err = call(failing(error))
    assert exit_code == code and out == ""
    assert err.startswith(f"electra: error: {line}") and err.count("\n") == 1


def test_stops_leave_with_75(call: Callable[..., tuple[int, str, str]]) -> None:
    code, _, err = call(failing(KeyboardInterrupt()))
    assert code == 75 and err.strip().count("\n") == 0 and "stopped" in err and "Traceback" not in err
    code, _, err = call(failing(Resumable("stopped at step 12 after saving")))
    assert (code, err) == (75, "electra: stopped at step 12 after saving\n")


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("electra_test_command")
    module.command = click.Command("try", callback=failing(ZeroDivisionError("bug")))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "electra_test_command", module)
    monkeypatch.setitem(cli.COMMANDS, "try", ("electra_test_command", ""))
    with pytest.raises(ZeroDivisionError, match="bug"):
        cli.main.main(["try"])


@pytest.mark.parametrize("args", [("--debug", "try"), ("try", "--debug")])
def test_debug_shows_the_traceback(call: Callable[..., tuple[int, str, str]], args: tuple[str, ...]) -> None:
    code, _, err = call(failing(DataError("a.txt", "not text")), *args)
    assert code == 4 and "Traceback" in err and err.endswith("electra: error: a.txt: not text\n")


def test_return_values_are_not_exit_codes_but_ctx_exit_is(call: Callable[..., tuple[int, str, str]]) -> None:
    assert call(lambda: 7)[0] == 0
    assert call(lambda: click.get_current_context().exit(9))[0] == 9


def test_missing_command_module_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(cli.COMMANDS, "later", ("electra.cli.not_written", "Later."))
    with pytest.raises(SystemExit) as stop:
        cli.main.main(["later"])
    assert stop.value.code == 2 and "electra later: this command is not in this installation" in capsys.readouterr().err
    with pytest.raises(SystemExit) as stop:
        cli.main.main(["--help"])
    assert stop.value.code == 0


def test_a_missing_package_inside_a_command_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path)
    with open(os.path.join(path, "electra_needs_more.py"), "w") as out:
        out.write("import a_package_nobody_has\n")
    monkeypatch.syspath_prepend(path)
    monkeypatch.setitem(cli.COMMANDS, "more", ("electra_needs_more", "More."))
    with pytest.raises(SystemExit) as stop:
        cli.main.main(["more"])
    assert stop.value.code == 2 and "'a_package_nobody_has' is missing" in capsys.readouterr().err


def test_broken_pipe_is_quiet() -> None:
    command = f"{sys.executable} -m electra config show --preset small | head -n 1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, env=ENV, timeout=60)
    assert done.stdout.count("\n") == 1 and done.stderr == ""
    reader, writer = os.pipe()
    os.close(reader)
    closed = subprocess.run(
        [sys.executable, "-m", "electra", "--help"],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        env=ENV,
        timeout=60,
    )
    os.close(writer)
    assert closed.returncode == 1 and closed.stderr == ""


def test_the_shell_completes_commands_options_and_keys() -> None:
    """As docs/how-to/completion.md has it."""
    page = (tiny_runs.ROOT / "docs" / "how-to" / "completion.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1:3] for line in page.splitlines() if line.startswith("| `electra")]
    assert len(rows) == 3
    for typed, offered in rows:
        words = typed.strip(" `")
        asked = {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1), "_ELECTRA_COMPLETE": "bash_complete"}
        command = [sys.executable, "-c", "from electra.cli import main; main(prog_name='electra')"]
        done = subprocess.run(command, capture_output=True, text=True, env={**ENV, **asked}, timeout=60)
        assert [line.removeprefix("plain,") for line in done.stdout.splitlines()] == offered.replace("`", "").split()

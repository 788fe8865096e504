"""`electra config`: what it prints is what a run uses."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from electra.cli import main
from electra.config.keys import describe
from electra.config.load import load, preset_names, to_toml


def run(*args: str) -> tuple[int, str, str]:
    shown = CliRunner().invoke(main, ["config", *args])
    return shown.exit_code, shown.stdout, shown.stderr


def test_show_is_toml_that_loads_back(tmp_path: Path) -> None:
    code, out, _ = run("show", "--preset", "tiny", "train.steps=2_000", "generator.width=1")
    assert code == 0
    path = tmp_path / "mine.toml"
    path.write_text(out)
    assert load(file=path) == load("tiny", overrides=["train.steps=2000", "generator.width=1.0"])
    assert run("show", "--config", str(path)) == (0, out, "")
    assert run("show", "--config", str(path), "seed=9")[1] == out.replace("seed = 0", "seed = 9")


def test_show_takes_what_diff_takes(tmp_path: Path) -> None:
    text = to_toml(load("tiny", overrides=["seed=3"]))
    (tmp_path / "config.toml").write_text(text)
    assert run("show", str(tmp_path)) == run("show", str(tmp_path / "config.toml")) == (0, text, "")
    assert run("show", str(tmp_path), "seed=4")[1] == text.replace("seed = 3", "seed = 4")
    assert run("show", "base")[1] == to_toml(load("base"))


def test_help_keys_lists_every_key_with_its_value() -> None:
    code, out, _ = run("show", "--help-keys", "--preset", "base")
    assert code == 0 and "optim.lr = 0.0002  (float)\n    Peak learning rate" in out
    for option in describe():
        assert f"{option.key} = " in out and option.help in out


def test_presets_are_listed_with_a_title() -> None:
    code, out, _ = run("presets")
    assert code == 0 and [line.split()[0] for line in out.splitlines()] == preset_names()
    assert "Table 6" in out


def test_diff_of_presets_files_and_runs(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(to_toml(load("small", overrides=["seed=3"])))
    assert run("diff", "small", "small") == (0, "no difference\n", "")
    code, out, _ = run("diff", "small", str(tmp_path))
    assert code == 0 and [line.split() for line in out.splitlines()[1:]] == [["seed", "0", "3"]]
    assert run("diff", str(tmp_path), str(tmp_path / "config.toml"))[1] == "no difference\n"
    code, out, _ = run("diff", "large", "large-1.75m")
    assert [line.split()[0] for line in out.splitlines()[1:]] == ["preset", "train.steps"]


@pytest.mark.parametrize(
    ("args", "fragment"),
    [
        (("show", "--preset", "huge"), "preset: 'huge' does not exist (one of: tiny, modern-small, small,"),
        (("show", "--config", "none.toml"), "none.toml: No such file or directory"),
        (("show", "--preset", "tiny", "preset=base"), "preset: an override says 'base', not 'tiny'"),
        (("show", "--preset", "tiny", "base"), "base: is a second configuration (leave out --preset and --config)"),
        (("show", "seed"), "seed: is not key=value (for example seed=1)"),
        (("show", "model.heads=3"), "model.heads: 3 does not divide model.width 256"),
        (("diff", "small", "smalle"), "smalle: no such preset, TOML file or run folder (did you mean 'small'?)"),
        (("diff", "small"), "Missing argument 'B'"),
    ],
)
def test_promise_20_config_errors(args: tuple[str, ...], fragment: str) -> None:
    code, out, err = run(*args)
    assert (code, out) == (2, "") and err.startswith("electra: error: ") and fragment in err and err.count("\n") == 1

"""Reading and writing configurations: what is accepted, and 80 that are not."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
from hypothesis import given
from hypothesis import strategies as st

from electra.config.keys import ALIASES, describe, flatten, key_types
from electra.config.load import diff, load, load_any, parse_overrides, preset, preset_names, to_toml
from electra.config.schema import Config
from electra.errors import ConfigError

BAD_OVERRIDES = [
    # unknown keys
    ("train.step=5", "train.step", "did you mean 'train.steps'?"),
    ("lr=1e-3", "lr", "did you mean 'optim.lr'?"),
    ("optim.learning_rate=1e-3", "optim.learning_rate", "did you mean 'optim.lr'?"),
    ("every=5", "every", "did you mean 'evaluate.every' or 'checkpoint.every'?"),
    ("warmup_step=5", "warmup_step", "did you mean 'optim.warmup_steps'?"),
    ("max_seq_length=128", "max_seq_length", "did you mean 'data.length'?"),
    ("xyzzy=1", "xyzzy", "electra config show --help-keys"),
    ("Train.Steps=5", "Train.Steps", "no such key"),
    ("=5", "", "no such key"),
    ("train=5", "train", "is a section"),
    ("train.steps", "train.steps", "is not key=value"),
    ("train.steps = 5", "train.steps", "has spaces around its = (write train.steps=5)"),
    ("train.steps.x=5", "train.steps.x", "no such key"),
    # wrong types
    ("train.steps=1.7", "train.steps", '1.7" is not a whole number'),
    ("train.steps=1e5", "train.steps", "is not a whole number"),
    ("train.steps=true", "train.steps", "is not a whole number"),
    ("train.steps=", "train.steps", "is not a whole number"),
    ("train.steps=1__0", "train.steps", "is not a whole number"),
    ("train.steps=" + "9" * 5000, "train.steps", "is not a whole number"),
    ("train.steps=" + "9" * 30, "train.steps", "too large"),
    ("data.length=65537", "data.length", "65536"),
    ("seed=three", "seed", "is not a whole number"),
    ("optim.lr=fast", "optim.lr", "is not a number (such as"),
    ("optim.lr=nan", "optim.lr", "is not a number"),
    ("optim.lr=inf", "optim.lr", "is not a number"),
    ("optim.lr=1e999", "optim.lr", "is not a finite number"),
    ("train.deterministic=1", "train.deterministic", "is not true or false"),
    ("train.deterministic=True", "train.deterministic", "is not true or false"),
    # choices
    ("objective.name=bert", "objective.name", "one of: rtd, rtd-15"),
    ("train.device=gpu", "train.device", "one of: auto, cpu, cuda"),
    ("train.precision=fp16", "train.precision", "did you mean 'bf16'?"),
    ("data.layout=pack", "data.layout", "did you mean 'packed'?"),
    ("data.layout=paper", "data.layout", "one of: sentences, paper-official, packed"),
    ("masking.policy=", "masking.policy", "one of: without_replacement, official"),
    ("preset=smal", "preset", "did you mean 'small'?"),
    # ranges
    ("model.layers=0", "model.layers", "at least 1"),
    ("model.width=-256", "model.width", "at least 1"),
    ("model.heads=0", "model.heads", "at least 1"),
    ("model.vocab_size=5", "model.vocab_size", "at least 6"),
    ("model.positions=4", "model.positions", "at least 8"),
    ("model.dropout=1.0", "model.dropout", "from 0 and below 1"),
    ("model.attention_dropout=-0.1", "model.attention_dropout", "from 0 and below 1"),
    ("model.init_std=0", "model.init_std", "more than 0"),
    ("generator.width=0", "generator.width", "above 0 up to 1"),
    ("generator.width=2", "generator.width", "above 0 up to 1"),
    ("generator.depth=1.5", "generator.depth", "above 0 up to 1"),
    ("masking.rate=0", "masking.rate", "above 0 up to 1"),
    ("masking.rate=15", "masking.rate", "15.0 is not a share"),
    ("masking.masked_share=1.1", "masking.masked_share", "from 0 up to 1"),
    ("data.single_segment=-1", "data.single_segment", "from 0 up to 1"),
    ("data.short=2", "data.short", "from 0 up to 1"),
    ("data.length=4", "data.length", "at least 8"),
    ("optim.lr=0", "optim.lr", "more than 0"),
    ("optim.lr=-1e-4", "optim.lr", "more than 0"),
    ("optim.eps=0", "optim.eps", "more than 0"),
    ("optim.beta1=1", "optim.beta1", "from 0 and below 1"),
    ("optim.beta2=1", "optim.beta2", "from 0 and below 1"),
    ("optim.weight_decay=-0.1", "optim.weight_decay", "at least 0"),
    ("optim.clip=0", "optim.clip", "more than 0"),
    ("optim.warmup_steps=-1", "optim.warmup_steps", "at least 0"),
    ("optim.decay_steps=-1", "optim.decay_steps", "at least 0"),
    ("train.steps=0", "train.steps", "at least 1"),
    ("train.batch_size=0", "train.batch_size", "at least 1"),
    ("train.micro_batch=-8", "train.micro_batch", "at least 0"),
    ("train.max_minutes=-1", "train.max_minutes", "at least 0"),
    ("train.log_every=0", "train.log_every", "at least 1"),
    ("evaluate.every=-1", "evaluate.every", "at least 0"),
    ("evaluate.sequences=0", "evaluate.sequences", "at least 1"),
    ("checkpoint.every=0", "checkpoint.every", "at least 1"),
    ("checkpoint.keep=0", "checkpoint.keep", "at least 1"),
    ("guard.max_skipped=0", "guard.max_skipped", "at least 1"),
    ("guard.max_rise=1", "guard.max_rise", "more than 1"),
    ("objective.mlm_weight=-1", "objective.mlm_weight", "at least 0"),
    ("objective.rtd_weight=-1", "objective.rtd_weight", "at least 0"),
    ("seed=-1", "seed", "at least 0"),
    # combinations
    ("model.heads=5", "model.heads", "5 does not divide model.width 256 (4 heads have 64 units each)"),
    ("model.width=250 model.heads=4", "model.heads", "does not divide model.width 250"),
    ("generator.width=0.85", "generator.width", "gives a width of 218, which 3 heads"),
    ("generator.width=0.001", "generator.width", "leaves no unit"),
    ("data.length=600", "data.length", "600 is longer than model.positions 512"),
    ("data.length=8 masking.rate=0.1", "masking.rate", "0.1 of 8 tokens is none (at least 0.125)"),
    (
        "optim.decay_steps=5000 train.steps=2000 optim.warmup_steps=10000",
        "optim.decay_steps",
        "is not after optim.warmup_steps 10000",
    ),
    ("optim.decay_steps=20000", "optim.decay_steps", "the learning rate would be 0 from step 20000"),
    (
        "train.steps=2000 optim.warmup_steps=10000",
        "optim.warmup_steps",
        "10000 steps of warm-up do not fit into train.steps 2000 (leave it out",
    ),
    ("optim.warmup_share=1.5", "optim.warmup_share", "from 0 up to 1"),
    ("train.micro_batch=48", "train.micro_batch", "48 does not divide train.batch_size 128 (try 32)"),
    ("train.micro_batch=256", "train.micro_batch", "256 does not divide train.batch_size 128 (try 128)"),
    ("objective.mlm_weight=0 objective.rtd_weight=0", "objective.rtd_weight", "nothing to learn"),
    ("objective.name=mlm objective.mlm_weight=0", "objective.mlm_weight", "nothing to learn"),
    ("seed=1 seed=2", "seed", "is given twice"),
]


@pytest.mark.parametrize(("overrides", "key", "fragment"), BAD_OVERRIDES)
def test_promise_20_bad_overrides(overrides: str, key: str, fragment: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(overrides=overrides.split(" "))
    line = str(caught.value)
    assert caught.value.exit_code == 2 and caught.value.key == key
    assert line.startswith(f"{key}: ") and fragment in line and "\n" not in line


BAD_FILES = [
    ("train.steps = 1.7", "train.steps", "1.7 is not a whole number"),
    ("train.steps = true", "train.steps", "true is not a whole number"),
    ('train.steps = "5"', "train.steps", '"5" is not a whole number'),
    ("train.steps = [5]", "train.steps", "a list is not a whole number"),
    ("train.steps = {a = 5}", "train.steps", "a table is not a whole number"),
    ("train.steps = 2026-01-01", "train.steps", "2026-01-01 is not a whole number"),
    ("train = 5", "train", "is a section"),
    ("[train]\nstep = 5", "train.step", "did you mean 'train.steps'?"),
    ("[trian]\nsteps = 5", "trian", "did you mean 'train'?"),
    ("optim.lr = inf", "optim.lr", "is not a finite number"),
    ("optim.lr = nan", "optim.lr", "is not a finite number"),
    ("optim.lr = true", "optim.lr", "true is not a number"),
    ("optim.lr = 1" + "0" * 400, "optim.lr", "too large"),
    ("optim.lr = 1" + "0" * 5000, "FILE", "is not valid TOML"),
    ("train.deterministic = 1", "train.deterministic", "1 is not true or false"),
    ('train.deterministic = "true"', "train.deterministic", '"true" is not true or false'),
    ("objective.name = 1", "objective.name", "one of: rtd, rtd-15"),
    ("objective.name = true", "objective.name", "one of: rtd, rtd-15"),
    ('objective.name = ["rtd"]', "objective.name", "one of: rtd, rtd-15"),
    ("preset = 5", "preset", "5 is not a text"),
    ('preset = "tny"', "preset", "did you mean 'tiny'?"),
    ("seed = ", "FILE", "is not valid TOML"),
    ("seed = 1\nseed = 2", "FILE", "is not valid TOML"),
    ("a = " + "[" * 5000, "FILE", "is not valid TOML"),
]


@pytest.mark.parametrize(("text", "key", "fragment"), BAD_FILES)
def test_promise_20_bad_files(text: str, key: str, fragment: str, tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(file=path)
    assert str(caught.value).startswith(f"{key.replace('FILE', str(path))}: ") and fragment in str(caught.value)


def test_files_with_a_former_name_mean_what_they_meant(tmp_path: Path) -> None:
    (tmp_path / "old.toml").write_text('preset = "tiny"\n[data]\nlayout = "paper"\n')
    assert load(file=tmp_path / "old.toml").data.layout == "paper-official"


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load(file=tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="is a folder, not a file"):
        load(file=tmp_path)
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="is not UTF-8 text"):
        load(file=tmp_path / "binary.toml")


def test_layers_of_a_load(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text('preset = "tiny"\nseed = 4\n[train]\nsteps = 1_000\nmax_minutes = 2\n')
    config = load(
        file=path, overrides=["train.steps=2_000", "generator.width=1", "objective.name=mlm", "optim.lr=3e-4"]
    )
    expected = preset("tiny")
    expected = dataclasses.replace(
        expected,
        seed=4,
        train=dataclasses.replace(expected.train, steps=2000, max_minutes=2.0),
        generator=dataclasses.replace(expected.generator, width=1.0),
        objective=dataclasses.replace(expected.objective, name="mlm"),
        optim=dataclasses.replace(expected.optim, lr=3e-4),
    )
    assert config == expected
    assert type(config.train.max_minutes) is float and type(config.generator.width) is float
    assert diff(preset("tiny"), config)[:2] == [("seed", 0, 4), ("objective.name", "rtd", "mlm")]


def test_one_preset_only(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text('preset = "tiny"\n')
    assert load("tiny", file=path) == preset("tiny") == load(overrides=["preset=tiny"])
    for call in (lambda: load("base", file=path), lambda: load("base", overrides=["preset=tiny"])):
        with pytest.raises(ConfigError, match="says 'tiny', not 'base'"):
            call()


def test_stopping_a_long_schedule_early_is_possible() -> None:
    config = load("small", overrides=["train.steps=100", "optim.decay_steps=1_000_000"])
    assert (config.train.steps, config.optim.decay_steps) == (100, 1_000_000)


def test_generator_is_not_checked_where_there_is_none() -> None:
    assert load(overrides=["objective.name=mlm", "generator.width=0.85"]).generator.width == 0.85


def test_load_any(tmp_path: Path) -> None:
    assert load_any("base") == preset("base")
    (tmp_path / "config.toml").write_text(to_toml(preset("large")))
    assert load_any(str(tmp_path)) == load_any(str(tmp_path / "config.toml")) == preset("large")
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(ConfigError, match=r"has no config\.toml"):
        load_any(str(empty))
    with pytest.raises(ConfigError, match="did you mean 'base'"):
        load_any("bse")
    with pytest.raises(ConfigError, match="presets: tiny, modern-small, small"):
        load_any("qqqqq")


def test_every_key_is_described() -> None:
    options = describe()
    assert [option.key for option in options] == list(flatten(Config()))
    assert all(option.help.endswith(".") for option in options)
    by_key = {option.key: option for option in options}
    assert by_key["train.device"].type == "auto|cpu|cuda" and by_key["optim.lr"].default == 5e-4
    assert set(ALIASES.values()) <= set(by_key)
    assert not set(ALIASES) & {key.rpartition(".")[2] for key in by_key}


def values(kind: Any) -> st.SearchStrategy[Any]:
    if get_origin(kind) is Literal:
        return st.sampled_from(get_args(kind))
    return {
        int: st.integers(0, 2**63 - 1),
        float: st.floats(allow_nan=False, allow_infinity=False),
        bool: st.booleans(),
    }[kind]


FREE = {"train.max_minutes": st.floats(0, 2**30), "optim.weight_decay": st.floats(0, 3e38), "seed": values(int)}
FREE |= {
    "optim.eps": st.floats(1e-300, 3e38),
    "optim.beta2": st.floats(0, 1, exclude_max=True),
    "train.log_every": st.integers(1, 10**12),
}
FREE |= {key: values(kind) for key, kind in key_types().items() if get_origin(kind) is Literal or kind is bool}
# Values that go together with some others only are left out.
FREE |= {
    "objective.name": st.sampled_from(["rtd", "rtd-15", "replace-mlm", "all-tokens-mlm", "mlm"]),
    "objective.correction_weight": st.just(0.0),
    "objective.overlap_weight": st.just(0.0),
    "generator.tying": st.sampled_from(["none", "embeddings"]),
    "train.algorithm": st.just("joint"),
    "optim.matrices": st.just("adamw"),
}


@given(st.fixed_dictionaries({}, optional=FREE), st.sampled_from(preset_names()))
def test_toml_round_trip(changed: dict[str, Any], name: str) -> None:
    def text(value: Any) -> str:
        return str(value).lower() if isinstance(value, bool) else str(value)

    if "objective.name" in changed:  # a preset's correction stands beside rtd alone, its overlap beside rtd and mlm
        changed = {"objective.correction_weight": 0.0, "objective.overlap_weight": 0.0} | changed
    if changed.get("data.layout") == "packed":  # without a second segment
        changed = {"data.copies": 0.0, "objective.overlap_weight": 0.0} | changed
    config = load(name, overrides=[f"{key}={text(value)}" for key, value in changed.items()])
    flat = flatten(config)
    assert all(flat[key] == value for key, value in changed.items())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.toml"
        path.write_text(to_toml(config))
        assert load(file=path) == config
    assert diff(config, config) == []


@given(st.text(max_size=40), st.text(max_size=40))
def test_no_override_text_does_anything_but_load_or_say_why(key: str, value: str) -> None:
    for text in (key, f"{key}={value}", f"train.steps={value}", f"optim.lr={value}", f"train.device={value}"):
        try:
            parsed = parse_overrides([text])
        except ConfigError as error:
            assert str(error)
        else:
            assert set(parsed) <= set(key_types())

"""Fine-tuning options: the paper's Table 7 copied by hand, and overrides by the machinery of every other option."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
from hypothesis import given
from hypothesis import strategies as st

from electra.config.finetune import FinetuneConfig
from electra.config.keys import FINETUNE_ALIASES, describe, flatten, key_types
from electra.config.load import adjust, diff, parse_overrides, preset, to_toml
from electra.config.schema import ModelConfig, OptimConfig, TrainConfig
from electra.config.validate import validate
from electra.errors import ConfigError
from electra.finetune.paper_settings import settings, size_of

# size: learning rate, layer decay
TABLE_7 = {"small": (3e-4, 0.8), "base": (1e-4, 0.8), "large": (5e-5, 0.9)}
EPOCHS = dict.fromkeys(["cola", "sst2", "mrpc", "qqp", "mnli", "qnli", "wnli"], 3) | {"rte": 10, "stsb": 10}
EPOCHS |= {"squad1": 2, "squad2": 2}


@pytest.mark.parametrize("size", TABLE_7)
@pytest.mark.parametrize("task", EPOCHS)
def test_table_7(task: str, size: str) -> None:
    config = settings(task, size)
    assert (config.lr, config.layer_decay) == TABLE_7[size]
    assert config.epochs == EPOCHS[task]
    assert config.length == (512 if task.startswith("squad") else 128)
    assert (config.batch_size, config.weight_decay, config.warmup, config.dropout) == (32, 0.0, 0.1, 0.1)
    assert (config.select, config.loss, config.layer_decay_exponent) == ("last", "sum", "intended")
    validate(config)


def test_names_are_read_however_they_are_written() -> None:
    assert settings("STS-B", "small").epochs == settings("sts_b", "small").epochs == 10
    assert settings("SQuAD-1.1", "base") == settings("squad11", "base")


def test_kinds_that_the_paper_does_not_name() -> None:
    mine = settings("reviews", "small")
    assert (mine.epochs, mine.length) == (3, 128)
    assert mine == settings("reviews", "small", kind="classify") == settings("reviews", "small", kind="regress")
    assert (settings("faq", "small", kind="span").span_head, settings("squad2", "small").span_head) == (
        "plain",
        "joint",
    )
    assert (settings("faq", "small", kind="span").epochs, settings("faq", "small", kind="span").length) == (2, 512)
    assert (settings("chunk", "small", kind="tag").epochs, settings("chunk", "small", kind="tag").length) == (3, 256)


def test_defaults_are_small_and_the_released_questions() -> None:
    config = FinetuneConfig()
    assert config == settings("cola", "small")
    assert (config.doc_stride, config.max_query, config.max_answer) == (128, 64, 30)
    assert (config.beam, config.n_best, config.null_threshold) == (20, 20, -2.75)
    optim = OptimConfig()
    same = ("beta1", "beta2", "eps", "clip")
    assert [getattr(config, name) for name in same] == [getattr(optim, name) for name in same]
    types, train = key_types(FinetuneConfig), TrainConfig()
    for name in ("precision", "device", "compile"):
        assert types[name] == key_types()[f"train.{name}"] and getattr(config, name) == getattr(train, name)


@pytest.mark.parametrize(
    "name", ["tiny", "small", "small-plus", "base", "large", "large-1.75m", "bert-small", "bert-base", "bert-large"]
)
def test_sizes_of_presets(name: str) -> None:
    expected = next(size for size in ("tiny", "small", "base", "large") if size in name)
    assert size_of(preset(name).model) == expected


@pytest.mark.parametrize(
    ("width", "size"), [(64, "tiny"), (255, "tiny"), (512, "small"), (767, "small"), (800, "base"), (2048, "large")]
)
def test_sizes_between_presets(width: int, size: str) -> None:
    assert size_of(ModelConfig(width=width)) == size


def test_promise_20_unknown_size() -> None:
    with pytest.raises(ConfigError, match=r"size: 'bas' is not a size \(one of: tiny, .*; did you mean 'base'\?\)"):
        settings("cola", "bas")
    with pytest.raises(ConfigError, match=r"\(one of: tiny, small, base, large\)"):
        settings("cola", "zzz")


def test_layers_of_an_adjustment(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('epochs = 5\nlr = 1e-3\nlayer_decay_exponent = "official"\n')
    start = settings("rte", "base")
    config = adjust(start, file=path, overrides=["lr=2e-4", "max_train_rows=2_000", "select=best", "eval_every=10"])
    assert config == dataclasses.replace(
        start,
        epochs=5.0,
        lr=2e-4,
        layer_decay_exponent="official",
        max_train_rows=2000,
        select="best",
        eval_every=10,
    )
    assert type(config.epochs) is float
    assert diff(start, adjust(start, overrides=["seed=3"])) == [("seed", 0, 3)]
    assert adjust(start) == start


BAD = [
    ("learning_rate=1e-4", "learning_rate", "did you mean 'lr'?"),
    ("optim.lr=1e-4", "optim.lr", "did you mean 'lr'?"),
    ("max_seq_length=64", "max_seq_length", "did you mean 'length'?"),
    ("warmup_proportion=0.1", "warmup_proportion", "did you mean 'warmup'?"),
    ("epoch=3", "epoch", "did you mean 'epochs'?"),
    ("xyzzy=1", "xyzzy", "one of: lr, epochs, batch_size"),
    ("lr", "lr", "is not key=value (for example seed=1)"),
    ("lr=1 lr=2", "lr", "is given twice"),
    ("lr=fast", "lr", "is not a number"),
    ("batch_size=1.5", "batch_size", "is not a whole number"),
    ("loss=median", "loss", "one of: sum, mean; did you mean 'mean'?"),
    ("layer_decay_exponent=paper", "layer_decay_exponent", "one of: intended, official"),
    ("lr=0", "lr", "more than 0"),
    ("epochs=0", "epochs", "more than 0"),
    ("clip=0", "clip", "more than 0"),
    ("eps=0", "eps", "more than 0"),
    ("batch_size=0", "batch_size", "at least 1"),
    ("length=4", "length", "at least 8"),
    ("frozen_layers=-1", "frozen_layers", "at least 0"),
    ("weight_decay=-0.1", "weight_decay", "at least 0"),
    ("eval_every=-1", "eval_every", "at least 0"),
    ("log_every=0", "log_every", "at least 1"),
    ("max_train_rows=-5", "max_train_rows", "at least 0"),
    ("seed=-1", "seed", "at least 0"),
    ("doc_stride=0", "doc_stride", "at least 1"),
    ("max_query=0", "max_query", "at least 1"),
    ("max_answer=0", "max_answer", "at least 1"),
    ("beam=0", "beam", "at least 1"),
    ("n_best=0", "n_best", "at least 1"),
    ("layer_decay=0", "layer_decay", "above 0 up to 1"),
    ("layer_decay=1.1", "layer_decay", "above 0 up to 1"),
    ("warmup=1", "warmup", "from 0 and below 1"),
    ("warmup=100", "warmup", "is not a share"),
    ("dropout=1", "dropout", "from 0 and below 1"),
    ("beta1=1", "beta1", "from 0 and below 1"),
    ("beta2=1", "beta2", "from 0 and below 1"),
    ("select=best", "select", "eval_every 0 evaluates at the end only"),
]


@pytest.mark.parametrize(("overrides", "key", "fragment"), BAD)
def test_promise_20_bad_overrides(overrides: str, key: str, fragment: str) -> None:
    with pytest.raises(ConfigError) as caught:
        adjust(FinetuneConfig(), overrides=overrides.split(" "))
    line = str(caught.value)
    assert caught.value.exit_code == 2 and caught.value.key == key
    assert line.startswith(f"{key}: ") and fragment in line and "\n" not in line


@pytest.mark.parametrize(
    ("text", "key", "fragment"),
    [
        ("epochs = true", "epochs", "true is not a number"),
        ('lr = "1e-4"', "lr", '"1e-4" is not a number'),
        ("[optim]\nlr = 1", "optim", "no such key"),
        ("[train]\nsteps = 1", "train", "no such key"),
        ("train.steps = 1", "train", "no such key"),
        ("lr = ", "FILE", "is not valid TOML"),
    ],
)
def test_promise_20_bad_files(text: str, key: str, fragment: str, tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        adjust(FinetuneConfig(), file=path)
    assert str(caught.value).startswith(f"{key.replace('FILE', str(path))}: ") and fragment in str(caught.value)


def test_every_key_is_described() -> None:
    options = describe(FinetuneConfig)
    assert [option.key for option in options] == list(flatten(FinetuneConfig()))
    assert all(option.help.endswith(".") for option in options)
    by_key = {option.key: option for option in options}
    assert by_key["loss"].type == "sum|mean" and by_key["lr"].default == 3e-4
    assert by_key["lr"].help.startswith("Learning rate of the head")
    assert set(FINETUNE_ALIASES.values()) <= set(by_key)
    assert not set(FINETUNE_ALIASES) & set(by_key)


FREE: dict[str, st.SearchStrategy[Any]] = {
    "lr": st.floats(1e-300, 1e38),
    "epochs": st.floats(1e-300, 2.0**20),
    "seed": st.integers(0, 2**63 - 1),
    "null_threshold": st.floats(-1e38, 1e38),
    "max_train_rows": st.integers(0, 2**63 - 1),
}
FREE |= {
    key: st.sampled_from(get_args(kind))
    for key, kind in key_types(FinetuneConfig).items()
    if get_origin(kind) is Literal and key != "select"
}


@given(st.fixed_dictionaries({}, optional=FREE), st.sampled_from(["tiny", "small", "base", "large"]))
def test_toml_round_trip(changed: dict[str, Any], size: str) -> None:
    config = adjust(settings("rte", size), overrides=[f"{key}={value}" for key, value in changed.items()])
    flat = flatten(config)
    assert all(flat[key] == value for key, value in changed.items())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "finetune.toml"
        path.write_text(to_toml(config))
        assert adjust(FinetuneConfig(), file=path) == config


@given(st.text(max_size=40), st.text(max_size=40))
def test_no_override_text_does_anything_but_load_or_say_why(key: str, value: str) -> None:
    for text in (key, f"{key}={value}", f"lr={value}", f"batch_size={value}", f"loss={value}"):
        try:
            parsed = parse_overrides([text], FinetuneConfig)
        except ConfigError as error:
            assert str(error)
        else:
            assert set(parsed) <= set(key_types(FinetuneConfig))

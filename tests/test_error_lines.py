"""User's errors that no test of their room comes to: each is made by the fault that it names, and says what to do."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import huggingface_hub
import huggingface_hub.constants
import pytest
import task_files
import tiny_runs
import torch
import tuned_folders
from model_folders import make_run
from tiny_tuning import MINI, PLAIN, tiny_base, toy

from electra.bench import inference_speed, kernel_quality, prepare_speed, serve_load, start_speed
from electra.checkpoint import folder as run_folder
from electra.checkpoint.lengthening import data_of
from electra.cli import bench
from electra.config.validate import validate
from electra.errors import CheckpointError, ConfigError, DataError, Diverged, ElectraError, Resumable
from electra.finetune.seed_folder import read_seed
from electra.finetune.task_model import HeadSpec
from electra.finetune.trainer import Trial
from electra.finetune.unfinished import Unfinished
from electra.inference.corrupt import check_pair
from electra.interop import hub, huggingface, push
from electra.interop.models import load_model
from electra.interop.tensor_bundle import Bundle, Entry
from electra.manifest import Manifest, commit_folder
from electra.report.plots import panels
from electra.report.reading import read_run
from electra.report.rendering import require_drawing
from electra.reproduce.experiments import experiment
from electra.reproduce.plan import plan
from electra.reproduce.scale import SCALES
from electra.reproduce.scorer import Scorer
from electra.reproduce.workers import _failure
from electra.shards.build import prepare
from electra.shards.locks import stoppable
from electra.shards.options import PrepareOptions
from electra.shards.pool import _result
from electra.speedrun.record import read as read_records
from electra.tasks.features import encode_sequences
from electra.tasks.rows import Example
from electra.tasks.table_rows import table_rows
from electra.tokenizer.codec import Tokenizer
from electra.train.memory import advice

Act = Callable[[Path, pytest.MonkeyPatch], Any]


def written(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def bench_without_texts(tmp: Path, patch: pytest.MonkeyPatch) -> None:
    arguments = ["--model", "none", "--texts", str(written(tmp / "texts.txt", "\n \n"))]
    inference_speed.command.main(arguments, standalone_mode=False)


def workers_that_matter(tmp: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(prepare_speed, "prepare", lambda paths, vocab, out, *, workers: (1.0, 1.0))
    patch.setattr(prepare_speed, "loop_seconds", lambda *_, **__: 1.0)
    patch.setattr(prepare_speed, "digests", lambda folder: {folder.name: ""})
    texts, vocab = written(tmp / "texts" / "a.txt", "text"), written(tmp / "vocab.txt", "")
    prepare_speed.command.main([str(texts.parent), str(vocab)], standalone_mode=False)


def prepare_that_fails(tmp: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setenv("PYTHONPATH", str(tiny_runs.ROOT / "src"))
    prepare_speed.prepare([tmp / "none.txt"], tmp / "vocab.txt", tmp / "out", workers=1)


def served_without_texts(tmp: Path, patch: pytest.MonkeyPatch) -> None:
    async def ask() -> None:
        transport = httpx.MockTransport(lambda request: httpx.Response(200, json={"verbs": ["encode"]}))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            await serve_load._request(client, 8)

    asyncio.run(ask())


def seed_without_results(tmp: Path, patch: pytest.MonkeyPatch) -> None:
    with commit_folder(tmp / "seed-0") as aside:
        written(aside / "other.json", {})
    read_seed(tmp / "seed-0")


def hub_model_without_weights(tmp: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    patch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(tmp))
    hub._downloaded(Path("someone/model"), hub.HubName("someone/model", "main"))


class Hub:
    """The hub's client, as far as a push uses it: an open repository, or none that answers."""

    public = True

    def __init__(self, **about: str) -> None:
        pass

    def model_info(self, name: str) -> Any:
        if not Hub.public:
            raise OSError("no route\nto the host")
        return type("Info", (), {"private": False})


def pushed(tmp: Path, patch: pytest.MonkeyPatch, *, public: bool) -> None:
    patch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    patch.setattr(huggingface_hub, "HfApi", Hub)
    patch.setattr(Hub, "public", public)
    push.push(push.Push(folder=tmp, repository="someone/model", public=False, files=(), size=0))


def sliced_tensor(tmp: Path, patch: pytest.MonkeyPatch) -> None:
    entry = Entry(dtype=1, shape=(2,), shard=0, offset=0, size=8, crc=0, sliced=True)
    Bundle(tmp / "model.ckpt", {"w": entry}, 1).read("w")


def another_rotation(tmp: Path, patch: pytest.MonkeyPatch) -> None:
    huggingface._check_rotation(torch.zeros(8, 4), tmp / "config.json")


def folder_without_tasks(tmp: Path, patch: pytest.MonkeyPatch) -> None:
    task_files.rte(tmp / "glue")
    one = replace(experiment("lambda"), tasks=("cola",))
    _ = Scorer(experiment=one, scale=SCALES["cpu-smoke"], out=tmp, glue=tmp / "glue").tasks


def stopped_by_hand(tmp: Path, patch: pytest.MonkeyPatch) -> None:
    with stoppable(tmp / "data"):
        raise KeyboardInterrupt


def worker_that_says_no(tmp: Path, patch: pytest.MonkeyPatch) -> None:
    future: Future[Any] = Future()
    future.set_result("texts/a.txt: is not text")
    _result(future)


def empty_text(tmp: Path, patch: pytest.MonkeyPatch, **options: Any) -> None:
    prepare([str(written(tmp / "empty.txt", ""))], out=tmp / "data", options=PrepareOptions(), workers=1, **options)


def empty_text_with_a_vocabulary(tmp: Path, patch: pytest.MonkeyPatch) -> None:
    data = tiny_runs.make_data(tmp / "first")
    empty_text(tmp, patch, vocab=data / "tokenizer")


def too_little_text(tmp: Path, patch: pytest.MonkeyPatch) -> None:
    text = written(tmp / "text.txt", "a b c d e f g h i j k l m n o p q r s t u v w x y z\n\n")
    options = PrepareOptions(vocab_size=300, tokenizer="bytes", min_chars=1)
    prepare([str(text)], out=tmp / "data", options=options, workers=1)


def words_for_numbers(tmp: Path, patch: pytest.MonkeyPatch) -> None:
    rows = [Example(id="1", text="a", label="high")]
    encode_sequences(rows, tokenizer=Tokenizer(tuned_folders.VOCAB), task_kind="regress", length=8)


def parquet_without_its_package(tmp: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setitem(sys.modules, "pyarrow", None)
    list(table_rows(written(tmp / "rows.parquet", "PAR1")))


def no_room_for_the_model(tmp: Path, patch: pytest.MonkeyPatch) -> None:
    with advice(tiny_runs.small_config(), None, lambda: None):  # type: ignore[arg-type]  # not asked for it
        raise MemoryError


def nothing_to_prepare(tmp: Path, patch: pytest.MonkeyPatch) -> None:
    prepare_speed.command.main([str(tmp), str(tmp / "vocab.txt")], standalone_mode=False)


def run_that_ends_at_once(tmp: Path, patch: pytest.MonkeyPatch) -> None:
    program = "import sys; sys.exit('no data')"
    with subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE) as process:
        start_speed._wait(process, lambda: False)


def nothing_draws(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("electra.cli.bench.find_spec", lambda name: None)
    patch.setattr("importlib.util.find_spec", lambda name: None)
    patch.setitem(sys.modules, "matplotlib", None)


def bench_plot(tmp: Path, patch: pytest.MonkeyPatch) -> None:
    nothing_draws(patch)
    bench.command.main(["--plot", str(tmp / "speed.svg")], standalone_mode=False)


def chart(tmp: Path, patch: pytest.MonkeyPatch) -> None:
    nothing_draws(patch)
    with panels("name", width=1.0, height=1.0, label="a curve"):
        pass


def page(tmp: Path, patch: pytest.MonkeyPatch) -> None:
    nothing_draws(patch)
    require_drawing("electra report")


def two_discriminators(tmp: Path, patch: pytest.MonkeyPatch) -> None:
    make_run(tmp / "run")
    model = load_model(tmp / "run")
    check_pair(model, model)


def hub_that_fails(tmp: Path, patch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: str, **options: Any) -> None:
        raise OSError("no route\nto the host")

    patch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    patch.setattr(huggingface_hub, "snapshot_download", fail)
    hub._downloaded(Path("someone/model"), hub.HubName("someone/model", "main"))


CASES: dict[str, tuple[Act, type[ElectraError], str]] = {
    "bench: no texts": (bench_without_texts, DataError, r"texts.txt: has no text \(give a file with a text a line\)"),
    "bench: workers": (workers_that_matter, ElectraError, "the number of workers changes the prepared data"),
    "bench: prepare": (prepare_that_fails, ElectraError, "^/.*vocab.txt: cannot be read"),
    "bench: served": (served_without_texts, ConfigError, "neither detects nor predicts from one text"),
    "run.json: data": (
        lambda tmp, _: run_folder._known_data(written(tmp / "run.json", {"format": 1}).parent),
        CheckpointError, r"run.json: cannot be read: it has no data_sha256 \(restore it",
    ),
    "run.json: folder": (
        lambda tmp, _: data_of(written(tmp / "run.json", {"format": 1}).parent),
        DataError, r"run.json: does not say where the data is \(give it with --data\)",
    ),
    "seed: results": (seed_without_results, CheckpointError, "manifest.json: does not list results.json"),
    "hub: weights": (hub_model_without_weights, CheckpointError, "pickles are never read .*try someone/model@refs/pr"),
    "push: public": (
        lambda tmp, patch: pushed(tmp, patch, public=True), ConfigError, "model exists and is public .*add --public",
    ),
    "push: network": (
        lambda tmp, patch: pushed(tmp, patch, public=False), CheckpointError, "push failed: OSError: no route .*hf",
    ),
    "bundle: slices": (sliced_tensor, CheckpointError, "w is cut into slices, which is not read here"),
    "rotary: table": (another_rotation, CheckpointError, "is not the usual one, and only that is supported"),
    "manifest: name": (
        lambda tmp, _: Manifest(folder=tmp, files={}).verify("a"), CheckpointError, r"does not list a \(restore it",
    ),
    "reproduce: budget": (
        lambda tmp, _: plan(experiment("small-models"), SCALES["cpu-smoke"], vocab_size=200, budget="minutes"),
        ConfigError, "--budget: small-models scores checkpoints of a run, and minutes do not say which",
    ),
    "reproduce: tasks": (folder_without_tasks, DataError, "glue: holds none of .*another folder, or no --glue"),
    "reproduce: stopped": (
        lambda tmp, _: (_ for _ in ()).throw(_failure("rate-15", 75, tmp)),
        Resumable, "rate-15 was stopped; run the same command",
    ),
    "prepare: stopped": (stopped_by_hand, Resumable, "data: stopped; finished parts are kept"),
    "prepare: worker": (worker_that_says_no, DataError, r"texts/a.txt: is not text"),
    "prepare: empty": (empty_text, DataError, "corpus: is empty: no text in any source"),
    "prepare: empty, --vocab": (empty_text_with_a_vocabulary, DataError, "corpus: is empty: no text in any source"),
    "prepare: little": (too_little_text, DataError, "corpus: too little text to train a vocabulary on"),
    "records: format": (
        lambda tmp, _: read_records(written(tmp / "records.jsonl", {"format": 99})),
        DataError, r"records.jsonl, line 1: is no record of format \d+ \(give a file that `electra speedrun",
    ),
    "task: numbers": (words_for_numbers, DataError, "regression needs a number as the label of every row"),
    "task: Parquet": (parquet_without_its_package, ConfigError, r"rows.parquet: reading Parquet needs: .* -m pip"),
    "memory: model": (no_room_for_the_model, ElectraError, r"out of memory: the model itself does not fit \(make"),
    "bench: no corpus": (nothing_to_prepare, DataError, r"no file matches \*.txt"),
    "bench: run": (run_that_ends_at_once, DataError, "electra pretrain: did not come to a step: no data"),
    "bench: kernels": (
        lambda tmp, _: kernel_quality.train({"plain": [sys.executable, "-c", "raise SystemExit(3)"]}),
        ElectraError, "plain: ended with code 3",
    ),
    "bench: plot": (bench_plot, ConfigError, r"--plot: needs matplotlib \(\S+ -m pip install"),
    "report: chart": (chart, ConfigError, r"a chart: needs matplotlib \(\S+ -m pip install"),
    "report: page": (page, ConfigError, r"electra report: needs jinja2 \(\S+ -m pip install"),
    "report: run": (lambda tmp, _: read_run(tmp), DataError, "has no metrics.jsonl and config.toml .*give a run"),
    "config: seed": (
        lambda tmp, _: validate(replace(tiny_runs.small_config(), seed=2**63)),
        ConfigError, "seed: 9223372036854775808 is too large",
    ),
    "config: rotary": (
        lambda tmp, _: tiny_runs.small_config("model.rotary=true", "model.width=63", "model.heads=1"),
        ConfigError, "model.rotary: turns pairs of numbers, and a head has 63",
    ),
    "detect: generator": (two_discriminators, CheckpointError, "is not a generator: it has no masked-token head"),
    "hub: network": (hub_that_fails, CheckpointError, "its download failed: OSError: no route .*give a folder"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_promise_20_an_error_names_what_and_how_to_mend_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    act, kind, message = CASES[name]
    with pytest.raises(kind, match=message) as raised:
        act(tmp_path, monkeypatch)
    assert "\n" not in str(raised.value)


def trial(lr: float = 1e-3, width: int = 0) -> Trial:
    base = tiny_base(MINI)
    features, labels = toy("classify", 16)
    spec = HeadSpec(kind="classify", labels=(*labels, "other") if width else labels)
    config = replace(PLAIN, lr=lr)
    return Trial(
        base.embeddings, base.encoder, spec, features, config=config, seed=0, pad_id=0, device=torch.device("cpu")
    )


def test_promise_12_a_seed_whose_gradients_are_never_finite_diverges() -> None:
    one = trial()
    with torch.no_grad():
        one.network.head.out.weight.fill_(float("nan"))  # type: ignore[union-attr]
    one.advance()
    with pytest.raises(Diverged, match=r"seed 0, step 1: every gradient since the last reading .*lower lr"):
        one.read_loss()


def test_promise_20_a_seed_of_another_model_does_not_go_on(tmp_path: Path) -> None:
    kept = Unfinished(tmp_path, {})
    kept.save(trial())
    with pytest.raises(CheckpointError, match=r"is not of this model: .*remove .*unfinished"):
        kept.load(trial(width=1))

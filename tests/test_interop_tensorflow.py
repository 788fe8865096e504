"""TensorFlow checkpoints: one that TensorFlow wrote, ones written here by the format's description, damaged ones."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
import tensorflow_checkpoint as written
import torch
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from model_folders import VOCAB

from electra.checkpoint.store import checkpoint_path
from electra.checkpoint.tensors import read_tensors
from electra.cli import main
from electra.errors import CheckpointError, ConfigError, DataError
from electra.interop.crc32c import crc32c, masked
from electra.interop.models import load_model
from electra.interop.snappy import uncompress
from electra.interop.tensor_bundle import Bundle, checkpoint_prefix, read_bundle
from electra.interop.transfer import import_model
from electra.tokenizer.codec import Tokenizer

GOLDEN = Path(__file__).parent / "golden" / "tensorflow"
Arrays = dict[str, np.ndarray]
CODES = {"float32": 1, "float64": 2, "int32": 3, "int64": 9, "float16": 19}


# A writer, after the comments of TensorFlow's table format and tensor_bundle.proto.


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value) if value else b""
    return varint(number << 3 | 2) + varint(len(value)) + value


def entry(array: np.ndarray, *, shard: int, offset: int, code: int) -> bytes:
    shape = b"".join(field(2, field(1, size)) for size in array.shape)
    data = array.tobytes()
    return (
        field(1, code)
        + field(2, shape)
        + field(3, shard)
        + field(4, offset)
        + field(5, len(data))
        + varint(6 << 3 | 5)
        + masked(crc32c(data)).to_bytes(4, "little")
    )


def squeezed(data: bytes) -> bytes:
    """Snappy's format, with copies wherever eight bytes came before."""
    out, at, start = bytearray(varint(len(data))), 0, 0

    def literal(piece: bytes) -> None:
        while piece:
            part, piece = piece[:256], piece[256:]
            size = len(part) - 1
            out.extend(bytes([size << 2]) if size < 60 else bytes([60 << 2, size]))
            out.extend(part)

    while at < len(data):
        place = data.rfind(data[at : at + 8], 0, at) if at + 8 <= len(data) else -1
        if place < 0 or at - place > 65535:
            at += 1
            continue
        literal(data[start:at])
        length = next(n for n in range(min(64, len(data) - at), 0, -1) if data[place : place + n] == data[at : at + n])
        out.extend(bytes([length - 1 << 2 | 2]) + (at - place).to_bytes(2, "little"))
        at += length
        start = at
    literal(data[start:])
    return bytes(out)


def block(pairs: Iterable[tuple[bytes, bytes]], *, every: int = 4) -> bytes:
    out, before, restarts = bytearray(), b"", []
    for number, (key, value) in enumerate(pairs):
        shared = 0
        if number % every == 0:
            restarts.append(len(out))
        else:
            while shared < min(len(key), len(before)) and key[shared] == before[shared]:
                shared += 1
        out += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        before = key
    for place in [*restarts, len(restarts)]:
        out += place.to_bytes(4, "little")
    return bytes(out)


def write(
    prefix: Path, arrays: Arrays, *, shards: int = 1, compress: bool = False, codes: Arrays | None = None
) -> None:
    """A checkpoint; `codes` are TensorFlow's dtypes where NumPy has no such dtype."""
    content = [bytearray() for _ in range(shards)]
    pairs = [(b"", field(1, shards) + field(3, field(1, 1)))]
    for number, (name, array) in enumerate(sorted(arrays.items())):
        own = content[number % shards]
        code = int((codes or {}).get(name, CODES.get(str(array.dtype), 0)))
        pairs.append((name.encode(), entry(array, shard=number % shards, offset=len(own), code=code)))
        own += array.tobytes()
    table, handles = bytearray(), []

    def add(content: bytes) -> bytes:
        kind = bytes([int(compress)])
        stored = squeezed(content) if compress else content
        handle = varint(len(table)) + varint(len(stored))
        table.extend(stored + kind + masked(crc32c(stored + kind)).to_bytes(4, "little"))
        return handle

    for first in range(0, len(pairs), 7):
        handles.append((pairs[first : first + 7][-1][0], add(block(pairs[first : first + 7]))))
    footer = add(block([])) + add(block(handles, every=1))
    magic = 0xDB4775248B80FB57
    table += footer.ljust(40, b"\0") + magic.to_bytes(8, "little")
    prefix.with_name(prefix.name + ".index").write_bytes(table)
    for number, own in enumerate(content):
        prefix.with_name(f"{prefix.name}.data-{number:05d}-of-{shards:05d}").write_bytes(own)


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    """A folder as google-research hands one out: the checkpoint, and the vocabulary beside it."""
    shutil.copytree(GOLDEN, tmp_path / "electra_small")
    (tmp_path / "electra_small" / "vocab.txt").write_text("".join(token + "\n" for token in VOCAB))
    return tmp_path / "electra_small"


def same(bundle: Bundle, arrays: Arrays) -> None:
    assert bundle.entries.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(bundle.read(name), array.astype(np.float32))


def test_a_checkpoint_that_tensorflow_wrote_is_read_exactly() -> None:
    prefix = checkpoint_prefix(GOLDEN)
    assert prefix == GOLDEN / "model.ckpt-1000"
    same(read_bundle(prefix), written.variables())


def test_the_writer_here_writes_as_tensorflow_does(tmp_path: Path) -> None:
    write(tmp_path / "own", written.variables())
    data = (GOLDEN / "model.ckpt-1000.data-00000-of-00001").read_bytes()
    assert (tmp_path / "own.data-00000-of-00001").read_bytes() == data
    assert read_bundle(tmp_path / "own").entries == read_bundle(GOLDEN / "model.ckpt-1000").entries


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("shards", [1, 3])
def test_shards_compression_and_dtypes(tmp_path: Path, shards: int, compress: bool) -> None:
    random = np.random.default_rng(0)
    arrays: Arrays = {f"scope/layer_{n}/kernel": random.normal(size=(n, 3)).astype(np.float32) for n in range(1, 40)}
    arrays |= {
        "double": random.normal(size=5),
        "half": random.normal(size=(2, 2)).astype(np.float16),
        "step": np.array(7, np.int64),
        "empty": np.zeros((0, 4), np.float32),
        "brain": np.array([0x3F80, 0xC000], np.uint16),
    }
    write(tmp_path / "m", arrays, shards=shards, compress=compress, codes={"brain": np.array(14)})
    arrays["brain"] = np.array([1.0, -2.0])
    same(read_bundle(tmp_path / "m"), arrays)


@given(st.binary(max_size=600).map(lambda data: data + data[: len(data) // 2] * 3))
def test_snappy_round_trip(data: bytes) -> None:
    assert uncompress(squeezed(data), limit=len(data)) == data
    if data:
        with pytest.raises(ValueError, match="more than"):
            uncompress(squeezed(data), limit=len(data) - 1)


def test_snappy_by_hand() -> None:
    assert uncompress(bytes([5, 0, ord("a"), 4 - 4 << 2 | 1, 1]), limit=9) == b"aaaaa", "a copy of what it writes"
    for wrong in (b"", b"\x05", b"\x05\x00", bytes([5, 1, 1]), bytes([1, 4 << 2, 1]), b"\xff\xff\xff\xff\xff"):
        with pytest.raises(ValueError, match="compressed"):
            uncompress(wrong, limit=1 << 40)


def test_crc_by_hand() -> None:
    assert crc32c(b"123456789") == 0xE3069283 and crc32c(b"") == 0, "the published check value"
    assert crc32c(bytes(32)) == 0x8A9136AA and crc32c(b"\xff" * 32) == 0x62A8AB43, "RFC 3720"
    block = bytes(range(256)) * 150
    register = 0xFFFFFFFF
    for byte in block:
        register ^= byte
        for _ in range(8):
            register = register >> 1 ^ (0x82F63B78 if register & 1 else 0)
    assert crc32c(block) == register ^ 0xFFFFFFFF, "many pieces side by side, joined"


def test_import_makes_a_run_of_both_networks(golden: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["import", str(golden), "--out", str(tmp_path / "run")])
    assert done.exit_code == 0, done.output
    assert "2 layers x 64, objective rtd" in done.output and "missing" not in done.output
    theirs = {name: torch.from_numpy(np.asarray(array, np.float32)) for name, array in written.variables().items()}
    ours = read_tensors(checkpoint_path(tmp_path / "run", 0) / "model.safetensors")
    layer, small = "electra/encoder/layer_1", "generator/encoder/layer_0"
    expected = {
        "embeddings.token.weight": theirs["electra/embeddings/word_embeddings"],
        "embeddings.segment.weight": theirs["electra/embeddings/token_type_embeddings"],
        "embeddings.norm.bias": theirs["electra/embeddings/LayerNorm/beta"],
        "discriminator.project.weight": theirs["electra/embeddings_project/kernel"].T,
        "discriminator.layers.1.attention.qkv.weight": torch.cat(
            [theirs[f"{layer}/attention/self/{part}/kernel"].T for part in ("query", "key", "value")]
        ),
        "discriminator.layers.1.attention.out.weight": theirs[f"{layer}/attention/output/dense/kernel"].T,
        "discriminator.layers.1.attention_norm.weight": theirs[f"{layer}/attention/output/LayerNorm/gamma"],
        "discriminator.layers.1.up.weight": theirs[f"{layer}/intermediate/dense/kernel"].T,
        "discriminator.layers.1.down.bias": theirs[f"{layer}/output/dense/bias"],
        "discriminator_head.score.weight": theirs["discriminator_predictions/dense_1/kernel"].T,
        "generator.layers.0.up.weight": theirs[f"{small}/intermediate/dense/kernel"].T,
        "generator_head.dense.weight": theirs["generator_predictions/dense/kernel"].T,
        "generator_head.norm.weight": theirs["generator_predictions/LayerNorm/gamma"],
        "generator_head.bias": theirs["generator_predictions/output_bias"],
    }
    for name, tensor in expected.items():
        assert torch.equal(ours[name], tensor), name
    numbers = sum(tensor.numel() for name, tensor in theirs.items() if "adam" not in name and name != "global_step")
    assert sum(tensor.numel() for tensor in ours.values()) == numbers, "every variable has its place"
    loaded = load_model(tmp_path / "run")
    assert loaded.config.heads == 1 and loaded.probabilities(torch.tensor([[2, 9, 3]])).shape == (1, 3)
    assert load_model(tmp_path / "run", part="generator").config.width == written.GENERATOR_WIDTH


def test_a_checkpoint_is_found_by_folder_prefix_or_index(golden: Path, tmp_path: Path) -> None:
    prefix = golden / "model.ckpt-1000"
    assert {checkpoint_prefix(path) for path in (golden, prefix, Path(f"{prefix}.index"))} == {prefix}
    assert checkpoint_prefix(tmp_path) is None and checkpoint_prefix(tmp_path / "none") is None
    shutil.copy(f"{prefix}.index", golden / "model.ckpt-2000.index")
    with pytest.raises(CheckpointError, match="several TensorFlow checkpoints: model.ckpt-1000, model.ckpt-2000"):
        checkpoint_prefix(golden)
    (golden / "checkpoint").write_text('model_checkpoint_path: "/elsewhere/model.ckpt-1000"\n')
    assert checkpoint_prefix(golden) == prefix


def test_a_bert_of_google_research_is_an_mlm_run(tmp_path: Path) -> None:
    arrays = {name: array for name, array in written.variables().items() if not name.startswith("generator/")}
    arrays = {name: array for name, array in arrays.items() if not name.startswith("discriminator_predictions")}
    arrays["generator_predictions/dense/kernel"] = written.value("x", written.WIDTH, written.EMBEDDING)
    write(tmp_path / "bert", arrays)
    Tokenizer(VOCAB).save(tmp_path)
    done = import_model(tmp_path / "bert", tmp_path / "run")
    assert done.config.objective.name == "mlm" and done.missing == ()


def test_promise_20_what_cannot_be_imported_is_named(golden: Path, tmp_path: Path) -> None:
    def refused(error: type[Exception], match: str, path: Path = golden, generator: Path | None = None) -> None:
        with pytest.raises(error, match=match):
            import_model(path, tmp_path / "run", generator=generator)
        assert not (tmp_path / "run").exists()

    refused(ConfigError, "holds both networks", generator=golden)
    variables = written.variables()
    for gone, match in (
        ("electra/encoder/layer_1/output/dense/bias", "lacks the variable electra/encoder/layer_1/output/dense/bias"),
        ("electra/embeddings/word_embeddings", "lacks the variable electra/embeddings/word_embeddings"),
    ):
        write(golden / "model.ckpt-1000", {name: array for name, array in variables.items() if name != gone})
        refused(CheckpointError, match)
    write(golden / "model.ckpt-1000", {"other/kernel": np.zeros((2, 2), np.float32)})
    refused(CheckpointError, "has no variables electra/encoder")
    write(golden / "model.ckpt-1000", variables | {"electra/encoder/layer_9/x": np.zeros(1, np.float32)})
    refused(CheckpointError, r"has layers \[0, 1, 9\]")
    write(golden / "model.ckpt-1000", variables)
    (golden / "vocab.txt").write_text("".join(token + "\n" for token in [*VOCAB, "more"]))
    refused(DataError, "76 entries, but its token table 75 rows")
    (golden / "vocab.txt").unlink()
    refused(CheckpointError, "no vocab.txt beside the checkpoint")


def test_promise_20_damaged_data_is_named(golden: Path) -> None:
    data = golden / "model.ckpt-1000.data-00000-of-00001"
    name = "electra/embeddings/word_embeddings"
    entry = read_bundle(golden / "model.ckpt-1000").entries[name]
    content = bytearray(data.read_bytes())
    content[entry.offset] ^= 1
    data.write_bytes(content)
    with pytest.raises(CheckpointError, match=f"{name} is damaged: its CRC differs"):
        read_bundle(golden / "model.ckpt-1000").read(name)
    data.write_bytes(content[: entry.offset + 4])
    with pytest.raises(CheckpointError, match=f"ends before {name}"):
        read_bundle(golden / "model.ckpt-1000").read(name)
    data.unlink()
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_bundle(golden / "model.ckpt-1000").read(name)


@given(st.data())
def test_promise_20_an_index_of_any_bytes_is_refused_or_read(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Cut, flipped or made up: one kind of error, never a crash, never memory for what the file only claims."""
    content = bytearray((GOLDEN / "model.ckpt-1000.index").read_bytes())
    way = data.draw(st.sampled_from(["cut", "flip", "any"]))
    at = data.draw(st.integers(0, len(content) - 1))
    if way == "cut":
        content = content[:at]
    elif way == "flip":
        content[at] ^= data.draw(st.integers(1, 255))
    else:
        content = bytearray(data.draw(st.binary(max_size=300))) + content[-48:]
    folder = tmp_path_factory.mktemp("index")
    (folder / "m.index").write_bytes(content)
    try:
        read_bundle(folder / "m")
    except CheckpointError as error:
        assert "m.index" in str(error)
    else:
        assert way == "flip" and at >= len(content) - 48, "only unused bytes of the footer are not covered by a CRC"


@pytest.mark.parametrize(
    ("shape", "match"),
    [((1 << 40, 1 << 20), "but its shape needs"), ((3,), "but its shape needs 12")],
)
def test_promise_20_a_shape_that_does_not_fit_its_bytes(tmp_path: Path, shape: tuple[int, ...], match: str) -> None:
    array = np.zeros(2, np.float32)
    good = entry(array, shard=0, offset=0, code=1)
    wrong = good.replace(field(2, field(2, field(1, 2))), field(2, b"".join(field(2, field(1, n)) for n in shape)))
    assert wrong != good
    stored = block([(b"", field(1, 1)), (b"x", wrong)])
    table = stored + b"\0" + masked(crc32c(stored + b"\0")).to_bytes(4, "little")
    index = block([(b"x", varint(0) + varint(len(stored)))])
    handle = varint(len(table)) + varint(len(index))
    table += index + b"\0" + masked(crc32c(index + b"\0")).to_bytes(4, "little")
    (tmp_path / "m.index").write_bytes(
        table + (b"\0\0" + handle).ljust(40, b"\0") + 0xDB4775248B80FB57.to_bytes(8, "little")
    )
    (tmp_path / "m.data-00000-of-00001").write_bytes(array.tobytes())
    with pytest.raises(CheckpointError, match=match):
        read_bundle(tmp_path / "m").read("x")

"""Texts with their vectors as files: .npy (vectors only), .jsonl or .parquet (both)."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from electra.errors import ConfigError, pip_install
from electra.fsio import write_atomic
from electra.terminal import json_text

FORMATS = (".npy", ".jsonl", ".parquet")


def require_format(path: Path) -> None:
    """Refuse a file whose format could not be written, before anything is computed for it."""
    if path.suffix not in FORMATS:
        raise ConfigError("--out", f"{path.name!r} does not say what to write", fix=f"end it in {' or '.join(FORMATS)}")
    if path.suffix == ".parquet":
        require_parquet()


def require_parquet() -> None:
    """Refuse to write Parquet without the package for it."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError as error:
        raise ConfigError("--out", "writing Parquet needs pyarrow", fix=pip_install("data")) from error


def write_vectors(path: Path, texts: Sequence[str], vectors: NDArray[np.float32]) -> None:
    """Put the vectors at `path`, one a text, in the format that its name ends in."""
    require_format(path)
    content = io.BytesIO()
    if path.suffix == ".npy":
        np.save(content, vectors, allow_pickle=False)
    elif path.suffix == ".jsonl":
        for line in json_lines(texts, vectors):
            content.write(line.encode() + b"\n")
    else:
        import pyarrow
        import pyarrow.parquet

        width = vectors.shape[1]
        values = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(vectors.reshape(-1)), width)
        pyarrow.parquet.write_table(pyarrow.table({"text": pyarrow.array(texts), "vector": values}), content)
    write_atomic(path, content.getvalue())


def json_lines(texts: Sequence[str], vectors: NDArray[np.float32]) -> Iterator[str]:
    """`{"text": ..., "vector": [...]}` of each text; the numbers read back to the same fp32 ones."""
    for text, vector in zip(texts, vectors, strict=True):
        numbers = ", ".join(np.format_float_scientific(value, unique=True, trim="-") for value in vector)
        yield f'{{"text": {json_text(text)}, "vector": [{numbers}]}}'

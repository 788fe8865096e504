"""The files that make a `transformers` folder one of `sentence-transformers`: which modules, in which order."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from electra import __version__
from electra.fsio import write_json

Pooling = Literal["mean", "cls"]
"""Of the last hidden states: the mean over all tokens, [CLS] and [SEP] included, or that of [CLS]."""

MODULES = "modules.json"
_POOLING_FOLDER = "1_Pooling"


def write_modules(folder: Path, *, width: int, length: int, pooling: Pooling) -> None:
    """Put what `SentenceTransformer(folder)` reads beside config.json, model.safetensors and the tokenizer."""
    names = {"": "Transformer", _POOLING_FOLDER: "Pooling"}
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{name}"}
        for number, (path, name) in enumerate(names.items())
    ]
    write_json(folder / MODULES, modules)
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": length, "do_lower_case": False})
    versions = {"__version__": {"electra": __version__}, "prompts": {}, "similarity_fn_name": "cosine"}
    write_json(folder / "config_sentence_transformers.json", versions)
    modes = {"pooling_mode_cls_token": pooling == "cls", "pooling_mode_mean_tokens": pooling == "mean"}
    write_json(folder / _POOLING_FOLDER / "config.json", {"word_embedding_dimension": width, **modes})

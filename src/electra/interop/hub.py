"""Names of models on the Hugging Face hub, such as google/electra-small-discriminator, as folders.

The local hub cache comes first and needs neither the network nor a package. What is not there is downloaded by
`huggingface_hub`, where that is installed and allowed to (HF_HUB_OFFLINE forbids it).
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

from electra.errors import CheckpointError, pip_install
from electra.interop.bundled import bundled_folder, is_bundled
from electra.manifest import FILE as MANIFEST
from electra.progress import say

MAIN = "main"
FILES = (
    "config.json",
    "model*.safetensors",
    "model.safetensors.index.json",
    "vocab.txt",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    MANIFEST,
)
"""What is downloaded of a model: never a pickle."""
_PART = r"[A-Za-z0-9_](?:[\w.-]*[A-Za-z0-9_])?"
_NAME = re.compile(rf"({_PART})/({_PART})(?:@([\w./-]+))?", re.ASCII)


class HubName(NamedTuple):
    """owner/name, and the revision: a branch, a tag, a commit or refs/pr/N."""

    repository: str
    revision: str = MAIN


def hub_name(text: str) -> HubName | None:
    """What `owner/name` or `owner/name@revision` names; None for anything else."""
    found = _NAME.fullmatch(text)
    if found is None or ".." in text:
        return None
    return HubName(f"{found[1]}/{found[2]}", found[3] or MAIN)


def local_folder(path: Path) -> Path:
    """The path itself, the folder of a model of this package, or for a hub name that model's folder in the local hub
    cache, downloaded if need be.

    A path whose first part is a folder here is a local one, so a typing error in it is never sent to the hub.
    """
    if is_bundled(path):
        return bundled_folder(path)
    name = hub_name(str(path))
    if name is None or path.exists() or Path(path.parts[0]).exists():
        return path
    return cached(name) or _downloaded(path, name)


def cached(name: HubName) -> Path | None:
    """The folder of a model in the hub cache; None where its configuration or its weights are not there."""
    model = cache_folder() / f"models--{name.repository.replace('/', '--')}"
    revision = name.revision
    if (model / "refs" / revision).is_file():
        revision = (model / "refs" / revision).read_text(encoding="utf-8", errors="replace").strip()
    folder = model / "snapshots" / revision
    if not re.fullmatch(r"\w+", revision) or not (folder / "config.json").is_file():
        return None
    return folder if any(folder.glob("*.safetensors")) else None


def cache_folder() -> Path:
    """Where huggingface_hub keeps what it downloaded."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if os.environ.get(variable):
            return Path(os.environ[variable]).expanduser()
    home = os.environ.get("HF_HOME")
    if home:
        return Path(home).expanduser() / "hub"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "huggingface" / "hub"


def _downloaded(path: Path, name: HubName) -> Path:
    absent = f"is no folder here, and not in the local hub cache ({cache_folder()})"
    try:
        from huggingface_hub import constants, snapshot_download
    except ImportError as error:
        fix = f"a download needs: {pip_install('hf')}"
        raise CheckpointError(path, absent, fix=fix) from error
    if constants.HF_HUB_OFFLINE:
        raise CheckpointError(path, absent, fix="HF_HUB_OFFLINE forbids a download; unset it, or give a folder")
    say(f"{path}: not in the local hub cache, downloading it from {constants.ENDPOINT}")
    try:
        folder = Path(snapshot_download(name.repository, revision=name.revision, allow_patterns=list(FILES)))
    except Exception as error:  # whatever the network or the hub comes up with
        first = next(iter(str(error).strip().splitlines()), "no reason given")
        reason = f"{type(error).__name__}: {first}"
        raise CheckpointError(path, f"{absent}; its download failed: {reason}", fix="give a folder") from error
    if not any(folder.glob("*.safetensors")):
        reason = "has no model.safetensors on the hub, and pickles are never read"
        fix = f"try {path}@refs/pr/N, a pull request that adds it, or save_pretrained it to a folder with transformers"
        raise CheckpointError(path, reason, fix=fix)
    return folder

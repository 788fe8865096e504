"""An exported folder to the Hugging Face hub, only when asked; a new repository is private by default."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from electra import __version__
from electra.errors import CheckpointError, ConfigError, pip_install
from electra.interop.hub import HubName, hub_name

_MARKS = ("config.json", "modules.json")


@dataclass(frozen=True, kw_only=True, slots=True)
class Push:
    """What would be sent, and where."""

    folder: Path
    repository: str
    public: bool
    files: tuple[str, ...]
    size: int

    def __str__(self) -> str:
        kind = "public" if self.public else "private"
        return f"{len(self.files)} files, {self.size / 1e6:.1f} MB, to {self.repository} ({kind})"


def plan_push(folder: Path, repository: str, *, public: bool = False) -> Push:
    """What pushing an exported folder sends; refused for anything that `electra export` did not write."""
    if hub_name(repository) != HubName(repository):
        raise ConfigError("NAME", f"{repository!r} is not a repository", fix="give owner/name")
    if not folder.is_dir() or not any((folder / mark).is_file() for mark in _MARKS):
        reason = "is not an exported folder: it has no config.json"
        raise CheckpointError(folder, reason, fix="electra export writes one")
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    hidden = [path for path in found if any(part.startswith(".") for part in path.relative_to(folder).parts)]
    if hidden:
        raise CheckpointError(hidden[0], "is hidden, and everything in the folder is sent", fix="remove it")
    return Push(
        folder=folder,
        repository=repository,
        public=public,
        files=tuple(str(path.relative_to(folder)) for path in found),
        size=sum(path.stat().st_size for path in found),
    )


def push(plan: Push) -> str:
    """The address of the repository, made if need be, with the folder's files in one commit."""
    try:
        from huggingface_hub import HfApi, constants
        from huggingface_hub.errors import RepositoryNotFoundError
    except ImportError as error:
        raise ConfigError("electra push", "needs huggingface_hub", fix=pip_install("hf")) from error
    if constants.HF_HUB_OFFLINE:
        raise ConfigError("electra push", "HF_HUB_OFFLINE forbids it", fix="unset it")
    api = HfApi(library_name="electra", library_version=__version__)
    try:
        try:
            existing: Any = api.model_info(plan.repository)
        except RepositoryNotFoundError:
            api.create_repo(plan.repository, repo_type="model", private=not plan.public)
        else:
            if not existing.private and not plan.public:
                reason = f"{plan.repository} exists and is public"
                raise ConfigError("electra push", reason, fix="add --public, or choose a new name")
        done = api.upload_folder(
            repo_id=plan.repository,
            folder_path=plan.folder,
            commit_message="Upload a model exported by electra",
        )
    except ConfigError:
        raise
    except Exception as error:  # whatever the network or the hub comes up with
        first = next(iter(str(error).strip().splitlines()), "no reason given")
        fix = "`hf auth login` stores a token that may write"
        raise CheckpointError(plan.repository, f"push failed: {type(error).__name__}: {first}", fix=fix) from error
    return str(done.repo_url)

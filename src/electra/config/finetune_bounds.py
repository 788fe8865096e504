"""Values that no fine-tuning can have: bounds of its keys, and combinations that cannot work."""

from __future__ import annotations

from electra.config.finetune import FinetuneConfig
from electra.errors import ConfigError

AT_LEAST = {
    "batch_size": 1,
    "length": 8,
    "frozen_layers": 0,
    "weight_decay": 0,
    "eval_every": 0,
    "patience": 0,
    "restarts": 0,
    "hold_out_seed": 0,
    "log_every": 1,
    "max_train_rows": 0,
    "seed": 0,
    "doc_stride": 1,
    "max_query": 1,
    "max_answer": 1,
    "beam": 1,
    "n_best": 1,
}
AT_MOST = {
    "restarts": 10,
    "batch_size": 1 << 20,
    "length": 1 << 20,
    "epochs": 1 << 20,
    "n_best": 1 << 20,
    "beam": 1 << 20,
}
ABOVE = {"lr": 0, "epochs": 0, "clip": 0, "eps": 0, "cosine_scale": 0}
SHARES = {
    "layer_decay": (False, True),
    "warmup": (True, False),
    "hold_out": (True, False),
    "dropout": (True, False),
    "encoder_dropout": (True, False),
    "attention_dropout": (True, False),
    "beta1": (True, False),
    "beta2": (True, False),
}


def require_selection(config: FinetuneConfig) -> None:
    """Refuse to choose among evaluations where there are none."""
    if config.eval_every:
        return
    fix = "set eval_every too, such as eval_every=100"
    if config.select == "best":
        raise ConfigError("select", "best has nothing to choose from: eval_every 0 evaluates at the end only", fix=fix)
    if config.patience:
        raise ConfigError("patience", "has nothing to wait for: eval_every 0 evaluates at the end only", fix=fix)

"""Our training step against the same step written with `transformers` modules, on one machine in one run."""

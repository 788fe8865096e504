"""Lengths and segment ids of the loader's rows, as `batches` defines them."""

from electra.batches.sequences import split_rows

__all__ = ["split_rows"]

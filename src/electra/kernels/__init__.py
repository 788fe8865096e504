"""Fused GPU kernels in Triton, each with a plain twin in `model` or `objective` that says what it computes."""

from importlib.util import find_spec

TRITON = find_spec("triton") is not None
"""Whether the compiler that the kernels are written for is installed."""

"""Fused GPU kernels in Triton, each with a plain twin in `model` or `objective` that says what it computes."""

from importlib.util import find_spec

import torch

USABLE = torch.cuda.is_available() and find_spec("triton") is not None
"""Whether this machine has a GPU and the compiler that the kernels are written for."""

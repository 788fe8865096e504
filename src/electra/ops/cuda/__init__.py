"""Ops in CUDA C++ for Hopper GPUs, in bf16: `.cu` sources and what launches them.

`compiler` turns a source into machine code where it runs, `driver` launches it. Nothing here decides what runs:
`ops.dispatch` does.
"""

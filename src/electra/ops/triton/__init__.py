"""Ops as Triton kernels for GPUs: under the same file names as in `reference/`, beside what several of them share.

`hash` has the random bits, `partial_sums` the sums of what programs leave a row each of, `encoder_layer` and
`stack_buffers` the parts of `encoder_stack`. Nothing here decides what runs: `ops.dispatch` does.
"""

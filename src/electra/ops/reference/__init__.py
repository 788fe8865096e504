"""The specification of every op in plain PyTorch, one file an op: it runs on any device and in any precision."""

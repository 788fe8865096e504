"""Ops for CPUs in C++: what stands between the matrix products, one pass forward and one backward."""

"""Ops for CPUs in C++: what stands between the matrix products, and on AMX the products that it does faster."""

"""Counts of GPU kernels beside those of an interpreter that carries the machine code out on every lane of a grid."""

"""Whole networks: a graph of tensor programs, their predicted times, replayed."""

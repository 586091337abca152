"""Readers: what a user has of a network becomes one module."""

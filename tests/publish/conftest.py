"""The made-up data set of the evaluation's tests."""

from tests.evaluation.conftest import data

__all__ = ["data"]

"""Held-out error of the models and of the baselines on the same splits and labels."""

from cdmpp.evaluation.baselines import BASELINES
from cdmpp.evaluation.cell import Cell, CellOptions
from cdmpp.evaluation.evaluation_data import EvaluationData
from cdmpp.evaluation.results import Result, Run, read_results
from cdmpp.evaluation.run import evaluate, run_cell

__all__ = ["BASELINES", "Cell", "CellOptions", "EvaluationData", "Result", "Run",
           "evaluate", "read_results", "run_cell"]  # fmt: skip

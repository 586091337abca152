"""Fitted expressions of run time: a table of runs in, a readable expression with intervals out. No torch, no TVM.

The idea of a generic expression over intrinsic and extrinsic factors, fitted by regularised differential evolution, is
that of Kavarakuntla et al. (IEEE Access 2024); forms, search and selection are ours.
"""

from cdmpp.expression.fit import fit_runs as fit_runs
from cdmpp.expression.fit_settings import FitSettings as FitSettings
from cdmpp.expression.fitted_expression import FittedExpression as FittedExpression
from cdmpp.expression.fitted_expression import RunPrediction as RunPrediction
from cdmpp.expression.run_table import RunTable as RunTable
from cdmpp.expression.suggestion import SuggestedRun as SuggestedRun
from cdmpp.expression.suggestion import suggest as suggest

"""From what a model says to what can be promised: intervals, and programs unlike the training data."""

from cdmpp.uncertainty.calibration import Calibration, Examined, calibrate
from cdmpp.uncertainty.conformal import Conformal, fit_conformal
from cdmpp.uncertainty.coverage import coverage
from cdmpp.uncertainty.novelty import Novelty, ProgramSketch, fit_novelty

__all__ = ["Calibration", "Conformal", "Examined", "Novelty", "ProgramSketch", "calibrate",
           "coverage", "fit_conformal", "fit_novelty"]  # fmt: skip

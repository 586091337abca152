"""FormChoice: known terms, or a form that a search found: what extrapolates better."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from cdmpp.expression.blend import Blend
from cdmpp.expression.design import Design
from cdmpp.expression.exponents import ExponentFit, evolve
from cdmpp.expression.fit_settings import SEARCHED_FROM_S, FitSettings
from cdmpp.expression.folds import Fold
from cdmpp.expression.form_search import search
from cdmpp.expression.held_out import Refittable, plain_error, plain_residuals
from cdmpp.expression.judge import Judge, ScoredForm
from cdmpp.expression.kriging import Kriging
from cdmpp.expression.searched import Searched
from cdmpp.expression.stepwise import stepwise
from cdmpp.expression.work import Work

Progress = Callable[[float, str], None]
"""A function that is called with the part of the work that is done, from 0 to 1, and what is done now."""
_STRENGTHS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, np.inf)
_WIDTH = 0.5
"""Standard deviation that exponents are taken to have about plausible ones."""
_SEARCHED = (1e-6, 1e-3)
"""Bounds of the strength of the regularisation while forms are searched."""
_SEARCH = 0.45
"""Part of the budget in which forms are searched."""
_EVOLVED, _STEPS = 0.15, 0.4
"""Parts of the budget for fits with other strengths, next to differential evolution, and for steps."""
_BETTER, _FAR_BETTER, _MISSED = 0.75, 0.4, 0.8
"""A searched form is preferred where it extrapolates with the first part of the error of known terms; where all columns
are recognised, with the second, and where it has the third on rows that are held out at random."""
_WORST = 2.0
"""A larger relative error counts as this."""
_OTHERS, _NEAR = 6, 0.15
"""Other forms that join the ensemble at most, and the score that they may have above the best."""
_EVALUATIONS_A_SECOND = 600
"""Costs of exponents that a second of the budget stands for, so that a budget gives the same answer everywhere."""


@dataclass(frozen=True)
class FormChoice:
    """This is the form that is fitted, and how it was chosen."""

    source: Refittable
    others: tuple[ExponentFit, ...]
    """Other forms of about the same score, where a search found what is fitted."""
    strength: float
    """Strength of the regularisation of what a search found."""

    @classmethod
    def of(
        cls, design: Design, folds: Sequence[Fold], random: Sequence[Fold], settings: FitSettings, tell: Progress
    ) -> FormChoice:
        """Search a form, and choose between it and known terms.

        Args:
            design: of the table.
            folds: rows that are held out as users extrapolate.
            random: rows that are held out at random.
            settings: of the search.
            tell: told what is done.
        """
        found, others = _best(design, folds, settings, tell)
        searched = Searched(design, found.fit, found.strength)
        if not _is_recognised(design):
            searched = _sparser(design, searched, random, _STEPS * settings.budget_s)
        source = _preferred(design, searched, folds, random)
        return cls(source, tuple(others) if isinstance(source, Searched) else (), searched.strength)

    @classmethod
    def quick(cls, design: Design) -> FormChoice:
        """Take all known terms, without a search."""
        blend = Blend.of(design)
        return cls(blend, (), blend.strength)


def is_quick(design: Design, settings: FitSettings) -> bool:
    """Tell if a budget is too short for a search, and terms are known."""
    return settings.budget_s < SEARCHED_FROM_S and _has_known_terms(design)


def _best(
    design: Design, folds: Sequence[Fold], settings: FitSettings, tell: Progress
) -> tuple[ScoredForm, list[ExponentFit]]:
    """The form that extrapolates best: searched, its exponents evolved, its regularisation chosen; and near ones."""
    most = max(1, min(settings.most_terms, len(design.table) // (3 * len(design.table.groups))))
    strength = _strength(design)
    work = Work(_SEARCH * settings.budget_s)
    judge = Judge(design, folds, strength, work=work)
    pool = list[ScoredForm]()
    for step, found in enumerate(search(judge, most), 1):
        pool = found
        tell(0.4 * step / (step + 3), "terms")
    evaluations = int(_EVALUATIONS_A_SECOND * settings.budget_s) // (2 * len(design.table.groups))
    found, tried = pool[:1], [one for one in _STRENGTHS if one > 0.09 * strength]
    work.budget_s = (_SEARCH + _EVOLVED) * settings.budget_s
    for place, one in enumerate(pool[:2]):
        if work.is_done:
            break
        evolved = evolve(design, one.fit.form, design.every, strength, evaluations, settings.seed)
        found += [judge.score(form, held) for form in (one.fit.form, evolved.form) for held in tried]
        tell(0.4 + 0.15 * (place + 1), "exponents")
    best = min(found, key=lambda one: one.score)
    near = [one.fit for one in pool[:_OTHERS] if one.score < best.score + _NEAR and one.fit.form != best.fit.form]
    return best, near


def _strength(design: Design) -> float:
    """Strength with which a search holds exponents at plausible ones.

    Where columns are recognised, what is plausible is known. For others Bayes' rule weighs it against the noise of the
    runs: what near runs do not tell of the logarithms of times, before any form is known.
    """
    table = design.table
    if _is_recognised(design):
        return _SEARCHED[1]
    logs = np.log(table.times_s)
    for group in range(len(table.groups)):
        logs[table.codes == group] -= logs[table.codes == group].mean()
    scale = max(float(np.abs(logs).max()), 1e-3)
    noise = scale**2 * Kriging.of(table.factors, table.codes, logs / scale).variances[2]
    return float(np.clip(noise / (len(table) * _WIDTH**2), *_SEARCHED))


def _is_recognised(design: Design) -> bool:
    return all(one.role.name for one in design.factors)


def _has_known_terms(design: Design) -> bool:
    return _is_recognised(design) and any(one.role.is_count for one in design.factors)


def _sparser(design: Design, searched: Searched, random: Sequence[Fold], budget_s: float) -> Searched:
    """The searched form after steps that all runs ask for, where it misses no more runs.

    One standard error decides. Runs are held out at random, because the search has seen what its own folds hold out.
    Exponents are not regularised: nothing is known of them.
    """
    steps = Searched(design, stepwise(design, searched.fit.form, budget_s), 0.0)
    before, after = (
        np.minimum(np.abs(np.expm1(-np.concatenate(plain_residuals(design, source, random)))), _WORST)
        for source in (searched, steps)
    )
    worse = after - before
    return steps if worse.mean() <= worse.std() / np.sqrt(len(worse)) else searched


def _preferred(design: Design, searched: Searched, folds: Sequence[Fold], random: Sequence[Fold]) -> Refittable:
    """The searched form, or all known terms at once: what extrapolates better, without the help of near runs.

    A search has seen what its folds hold out. So where all columns are recognised it must extrapolate far better, and
    known terms must miss runs within the range, too; where neither can be told, known terms are preferred.
    """
    blend = Blend.of(design)

    def is_within(part: float, kind: Sequence[Fold]) -> bool:
        return plain_error(design, searched, kind) <= part * plain_error(design, blend, kind)

    if _has_known_terms(design):
        is_better = is_within(_FAR_BETTER, folds) and is_within(_MISSED, random)
    else:
        is_better = is_within(_BETTER, folds)
    return searched if is_better else blend.shorter(folds, random)

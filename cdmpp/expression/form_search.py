"""Search of a form: terms are added one by one, then changed; rows held out as users extrapolate decide."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from cdmpp.expression.candidates import Candidates, independent, tried_powers
from cdmpp.expression.exponents import snapped
from cdmpp.expression.form import Atom, Form
from cdmpp.expression.judge import Judge, ScoredForm

_SCREENED, _KEPT, _BEAM = 48, 4, 3
"""Candidates that are tried with exponents as they are, those whose exponents are fitted, and forms that go on."""
_VARIED = 2
"""Forms with one more factor in a term, or with another shape of it, whose exponents are fitted."""
_REVISIONS = 5
"""Rounds in which the best forms are changed, at most."""
_PLAUSIBLE = 0.25
"""An exponent is tried as a plausible one where it is this near to it."""


def search(judge: Judge, most_terms: int) -> Iterator[list[ScoredForm]]:
    """Yield ever better forms, best first: forms grow term by term, then the best ones are revised.

    It ends where nothing gets better, or where the work of the judge is done.
    """
    candidates = Candidates.of(judge.design)
    beam, pool = list[ScoredForm](), list[ScoredForm]()
    for _ in range(most_terms):
        grown = dict[Form, None]()
        for form in [one.fit.form for one in beam] or [Form(())]:
            grown |= dict.fromkeys(_extended(judge, candidates, form))
        beam = judge.best(grown)[:_BEAM]
        if not beam:
            break
        pool = _sorted([*pool, *beam])
        yield pool
        if judge.work.is_done:
            return
    seen = set[Form]()
    for _ in range(_REVISIONS):
        begun = [one.fit.form for one in pool[:_BEAM] if one.fit.form not in seen]
        for form in begun:
            seen.add(form)
            pool = _sorted([*pool, *judge.best(_revised(judge, candidates, form, most_terms))])
            if judge.work.is_done:
                yield pool
                return
        yield pool
        if not begun:
            break


def _sorted(pool: list[ScoredForm]) -> list[ScoredForm]:
    """Best first, one for each score."""
    found = dict[float, ScoredForm]()
    for one in pool:
        found.setdefault(round(one.score, 9), one)
    return [found[key] for key in sorted(found)]


def _extended(judge: Judge, candidates: Candidates, form: Form, most: int = _KEPT) -> list[Form]:
    """The form with one more term, for the most promising candidates."""
    design = judge.design
    here = form.columns(design, form.start[None])
    if form.terms:
        relative = design.relative(here, design.constants(here, design.every), design.every)[0]
    else:
        relative = np.zeros(len(design.table))
    places = candidates.best(design, here[0], relative, _SCREENED)
    if not places:
        return []
    tried = np.concatenate([np.repeat(here, len(places), axis=0), candidates.columns[:, places].T[:, :, None]], axis=2)
    scores = judge.quick(tried) + judge.price * np.array([len(candidates.atoms[place].factors) for place in places])
    best = [places[i] for i in np.argsort(scores, kind="stable")[:most]]
    return [Form((*form.terms, (candidates.atoms[place],)), form.log_ratios) for place in best]


def _revised(judge: Judge, candidates: Candidates, form: Form, most_terms: int) -> list[Form]:
    """Forms that differ in one step: a term or factor less, a plausible exponent, one term for others, overlaps."""
    found = list[Form]()
    for place, term in enumerate(form.terms):
        rest = form.without((place,))
        if rest.terms:
            found.append(rest)
        if len(term) == 1:
            found += [_with(form, place, atom) for atom in _simpler(judge, term[0])]
            found += _varied(judge, form, place)
        for start in dict.fromkeys((rest, snapped(judge.design, rest))):
            found += _extended(judge, candidates, start, 2)
    for first, second in itertools.combinations(range(len(form.terms)), 2):
        found += _extended(judge, candidates, form.without((first, second)), 1)
    if len(form.terms) > 3:
        for term in form.terms:
            if len(term) == 1:
                short = _extended(judge, candidates, snapped(judge.design, Form((term,))), 1)
                found += [*short, *map(_fixed, short)]
    if len(form.terms) < most_terms:
        found += _extended(judge, candidates, form, 2)
    return [*found, *_overlapping(judge, form)]


def _fixed(form: Form) -> Form:
    """The form with all exponents fixed where they are."""
    return replace(form, terms=tuple(
        tuple(replace(atom, fixed=frozenset(atom.factors)) for atom in term) for term in form.terms
    ))  # fmt: skip


def _with(form: Form, place: int, atom: Atom) -> Form:
    return Form((*form.terms[:place], (atom,), *form.terms[place + 1 :]), form.log_ratios)


def _simpler(judge: Judge, atom: Atom) -> Iterator[Atom]:
    """Atoms with one factor less, or with an exponent fixed at a plausible value."""
    for place, (factor, power) in enumerate(zip(atom.factors, atom.powers, strict=True)):
        factors, powers = (list[int](atom.factors), list[float](atom.powers))
        del factors[place], powers[place]
        yield Atom(tuple(factors), tuple(powers), atom.shape, atom.fixed - {factor})
        if factor in atom.fixed:
            yield replace(atom, fixed=atom.fixed - {factor})
            continue
        nearest = min((*judge.design.factors[factor].role.powers, 0.5, -0.5), key=lambda one: abs(one - power))
        if nearest and abs(nearest - power) < _PLAUSIBLE:
            changed = tuple(nearest if i == place else one for i, one in enumerate(atom.powers))
            yield replace(atom, powers=changed, fixed=atom.fixed | {factor})


def _varied(judge: Judge, form: Form, place: int) -> list[Form]:
    """The form with one more factor, or another shape, in one term: the most promising ones."""
    design, atom = judge.design, form.terms[place][0]
    atoms = [replace(atom, shape=shape) for shape in range(len(design.shape_keys)) if shape != atom.shape]
    for factor in independent(design):
        if factor not in atom.factors:
            for power in tried_powers(design.factors[factor]):
                atoms.append(replace(atom, factors=(*atom.factors, factor), powers=(*atom.powers, power)))
    atoms = [one for one in atoms if (key := design.shape_keys[one.shape]) is None or key[1] not in one.factors]
    if not atoms:
        return []
    here = np.repeat(form.columns(design, form.start[None]), len(atoms), axis=0)
    for row, one in enumerate(atoms):
        alone = Form(((one,),))
        here[row, :, place] = alone.columns(design, alone.start[None])[0, :, 0]
    order = np.argsort(judge.quick(here), kind="stable")[:_VARIED]
    return [_with(form, place, atoms[i]) for i in order]


def _overlapping(judge: Judge, form: Form) -> Iterator[Form]:
    """Forms in which the larger of two terms counts, for pairs of the three largest terms."""
    design = judge.design
    columns = form.columns(design, form.start[None])
    constants = design.constants(columns, design.every)
    parts = (columns[0] * constants[0][design.table.codes]).mean(axis=0)
    large = [int(place) for place in np.argsort(-parts)[:3] if parts[place] > 0 and len(form.terms[place]) == 1]
    for i, first in enumerate(large):
        for second in large[i + 1 :]:
            sizes = constants[0][:, [first, second]].mean(axis=0)
            rest = form.without((first, second))
            both = (form.terms[first][0], form.terms[second][0])
            yield Form((*rest.terms, both), (*rest.log_ratios, float(np.log(sizes[1] / sizes[0]))))

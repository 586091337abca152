"""Factor: what a term is a power of. A column of the table, or a quantity that follows from recognised columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from cdmpp.expression.columns import Role, role_of

Floats = npt.NDArray[np.float64]
_MEMBERS = (-1.0, 0.0, 1.0)


@dataclass(frozen=True)
class Factor:
    """A factor of runs, with how it is written."""

    name: str
    """Column, or the name of the quantity."""
    role: Role
    kind: str = "column"
    """``column``, or a key of ``_DERIVED``."""
    columns: tuple[str, ...] = ()
    """The columns that it follows from; of a column itself."""

    def values(self, table: Mapping[str, Floats]) -> Floats:
        """Return its value in each run."""
        return _DERIVED[self.kind].values(*(table[name] for name in self.columns))

    @property
    def text(self) -> str:
        """Return it as people write it."""
        return self.written({})

    def written(self, names: Mapping[str, str], ceil: str = "ceil", times: str = "*") -> str:
        """Return it with other names of columns, of the rounding up and of the sign between factors."""
        form = _DERIVED[self.kind].text.replace("ceil", ceil).replace("*", times)
        return form.format(*(names.get(column, column) for column in self.columns))


@dataclass(frozen=True)
class _Derived:
    roles: tuple[str, ...]
    role: Role
    values: Callable[..., Floats]
    text: str


_DERIVED: Mapping[str, _Derived] = {
    "column": _Derived((), Role("", "intrinsic", ()), lambda one: one, "{0}"),
    "gpus_per_node": _Derived(
        ("gpus", "nodes"), Role("gpus_per_node", "extrinsic", _MEMBERS, True),
        lambda gpus, nodes: np.ceil(gpus / nodes), "ceil({0} / {1})",
    ),
    "stage_layers": _Derived(
        ("layers", "pp"), Role("stage_layers", "intrinsic", (0.0, 1.0)), lambda layers, pp: layers / pp, "({0} / {1})",
    ),
    "rounds": _Derived(
        ("batch", "dp", "micro_batch", "pp"), Role("rounds", "extrinsic", (0.0, 1.0)),
        lambda batch, dp, micro, pp: batch / (dp * micro) + pp - 1, "({0} / ({1} * {2}) + {3} - 1)",
    ),
}  # fmt: skip
"""Quantities that are no product of powers of columns, and the roles of the columns that they follow from."""


def factors_of(columns: Sequence[str]) -> tuple[Factor, ...]:
    """Return the factors that a table with these columns has: the columns, and what follows from recognised ones."""
    roles = {column: role_of(column) for column in columns}
    found = [Factor(column, role, "column", (column,)) for column, role in roles.items()]
    by_role = {role.name: column for column, role in reversed(roles.items()) if role.name}
    for kind, derived in _DERIVED.items():
        if derived.roles and kind not in by_role and all(role in by_role for role in derived.roles):
            found.append(Factor(kind, replace(derived.role), kind, tuple(by_role[role] for role in derived.roles)))
    return tuple(found)


def with_nodes(columns: Mapping[str, Floats]) -> dict[str, Floats]:
    """Return the columns, and the GPUs of a node as one more where they follow from GPUs and nodes."""
    per_node = (one for one in factors_of(tuple(columns)) if one.kind == "gpus_per_node")
    return {**columns, **{one.text: one.values(columns) for one in per_node}}

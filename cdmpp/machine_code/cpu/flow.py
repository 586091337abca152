"""FunctionFlow: how often the code of a function runs."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class FunctionFlow:
    """How one function runs, each time that it is called."""

    times: float
    """Calls in one run of the program."""
    unknown: float
    """Branches that data decide, where they decide about more than a hundredth of the instructions that run."""
    runs: dict[str, float] = field(default_factory=dict)
    """Block -> runs."""
    entries: dict[str, float] = field(default_factory=dict)
    """Header of a loop -> times that it is entered."""
    bodies: dict[str, frozenset[str]] = field(default_factory=dict)
    """Header of a loop -> its blocks."""

    def trips(self, header: str) -> float:
        """Iterations of a loop each time that it is entered; 1 where it never is."""
        entries = self.entries[header]
        return max(1.0, self.runs[header] / entries) if entries > 0 else 1.0

"""Timeline: when every task ran, what decided the end, what stood idle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from cdmpp.simulate.key import Key
from cdmpp.simulate.spans import Span, Spans

__all__ = ["Span", "Timeline"]


@dataclass(frozen=True)
class Timeline:
    """All spans are kept by the key of their task, in the order of their starts."""

    spans: Mapping[Key, Span]

    @cached_property
    def makespan_s(self) -> float:
        """The last task ends after so many seconds; 0 without tasks."""
        return self._last.end_s if self._last is not None else 0.0

    @cached_property
    def critical_path(self) -> tuple[Span, ...]:
        """Each span, first to last, waited for the one before: this is the longest chain in the executed order."""
        return self.path_to(self._last) if self._last is not None else ()

    @cached_property
    def critical_keys(self) -> frozenset[Key]:
        """These tasks are on the critical path; spans are made anew when asked for, so tasks are what to compare."""
        return frozenset(span.task.key for span in self.critical_path)

    @cached_property
    def _last(self) -> Span | None:
        """The one that ended last; of several the one that started first."""
        if isinstance(self.spans, Spans):
            return self.spans.last(range(len(self.spans))) if self.spans else None
        return max(self.spans.values(), key=lambda span: span.end_s, default=None)

    def path_to(self, span: Span) -> tuple[Span, ...]:
        """Return the chain that ends with ``span``, first to last."""
        path = [span]
        while (cause := path[-1].cause) is not None:
            path.append(self.spans[cause])
        return tuple(reversed(path))

    @cached_property
    def busy_s(self) -> dict[Key, float]:
        """Each resource ran tasks for so many seconds, gaps not counted."""
        busy: dict[Key, float] = {}
        for span in self.spans.values():
            for name in span.task.resources:
                busy[name] = busy.get(name, 0.0) + span.end_s - span.start_s
        return busy

    @cached_property
    def idle_s(self) -> dict[Key, float]:
        """Each resource ran no task for so many seconds of the makespan."""
        return {name: self.makespan_s - busy for name, busy in self.busy_s.items()}

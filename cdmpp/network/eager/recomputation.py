"""The calls of a forward pass that run again in the backward pass, and when: what ``torch.utils.checkpoint`` does."""

from __future__ import annotations

from collections.abc import Sequence

from cdmpp.network.eager.learning import Learning
from cdmpp.network.eager.saved import AFTER


class Recomputation:
    """It goes along with a backward pass, which asks before each call what runs again first.

    Non-reentrant regions run again when the first result of theirs is needed, up to the last that is kept: to the
    kernel before it where that keeps its inputs, else including it. Reentrant ones run whole when their gradient
    arrives. A region inside another one counts as what keeps its inputs, and runs again by itself. What a selective
    policy keeps does not run again.
    """

    def __init__(self, learning: Sequence[Learning]) -> None:
        """Begin with the calls of a forward pass: what the gradient of each one's result goes to."""
        self.learning = learning
        self.places: dict[int, int] = {}
        """Call of the forward pass -> the call that ran it last, for all that ran again."""
        self.ran: set[int] = set()
        self.stored: list[int] = []
        self.own: dict[int, list[int]] = {}
        """Number of a region -> the places of its calls, those of regions inside included."""
        for place, one in enumerate(learning):
            for region in one.again:
                self.own.setdefault(region.number, []).append(place)

    def before(self, place: int) -> list[int]:
        """List calls that run again before the gradient of call ``place`` is made, in order."""
        found = list[int]()
        for region in self.learning[place].again:
            if region.number in self.ran or (region.waits and not self.learning[place].last):
                continue
            self.ran.add(region.number)
            own = self.own[region.number]
            run = own if not region.stops_early else self._needed(own, region.number)
            found += [one for one in run if not self.learning[one].is_stored]
            self.stored += [one for one in own if self.learning[one].is_stored]
        return found

    def given_back(self) -> list[int]:
        """List calls whose results regions that begin to run again had stored, once."""
        found, self.stored = self.stored, []
        return found

    def done(self, place: int, again: int) -> None:
        """Note that call ``place`` ran again as the call ``again``."""
        self.places[place] = again

    def latest(self, place: int) -> int:
        """Return the call whose result stands for that of call ``place`` in what runs from now on."""
        return self.places.get(place, place)

    def holder(self, place: int) -> int:
        """Return the call that holds what call ``place`` keeps for its own backward pass, beside its result.

        Where its region ran again and stopped before it, that is there as the last call ends that ran again.
        """
        if place in self.places or self.learning[place].is_stored:
            return self.latest(place)
        regions = [one.number for one in self.learning[place].again if one.stops_early and one.number in self.ran]
        again = [one for number in regions for one in self.own[number] if one < place and one in self.places]
        return self.latest(max(again)) if again else place

    def _needed(self, own: Sequence[int], number: int) -> list[int]:
        """Up to the last call that keeps something for the backward pass."""
        stop, depth = own[0], [one.number for one in self.learning[own[0]].again].index(number)
        for place in own:
            inner = self.learning[place].again[depth + 1 :]
            if inner:
                stop = max(stop, self.own[inner[0].number][0])
            elif last := self.learning[place].last:
                stop = max(stop, place + (last == AFTER))
        return [place for place in own if place < stop]

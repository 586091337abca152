"""Plans: settings under which a training step on several ranks is shorter, searched with the replay as judge."""

from cdmpp.plans.plan import Plan
from cdmpp.plans.search import search
from cdmpp.plans.search_result import SearchResult, SearchStep

__all__ = ["Plan", "SearchResult", "SearchStep", "search"]

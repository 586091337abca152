"""Plans: settings under which a training step on several ranks is shorter, or fits into memory."""

from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.plan import Plan, plan_on
from cdmpp.plans.plan_file import read_plan, save_plan
from cdmpp.plans.search import search
from cdmpp.plans.search_result import SearchResult, SearchStep

__all__ = ["ParallelDegrees", "Plan", "SearchResult", "SearchStep", "plan_on", "read_plan", "save_plan", "search"]

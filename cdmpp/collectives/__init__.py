"""Training on several devices: links, clusters, and what collectives take on them. Needs neither torch nor TVM."""

from cdmpp.collectives.cluster import Cluster
from cdmpp.collectives.collective import Collective
from cdmpp.collectives.interconnect import Interconnect

__all__ = ["Cluster", "Collective", "Interconnect"]

"""Training on several devices: links, clusters, and what collectives take on them. Needs neither torch nor TVM."""

from cdmpp.distributed.cluster import Cluster
from cdmpp.distributed.collective import Collective
from cdmpp.distributed.interconnect import Interconnect

__all__ = ["Cluster", "Collective", "Interconnect"]

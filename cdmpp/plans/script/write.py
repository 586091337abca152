"""Write a plan for those who run it: as a script of PyTorch, or a configuration of torchtitan."""

from __future__ import annotations

from pathlib import Path

from cdmpp.errors import UsageError
from cdmpp.network.workload import Workload
from cdmpp.plans.changed import with_own_names
from cdmpp.plans.plan import Plan
from cdmpp.plans.script.torch_script import TorchScript
from cdmpp.plans.script.torchtitan_config import TorchtitanConfig
from cdmpp.platform.files import write_atomic
from cdmpp.steps.step_graph import RankGraph

SUFFIXES = (".py", ".toml")


def write_script(path: Path, workload: Workload, plan: Plan, global_batch: int, rank: RankGraph) -> None:
    """Write a script (``.py``) or a configuration of torchtitan (``.toml``), whole or not at all.

    Args:
        path: of the file.
        workload: network, loss, precision and update.
        plan: settings of the job.
        global_batch: examples of all ranks in one step.
        rank: one rank's work under the plan.

    Raises:
        CdmppError: as of ``TorchScript`` and ``TorchtitanConfig``.
    """
    check_script(path)
    kind = TorchScript if path.suffix == ".py" else TorchtitanConfig
    text = kind(workload, with_own_names(plan, rank), global_batch, rank).text
    write_atomic(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def check_script(path: Path) -> None:
    """Raise ``UsageError`` for a name that ends in none of ``SUFFIXES``."""
    if path.suffix not in SUFFIXES:
        raise UsageError(
            f"--torch {path}: give a name that ends in .py, for a script of PyTorch, or in .toml, for torchtitan"
        )

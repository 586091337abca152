"""Plans for a network that nobody here can run: measured layers and timed messages say how long a step takes."""

from pathlib import Path

from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.distributed_step import replay_plan
from cdmpp.plans.plan import Plan
from cdmpp.plans.sources.table import TableSource
from cdmpp.plans.strategies.pipeline import Pipeline
from cdmpp.steps.from_layers import read_layers

head = "name,forward_s,backward_s,parameter_bytes,output_bytes,saved_bytes,update_s,examples\n"
rows = [f"block.{i},1.5e-3,3e-3,50000000,8000000,120000000,2e-4,4\n" for i in range(24)]
rows += ["head,4e-3,8e-3,200000000,400000000,800000000,8e-4,4\n"]
Path("layers.csv").write_text(head + "".join(rows))
Path("links.csv").write_text("bytes,seconds\n262144,5e-5\n16777216,8e-4\n268435456,1.2e-2\n")

source = TableSource(read_layers("layers.csv"))
for stages, replicas in ((1, 4), (2, 2), (4, 1)):
    pipeline = (Pipeline("1f1b", micro_batches=16 // replicas),) if stages > 1 else ()
    plan = Plan(
        degrees=ParallelDegrees(pp=stages, dp_replicate=replicas),
        gradient_accumulation_steps=1 if pipeline else 16 // replicas,
        model_parallel=pipeline,
    )
    step = replay_plan(source, plan, global_batch=64, device="a100", link="links.csv")
    print(f"{stages} stages x {replicas} replicas: {1e3 * step.iteration_s:.0f} ms for 64 examples")

"""Search a schedule with TVM's MetaSchedule, which asks this package what is worth measuring. Needs TVM."""

import tempfile

from tvm import te
from tvm.s_tir import meta_schedule as ms
from tvm.target import Target

import cdmpp
from cdmpp import devices

DEVICE = "xeon-icelake-avx2"  # programs of AVX2, which run on any recent x86-64 machine
N = 64

a, b = te.placeholder((N, N), name="a"), te.placeholder((N, N), name="b")
k = te.reduce_axis((0, N), name="k")
product = te.create_prim_func([a, b, te.compute((N, N), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")])

model = cdmpp.make_cost_model(DEVICE)
# TVM's own setting scores 512 programs five times before it measures four.
short = ms.search_strategy.EvolutionarySearch(population_size=32, init_min_unmeasured=8, genetic_num_iters=1)
database = ms.tune_tir(
    product,
    Target(dict(devices.get(DEVICE).target)),
    work_dir=tempfile.mkdtemp(),
    max_trials_global=8,
    num_trials_per_iter=4,
    strategy=short,
    cost_model=model,
    builder=model.builder,
)
best = min(record.run_secs[0].value for record in database.get_all_tuning_records() if record.run_secs)
print(f"the best of {len(database)} measured programs takes {best * 1e6:.1f} us")

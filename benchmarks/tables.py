"""Results of the benchmarks as Markdown: one function a section."""

from __future__ import annotations

import textwrap
from typing import Any

from benchmarks.publish.markdown import table

_MODELS = ["", "cdmpp", "reference", "cdmpp / reference"]


def extraction(rows: list[dict[str, Any]]) -> list[str]:
    """Programs a second of each operator and target, and over all of them."""
    groups = [(row["operator"], row["target"], [row]) for row in rows]
    groups += [("all", kind, [row for row in rows if row["target"] == kind]) for kind in ("cpu", "cuda")]
    groups += [("**all**", "**both**", rows)]
    lines = []
    for operator, target, group in groups:
        keys = ("programs", "ours", "scheduled", "per_store", "equal")
        count, ours, scheduled, per_store, equal = (sum(row[key] for row in group) for key in keys)
        rates = (f"{count / seconds:,.0f}" for seconds in (per_store, ours, scheduled))
        ratios = f"{per_store / ours:.2f}", f"{per_store / scheduled:.1f}"
        lines.append([operator, target, count, *rates, *ratios, f"{100 * equal / count:.0f}"])
    rates = ["PerStoreFeature (1/s)", "ours, lowered (1/s)", "ours, as scheduled (1/s)"]
    headings = ["operator", "target", "programs", *rates, "ratio, lowered", "ratio, as scheduled", "equal vectors (%)"]
    return table(headings, lines, left=2)


def model(models: dict[str, dict[str, float]]) -> list[str]:
    """Size, speed and memory of both models."""
    titles = {
        "parameters": "parameters",
        "batch_1": "predictions/s, batch 1",
        "batch_512": "predictions/s, batch 512",
        "training": "training samples/s",
        "memory_mb": "peak memory (MB)",
    }
    pairs = [(title, models["cdmpp"][key], models["reference"][key]) for key, title in titles.items()]
    return table(_MODELS, [[title, f"{a:,.0f}", f"{b:,.0f}", f"{a / b:.2f}"] for title, a, b in pairs])


def predictions(result: dict[str, dict[str, float]]) -> list[str]:
    """Programs a second of this build and of the baseline."""
    rows = [(size, rate, result["baseline"][size]) for size, rate in result["ours"].items()]
    lines = [[size, f"{ours:,.0f}", f"{before:,.0f}", f"{ours / before:.1f}"] for size, ours, before in rows]
    return table(["", "programs/s", "baseline", "ratio"], lines)


def training_runs(runs: list[dict[str, Any]]) -> list[str]:
    """Seconds and errors of whole runs, and the pace beside a neighbour."""
    lines = []
    for run in runs:
        is_whole = run["what"].isdigit()
        kind = f"seed {run['what']}" if is_whole else "beside a busy neighbour"
        for name in ("ours", "baseline"):
            one = run[name]
            shown = [f"{one['wall_s']:.0f}", f"{one['cpu_s']:.0f}"] if is_whole else ["-", "-"]
            errors = [f"{one['mape']:.1f}", f"{one['median_ape']:.1f}"] if is_whole else ["-", "-"]
            lines.append([kind, name, *shown, f"{one['epoch_s']:.2f}", *errors])
    heads = ["run", "build", "whole run (s)", "processor (s)", "an epoch (s)", "test MAPE (%)", "median (%)"]
    return table(heads, lines, left=2)


def search_own_time(rows: list[dict[str, Any]]) -> list[str]:
    """Milliseconds a trial of each search, and the shares of ours in those of XGBModel's."""
    lines = []
    for row in rows:
        titles = {"random": "scores at random", "online": "ours", "xgb": "XGBModel"}
        parts = {name: _own_parts(row[name]) for name in titles if name in row}
        for name in parts:
            own, trees = parts[name], parts["xgb"]
            lines.append(
                [
                    row["task"],
                    titles[name],
                    f"{row[name]['measured']:,}",
                    f"{row[name]['scored']:,}",
                    f"{row[name]['judged']:,}",
                    *(f"{1e3 * own[part]:,.1f}" for part in ("predict", "learn", "model", "rest", "whole", "wall")),
                    *(f"{100 * own[part] / trees[part]:,.0f}" for part in ("model", "whole")),
                    *_of_judged(row, name),
                ]
            )
    heads = [
        "task",
        "cost model",
        "trials",
        "scored",
        "judged",
        "predict",
        "update",
        "model",
        "TVM's search",
        "whole",
        "whole, wall",
    ]
    shares = ["model, % of XGBModel's", "whole, % of XGBModel's", "predict, a candidate judged (µs)", "% of XGBModel's"]
    found = table([*heads, *shares], lines, left=2)
    return [*found, "", _STAGES, "", *_stages(rows)]


def _of_judged(row: dict[str, Any], name: str) -> list[str]:
    """Microseconds of processors for each candidate that the model judged, and their share of XGBModel's."""
    if not row[name]["judged"]:
        return ["–", "–"]
    own, trees = (1e6 * row[one]["cpu_s"]["predict"] / row[one]["judged"] for one in (name, "xgb"))
    return [f"{own:,.0f}", f"{100 * own / trees:,.0f}"]


_STAGES = """\
Our model's own part by stages, in the same unit: a key for each candidate, by which it is known again; reading of the
schedule without lowering it, in C++; pooling of its AST; the judgement of the network; what measured programs say
beyond it; learning; and Python around them. `before` is the older checkout that `CDMPP_BASELINE` named."""
_STAGE_HEADS = {"key": "key", "read": "read", "pool": "pool", "judge": "judge", "residual": "measured ones"}
"""Stage of ``search_own_time.py`` -> heading."""


def _stages(rows: list[dict[str, Any]]) -> list[str]:
    lines = []
    for row in rows:
        for name, title in (("older", "before"), ("online", "now")):
            if name not in row or "stages" not in row[name]:
                continue
            one = row[name]
            cpu_s, parts = one["cpu_s"], [one["stages"][stage] for stage in _STAGE_HEADS]
            parts += [cpu_s["learn"], cpu_s["predict"] - sum(parts), cpu_s["predict"] + cpu_s["learn"]]
            figures = (f"{1e3 * part / one['measured']:,.2f}" for part in parts)
            lines.append([row["task"], f"{row['trials']:,}", title, *figures])
    return table(["task", "trials", "build", *_STAGE_HEADS.values(), "update", "Python", "all"], lines, left=3)


def _own_parts(one: dict[str, Any]) -> dict[str, float]:
    """Processor seconds a trial of a search without its measuring, and those of the wall."""
    cpu, wall = ({name: value / one["measured"] for name, value in one[key].items()} for key in ("cpu_s", "wall_s"))
    whole, model = cpu["search"] - cpu["measure"], cpu["predict"] + cpu["learn"]
    return {
        "predict": cpu["predict"],
        "learn": cpu["learn"],
        "model": model,
        "rest": whole - model,
        "whole": whole,
        "wall": wall["search"] - wall["measure"],
    }


def convergence(result: dict[str, Any]) -> list[str]:
    """Time to the error that the reference reaches, time in all, lowest error."""
    titles = {"reached_s": "time to that error (s)", "total_s": "whole training (s)", "best_mape": "lowest error (%)"}
    rows = []
    for key, title in titles.items():
        ours, other = result[key]["cdmpp"], result[key]["reference"]
        figures = ["–", f"{other:,.1f}", "never reached"]
        if ours is not None:
            figures = [f"{ours:,.1f}", f"{other:,.1f}", f"{ours / other:.3f}"]
        rows.append([title, *figures])
    return table(_MODELS, rows)


def streaming(rows: list[dict[str, float]]) -> list[str]:
    """Time and memory of training from mapped files, a row a number of programs."""
    digits = {"programs": 0, "features_mb": 0, "load_s": 1, "rest_s": 1}
    digits |= {"anonymous_mb": 0, "start_mb": 0, "own_mb": 0, "file_pages_mb": 0}
    headings = ["programs", "vectors in files (MB)", "load (s)", "rest (s)", "memory (MB)", "of it before loading (MB)",
                "at the end, own (MB)", "pages of files (MB)"]  # fmt: skip
    shown = [[f"{row[key]:,.{n}f}" if key in row else "–" for key, n in digits.items()] for row in rows]
    return table(headings, shown, left=0)


def importing(rows: list[dict[str, Any]]) -> list[str]:
    """Rate, seconds and memory of whole, killed and resumed imports, a row a number of records."""
    heads = ["records", "database (MB)", "stored (MB)", "records a CPU second", "CPU (s)", "memory (MB)",
             "killed after", "resumed, CPU (s)",
             "resumed, memory (MB)", "equal"]  # fmt: skip
    return table(
        heads,
        [
            [
                f"{row['records']:,}", f"{row['database_mb']:,.0f}", f"{row['stored_mb']:,.1f}",
                f"{row['records'] / row['whole']['cpu_s']:,.0f}", f"{row['whole']['cpu_s']:,.0f}",
                f"{row['whole']['memory_mb']:,.0f}", f"{row['parts_at_kill']} of {row['parts']} files",
                f"{row['resumed']['cpu_s']:,.0f}", f"{row['resumed']['memory_mb']:,.0f}",
                "yes" if row["equal"] else "**no**",
            ]
            for row in rows
        ],
        left=0,
    )  # fmt: skip


def loading(rows: list[dict[str, float]]) -> list[str]:
    """Time and memory to the last batch of an epoch, a row a number of programs."""
    digits = {"programs": 0, "load_s": 1, "batches_s": 1, "memory_mb": 0}
    headings = ["programs", "load (s)", "batches (s)", "peak memory (MB)"]
    return table(headings, [[f"{row[key]:,.{n}f}" for key, n in digits.items()] for row in rows], left=0)


def fleet(result: dict[str, float]) -> list[str]:
    """Milliseconds of each part, and of a whole job."""
    programs, visits = int(result["programs"]), 2 * int(result["programs"])
    queue_ms = result["queued_ms"] + result["leased_and_ended_ms"]
    own, held = result["own_visit_ms"], result["held_visit_ms"]
    rows = [
        [
            f"the queue, of a job among {result['jobs']:,.0f}, {result['leased_at_once']:.0f} leased at once",
            0.0,
            queue_ms,
        ],
        ["opening a session that is held for a lane", 0.0, result["open_visit_ms"]],
        ["a visit", own, held],
        [f"a job of {programs} programs, two visits each", visits * own, visits * held + queue_ms],
    ]
    headings = ["what", "without a queue (ms)", "a fleet (ms)"]
    return table(headings, [[what, *(f"{one:,.1f}" if one else "-" for one in ms)] for what, *ms in rows])


def trace_reading(rows: list[dict[str, float]]) -> list[str]:
    """Rates and memory of reading, a row a size."""
    headings = [
        "MB",
        "events",
        "steps",
        "reading (MB/s)",
        "peak memory (MB)",
        "with its steps (MB/s)",
        "peak memory (MB)",
        "with their median (MB/s)",
        "peak memory (MB)",
    ]
    return table(
        headings,
        [
            [
                f"{row['megabytes']:,.0f}", f"{row['events']:,}", f"{row['steps']:,}",
                f"{row['megabytes'] / row['read_cpu_s']:.0f}", f"{row['read_memory_mb']:,.0f}",
                f"{row['megabytes'] / (row['read_cpu_s'] + row['steps_cpu_s']):.0f}", f"{row['steps_memory_mb']:,.0f}",
                f"{row['megabytes'] / (row['read_cpu_s'] + row['steps_cpu_s'] + row['median_cpu_s']):.0f}",
                f"{row['memory_mb']:,.0f}",
            ]
            for row in rows
        ],
        left=0,
    )  # fmt: skip


def network(rows: list[dict[str, Any]]) -> list[str]:
    return ["| step | seconds |", "|---|---:|", *(f"| {row['step']} | {row['seconds']:.2f} |" for row in rows)]


def sweep(rows: list[dict[str, Any]]) -> list[str]:
    head = [
        "| network | mode | calls | first answer, s | points a second after it | single question, s | other device, s "
        "| second size, s | further size, s |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    return head + [
        f"| {row['network']} | {row['mode'].replace('_', ' ')} | {row['calls']:,} | {row['first_s']:.1f} "
        f"| {row['swept_per_s']:,.{0 if row['swept_per_s'] > 10 else 1}f} | {row['fresh_s']:.2f} "
        f"| {row['device_s']:.3f} | {row['second_s']:.2f} | {row['further_s']:.3f} |"
        for row in rows
    ]


def simulate(rows: list[dict[str, Any]]) -> list[str]:
    """Tasks a CPU second of each way, a row a graph."""
    names = ("engine", "ours", "reference", "networkx")
    return table(
        ["graph", "tasks", "engine", "with reading", "in Python", "longest path", "ratio", "with reading, ratio"],
        [
            [row["graph"], f"{row['tasks']:,}", *(f"{row[name]:,.0f}" if name in row else "" for name in names),
             *(f"{row[name] / row['reference']:.1f}" for name in names[:2])]
            for row in rows
        ],
    )  # fmt: skip


def jobs(rows: list[dict[str, Any]]) -> list[str]:
    """Seconds and memory of a replayed job, a row a number of workers."""
    return table(
        ["workers", "commits", "seconds", "CPU seconds", "CPU microseconds a commit", "peak memory (MB)", "limit"],
        [
            [f"{row['workers']:,}", f"{row['commits']:,}", f"{row['seconds']:.1f}", f"{row['cpu_s']:.1f}",
             f"{1e6 * row['cpu_s'] / row['commits']:.1f}", f"{row['memory_mb']:,.0f}", row["limit"]]
            for row in rows
        ],
    )  # fmt: skip


def folded(rows: list[dict[str, float]]) -> list[str]:
    """Seconds of each way to replay a job, a row a job."""
    headings = [
        "ranks", "micro-batches", "all ranks (s)", "a rank a stage (s)", "merged ops (s)", "all by merged",
        "a rank a stage by merged",
    ]  # fmt: skip
    return table(
        headings,
        [
            [
                f"{row['ranks']:,}", f"{row['micro_batches']}", f"{row['all']:.2f}" if "all" in row else "–",
                f"{row['folded']:.2f}", f"{row['merged']:.2f}",
                f"{row['all'] / row['merged']:.1f}" if "all" in row else "–", f"{row['folded'] / row['merged']:.1f}",
            ]
            for row in rows
        ],
        left=0,
    )  # fmt: skip


def scoring(rows: list[dict[str, Any]]) -> list[str]:
    """Candidates a second of both cost models, and what ours spends a candidate."""

    def each(row: dict[str, Any], key: str) -> str:
        return f"{1e6 * row[key] / row['candidates']:,.0f}"

    lines = [
        [
            row["target"],
            row["task"],
            f"{row['candidates']:,}",
            f"{row['candidates'] / row['ours_s']:,.0f}",
            f"{row['candidates'] / row['xgb_s']:,.0f}",
            f"{row['xgb_s'] / row['ours_s']:.1f}",
            *(each(row, key) for key in ("hash_s", "read_s", "judge_s", "learned_s")),
            f"{1e3 * row['read_ms']:,.0f}",
            f"{1e3 * row['lower_ms']:,.0f}",
        ]
        for row in rows
    ]
    headings = ["target", "task", "candidates", "ours (1/s)", "XGBModel (1/s)", "ratio", "hash (us)", "read (us)"]
    headings += ["judge (us)", "learned (us)", "read, one core (us)", "lower and read, one core (us)"]
    return table(headings, lines, left=2)


def gpu_code(rows: list[dict[str, Any]]) -> list[str]:
    """Milliseconds a program of each step, a row an operator."""
    steps = ("ast_s", "source_s", "compile_s", "execute_s")
    lines = [
        [
            row["task"],
            row["programs"],
            f"{row['instructions']:,.0f}",
            *(f"{1e3 * row[step]:,.0f}" for step in steps),
            f"{1e3 * sum(row[step] for step in steps):,.0f}",
            row["refused"],
        ]
        for row in rows
    ]
    headings = ["operator", "programs", "instructions", "AST (ms)", "CUDA source (ms)", "nvcc, cuobjdump (ms)"]
    return table([*headings, "decode, execute, time (ms)", "all (ms)", "refused"], lines)


def serving(result: dict[str, Any]) -> list[str]:
    """Latencies of each load, and what bad requests leave behind."""
    head = ["load", "requests", "answered a second", "refused", "median, ms", "p99, ms", "longest, ms", "CPU, ms"]
    loads = [
        [row["load"], f"{row['requests']:,}", f"{row['per_s']:.0f}", row["refused"], f"{row['median_ms']:.1f}",
         f"{row['p99_ms']:.1f}", f"{row['most_ms']:.0f}", f"{row['cpu_ms']:.2f}"]
        for row in result["loads"]
    ]  # fmt: skip
    bad = result["bad"]
    names = {"listening_mb": "memory of the process that listens, MB", "processes_mb": "of the others, MB",
             "files": "open files", "threads": "threads", "processes": "processes",
             "temporary": "temporary files"}  # fmt: skip
    left = [[title, f"{bad['before'][key]:,}", f"{bad['after'][key]:,}"] for key, title in names.items()]
    statuses = ", ".join(f"{many:,} with {status}" for status, many in sorted(bad["statuses"].items()))
    told = (
        f"{bad['requests']:,} bad requests of {bad['kinds']} kinds: {statuses}; answered by another status than "
        f"theirs: {len(bad['wrong'])}; tracebacks: {bad['tracebacks']}; exit status after SIGTERM: {bad['exit']}."
    )
    return [*table(head, loads), "", *textwrap.wrap(told, 120), "", *table(["", "before", "after"], left)]


def cluster(rows: list[dict[str, Any]]) -> list[str]:
    """Seconds of both, and how much more the cluster takes."""
    head = ["task", "tasks", "CPU s, two processes", "CPU s, Dask", "overhead", "wall s, two processes", "wall s, Dask",
            "overhead of wall"]  # fmt: skip
    lines = [
        [f"{row['length_ms']:g} ms", f"{row['tasks']:,}",
         *(text for kind in ("cpu_s", "wall_s") for text in (
             f"{row['local'][kind]:.1f}", f"{row['dask'][kind]:.1f}",
             f"{100 * (row['dask'][kind] / row['local'][kind] - 1):+.1f} %",
         ))]
        for row in rows
    ]  # fmt: skip
    return table(head, lines)

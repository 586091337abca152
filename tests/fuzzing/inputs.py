"""Valid things to predict, and mutants of them: TVMScript files, tuning databases, data sets, stored ASTs."""

from __future__ import annotations

import base64
import gzip
import json
import random
import re
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fuzzing.audit.sitecustomize import CANARY
from fuzzing.mutate import ODD_CHARACTERS, damage_parquet, damaged_bytes, damaged_json, damaged_text, junk, to_json

ROOT = Path(__file__).parents[2]
SHIPPED_DATA = ROOT / "datasets" / "epyc-genoa"
KINDS = ("script", "database", "dataset", "asts")
DEVICE = {"script": "xeon-icelake", "database": "a100", "dataset": "epyc-genoa", "asts": "epyc-genoa"}
MODEL = {"script": "xeon-icelake", "database": "a100", "dataset": "epyc-genoa", "asts": "epyc-genoa"}
_PROGRAMS = 6

RUN = f"mkdir('{CANARY}')"
ATTACKS = [
    f"__import__('os').{RUN}",
    f"(lambda m: m.os.{RUN})(T)",
    f"T.entry.inspect.os.{RUN}",
    f"T.parser.tvm.os.{RUN}",
    f"(lambda m: m.parser.core.entry.inspect.os.{RUN})(I)",
    f"(T, I)[0].entry.inspect.os.{RUN}",
    f'T.utils.inspect.sys.modules["os"].{RUN}',
    f"T.inline(lambda m: m.os.{RUN})(T)",
    f"[T][0].parser.tvm.os.{RUN}",
    f'T.entry.parse("import os; os.{RUN}")',
    f"(m := T).entry.inspect.os.{RUN}",
    f"[m.entry.inspect.os.{RUN} for m in [T]][0]",
    f"eval(\"__import__('os').{RUN}\")",
    f"getattr(T, 'entry').inspect.os.{RUN}",
    f"T.meta_var(T).value.entry.inspect.os.{RUN}",
    f"open('{CANARY}', 'w')",
    f"T.call_packed('os.system', 'mkdir {CANARY}')",
    f"T.call_extern('int32', 'system', 'mkdir {CANARY}')",
    f"f\"{{__import__('os').{RUN}}}\"",
    f"A.__class__.__init__.__globals__['os'].{RUN}",
    f'"); __import__("os").{RUN} #',
    f"../../../../{CANARY}",
    f"{CANARY}/../../{CANARY}",
]
_STATEMENTS = ["import os; {}", "x = {}", "@{}\ndef f(a={}): pass", "class C({}): pass", "for i in {}: pass",
               "with {} as a: pass", "assert {}", "def f(a: {} = 0) -> {}: pass", "del A[{}]"]  # fmt: skip


def write_bases(home: Path) -> None:
    """Small valid inputs of each kind below ``home``; what a mutant starts from. Needs no TVM."""
    tasks = pq.read_table(SHIPPED_DATA / "tasks.parquet")
    workloads = sorted(tasks.column("workload").to_pylist(), key=len)
    scripts = [(ROOT / "examples" / "matmul.py").read_text(), *workloads[:60:10]]
    for i, text in enumerate(scripts):
        path = home / "script" / f"{i}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for name in ("resnet34_a100", "legacy_resnet34"):
        for file in ("database_workload.json", "database_tuning_record.json"):
            lines = gzip.decompress((ROOT / "tests" / "fixtures" / name / f"{file}.gz").read_bytes()).splitlines()
            path = home / "database" / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"\n".join(lines if "workload" in file else lines[:3]) + b"\n")
    records = pq.read_table(sorted((SHIPPED_DATA / "records").glob("*.parquet"))[0]).slice(0, _PROGRAMS)
    ids, data = set(records.column("record_id").to_pylist()), home / "dataset"
    needed = set(records.column("task_id").to_pylist())
    codes = _rows(pq.read_table(SHIPPED_DATA / "codes" / "part-00000.parquet"), "record_id", ids)
    parts = {"records": records, "asts": _asts_of(ids), "codes": codes}
    for part, table in parts.items():
        (data / part).mkdir(parents=True)
        pq.write_table(table, data / part / "part-00000.parquet")
    pq.write_table(_rows(tasks, "task_id", needed), data / "tasks.parquet")
    info = json.loads((SHIPPED_DATA / "dataset.json").read_text())
    (data / "dataset.json").write_text(json.dumps({**info, "networks": []}))
    (home / "asts").mkdir()
    pq.write_table(parts["asts"], home / "asts" / "asts.parquet")


def _asts_of(ids: set):
    """What ``asts/shared.parquet`` of the shipped data stands for, as a part of its own."""
    shared = _rows(pq.read_table(SHIPPED_DATA / "asts" / "shared.parquet"), "record_id", ids)
    own = dict(zip(shared["same_as"].to_pylist(), shared["record_id"].to_pylist(), strict=True))
    there = pq.read_table(SHIPPED_DATA.parent / "xeon-icelake" / "asts" / "part-00000.parquet")
    rows = _rows(there, "record_id", set(own))
    names = pa.array([own[name] for name in rows["record_id"].to_pylist()])
    return rows.set_column(0, "record_id", names).replace_schema_metadata(there.schema.metadata)


def _rows(table, column: str, wanted: set):
    return table.filter(np.isin(table.column(column).to_numpy(zero_copy_only=False), list(wanted)))


def valid(kind: str, home: Path) -> Path:
    """One input of ``kind`` as it should be."""
    names = {"script": "0.py", "database": "resnet34_a100", "dataset": "", "asts": "asts.parquet"}
    return home / kind / names[kind]


def write_mutant(kind: str, home: Path, out: Path, rng: random.Random) -> Path:
    """One mutant of ``kind`` in the empty folder ``out``; what ``cdmpp predict`` is to be given."""
    return {"script": _script, "database": _database, "dataset": _dataset, "asts": _asts}[kind](home / kind, out, rng)


def _script(base: Path, out: Path, rng: random.Random) -> Path:
    text, path = rng.choice(sorted(base.glob("*.py"))).read_text(), out / "mutant.py"
    choice = rng.random()
    if choice < 0.35:
        text = damaged_text(text, rng)
    elif choice < 0.75:
        text = _attacked(text, rng)
    elif choice < 0.85:
        text = _attacked(damaged_text(text, rng), rng)
    elif choice < 0.93:
        path.write_bytes(damaged_bytes(text.encode(), rng))
        return path
    else:
        text = _huge(text, rng)
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    return path


def _attacked(text: str, rng: random.Random) -> str:
    """An attack in the place of an expression, as a statement, in a comment that may end early, or within a text."""
    attack, lines = rng.choice(ATTACKS), text.split("\n")
    at, line = rng.randrange(len(text)), rng.randrange(len(lines))
    indent = lines[line][: len(lines[line]) - len(lines[line].lstrip())]
    match rng.randrange(7):
        case 5:  # text that a checker may count as another line than the parser does
            end = rng.choice("\x0c\x1c\x85\u2028\u2029\x0b\r")
            hidden = f'"""\n@T.prim_func\ndef f(a: {attack}): pass\n"""'
            return f"# {end * rng.choice([1, 3, 9])}\n{hidden}\n{text}"
        case 6:
            calls = list(re.finditer(r"T\.\w+\([^()]*\)", text)) or [re.search("", text)]
            call = rng.choice(calls)
            return text[: call.start()] + attack + text[call.end() :]
        case 0:
            places = [i for i, c in enumerate(text) if c in "(,=[:"] or [at]
            place = rng.choice(places) + 1
            return text[:place] + " " + attack + (", " if rng.random() < 0.5 else " or ") + text[place:]
        case 1:
            lines.insert(line, indent + rng.choice(_STATEMENTS).replace("{}", attack).replace("\n", "\n" + indent))
        case 2:
            end = rng.choice(ODD_CHARACTERS) * 3
            lines.insert(line, f'{indent}# {end}{attack}{end}\n{indent}"""{end}{attack}"""')
        case 3:
            digits = [i for i, c in enumerate(text) if c.isdigit()] or [at]
            place = rng.choice(digits)
            return text[:place] + attack + text[place + 1 :]
        case _:
            quotes = [i for i, c in enumerate(text) if c == '"'] or [at]
            place = rng.choice(quotes) + 1
            return text[:place] + attack + text[place:]
    return "\n".join(lines)


def _huge(text: str, rng: random.Random) -> str:
    n = rng.choice([300, 3000])
    nested = "(" * n + "1" + ")" * n
    return rng.choice(
        [text.replace("8", str(10**rng.choice([9, 19, 40])), 1), text.replace(" + ", f" + {nested} + "),
         text.replace(" = ", " = " + " + ".join(["1"] * n) + " + ", 2), text.replace("T.grid(", "T.grid(" + "2, " * 60),
         "\n".join("    " * min(i, 90) + f"for i{i} in range(2):" for i in range(n)), text * 40, "(" * n, "x" * n * 100]
    )  # fmt: skip


def _database(base: Path, out: Path, rng: random.Random) -> Path:
    name = rng.choice(["resnet34_a100"] * 4 + ["legacy_resnet34"])
    folder = out / "resnet34_a100"
    shutil.copytree(base / name, folder)
    path = folder / rng.choice(["database_workload.json", "database_tuning_record.json"])
    if rng.random() < 0.2:
        path.write_bytes(damaged_bytes(path.read_bytes(), rng))
        return folder
    if rng.random() < 0.05:
        path.unlink()
        return folder
    lines = path.read_text().splitlines()
    place = rng.randrange(len(lines))
    value = json.loads(lines[place])
    if path.name == "database_workload.json" and rng.random() < 0.8:
        graph = base64.b64decode(value[1])
        try:  # of TVM 0.27 base64 of JSON text behind eight bytes of its length
            start = graph.index(b"{")
            inner = to_json(damaged_json(json.loads(graph[start:]), rng, [rng.choice(ATTACKS)]))
            graph = graph[:start] + inner.encode("utf-8", "surrogatepass")
            if start == 8:
                graph = len(graph[8:]).to_bytes(8, "little") + graph[8:]
        except ValueError:
            graph = damaged_bytes(graph, rng)
        value[1] = base64.b64encode(graph).decode()
    else:
        value = damaged_json(value, rng, [rng.choice(ATTACKS)])
    lines[place] = to_json(value)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8", errors="surrogatepass")
    return folder


def _dataset(base: Path, out: Path, rng: random.Random) -> Path:
    folder = out / "data"
    shutil.copytree(base, folder)
    for part in ("asts", "codes"):
        if rng.random() < 0.4:  # to be derived: workloads and schedules reach TVM
            shutil.rmtree(folder / part)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    for path in rng.sample(files, min(len(files), rng.choice([1, 1, 2]))):
        if path.suffix == ".parquet":
            damage_parquet(path, rng, ATTACKS)
        elif rng.random() < 0.3:
            path.write_bytes(damaged_bytes(path.read_bytes(), rng))
        else:
            value = json.loads(path.read_text())
            value = rng.choice([{**value, "name": rng.choice(ATTACKS)}, damaged_json(value, rng, ATTACKS)])
            path.write_text(to_json(value), encoding="utf-8", errors="surrogatepass")
    return folder


def _asts(base: Path, out: Path, rng: random.Random) -> Path:
    path = out / "asts.parquet"
    shutil.copy(base / path.name, path)
    damage_parquet(path, rng, [rng.choice(ATTACKS), to_json(junk(rng, ATTACKS))[:50]])
    return path

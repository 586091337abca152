"""Scripts that would run something if they were executed, and the harmless one they are made from."""

from __future__ import annotations

import random

SCRIPT = """from tvm.script import ir as I
from tvm.script import tirx as T

@I.ir_module
class Module:
    @T.prim_func(s_tir=True)
    def main(A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "float32")):
        T.func_attr({"tirx.noalias": True})
        for i in T.serial(8, annotations={"pragma_auto_unroll_max_step": 16}):
            with T.sblock("B"):
                v = T.axis.spatial(8, i)
                T.reads(A[v])
                T.writes(B[v])
                B[v] = T.max(A[v], T.float32(0))
"""

RUN = "mkdir('ran')"
EXPRESSIONS = [
    f"__import__('os').{RUN}",
    f"(lambda m: m.os.{RUN})(T)",
    f"(lambda m: m.parser.core.entry.inspect.os.{RUN})(I)",
    f"T.entry.inspect.os.{RUN}",
    f"T.parser.tvm.os.{RUN}",
    f"[T][0].parser.tvm.os.{RUN}",
    f"(T, I)[0].entry.inspect.os.{RUN}",
    f"{{'a': T}}['a'].entry.inspect.os.{RUN}",
    f'T.entry.parse("import os; os.{RUN}")',
    f'T.utils.inspect.sys.modules["os"].{RUN}',
    f"(m := T).entry.inspect.os.{RUN}",
    f"[m.entry.inspect.os.{RUN} for m in [T]][0]",
    f"{{m.entry.inspect.os.{RUN} for m in [T]}}",
    f"list(m.entry.inspect.os.{RUN} for m in [T])[0]",
    f"eval(\"__import__('os').{RUN}\")",
    f'exec("import os; os.{RUN}")',
    f"T.float32(0).__class__.__base__.__subclasses__()[0].{RUN}",
    f"getattr(T, 'entry').inspect.os.{RUN}",
    f"T.macro(lambda: __import__('os').{RUN})()",
    f"T.inline(lambda m: m.os.{RUN})(T)",
    f"T.meta_var(T).value.entry.inspect.os.{RUN}",
    f"T.max(*[__import__('os').{RUN}])",
    f"T.max(**{{'a': __import__('os').{RUN}}})",
    "open('ran', 'w')",
    "T.call_packed('os.system', 'mkdir ran')",
    "T.call_extern('int32', 'system', 'mkdir ran')",
    "T.call_llvm_intrin('float32', 'llvm.trap')",
    "T.cuda.func_call('f', source_code='asm')",
    "T.tvm_call_cpacked('system', 'mkdir ran')",
    "f\"{__import__('os').mkdir('ran')}\"",
    f"(yield __import__('os').{RUN})",
    f"T.float32(0) if __import__('os').{RUN} else T.float32(1)",
    f"A.__class__.__init__.__globals__['os'].{RUN}",
    "breakpoint()",
]
PLACES = [
    ("T.float32(0)", "{}"),
    ("T.serial(8,", "T.serial({},"),
    ("T.axis.spatial(8, i)", "T.axis.spatial({}, i)"),
    ("T.Buffer((8,)", "T.Buffer(({},)"),
    ('T.sblock("B")', "T.sblock({})"),
    ("T.reads(A[v])", "T.reads(A[{}])"),
    ('"tirx.noalias": True', '"tirx.noalias": {}'),
    ('"pragma_auto_unroll_max_step": 16', '"pragma_auto_unroll_max_step": {}'),
    ("s_tir=True", "s_tir={}"),
    ("B[v] = T.max", "B[{}] = T.max"),
]
WHOLE = {
    "default argument": SCRIPT.replace('"float32")):', f"\"float32\") = __import__('os').{RUN}):"),
    "annotation": SCRIPT.replace('A: T.Buffer((8,), "float32")', f"A: __import__('os').{RUN}"),
    "annotation in quotes": SCRIPT.replace('A: T.Buffer((8,), "float32")', f"A: \"__import__('os').{RUN}\""),
    "decorator": SCRIPT.replace("@I.ir_module", f"@__import__('os').{RUN}"),
    "second decorator": SCRIPT.replace("@I.ir_module", f"@__import__('os').{RUN}\n@I.ir_module"),
    "decorator argument": SCRIPT.replace("@I.ir_module", f"@I.ir_module(check_well_formed=__import__('os').{RUN})"),
    "base class": SCRIPT.replace("class Module:", f"class Module(__import__('os').{RUN}):"),
    "metaclass": SCRIPT.replace("class Module:", f"class Module(metaclass=__import__('os').{RUN}):"),
    "class body": SCRIPT.replace("class Module:", f"class Module:\n    x = __import__('os').{RUN}"),
    "return annotation": SCRIPT.replace('"float32")):', f"\"float32\")) -> __import__('os').{RUN}:"),
    "import": SCRIPT.replace("        for i", f"        import os\n        os.{RUN}\n        for i"),
    "star parameter": SCRIPT.replace('"float32")):', f"\"float32\"), *c: __import__('os').{RUN}):"),
    "with": SCRIPT.replace('with T.sblock("B"):', "with open('ran', 'w'):"),
    "with as": SCRIPT.replace('T.sblock("B"):', f"T.sblock(\"B\") as B[__import__('os').{RUN}]:"),
    "loop over a list": SCRIPT.replace("T.serial(8, ", f"list([__import__('os').{RUN}] or "),
    "while": SCRIPT.replace("        for i", f"        while __import__('os').{RUN}:\n            pass\n        for i"),
    "assert": SCRIPT.replace("        for i", f"        assert __import__('os').{RUN}\n        for i"),
    "del": SCRIPT.replace("        for i", f"        del A[__import__('os').{RUN}]\n        for i"),
    "inner function": SCRIPT.replace("        for i", f"        def f(a=__import__('os').{RUN}): pass\n        for i"),
    "try": SCRIPT.replace(
        "        for i", f"        try: __import__('os').{RUN}\n        finally: pass\n        for i"
    ),
    "rebound T": SCRIPT.replace("        for i", "        T = I\n        for i"),
    "rebound name": SCRIPT.replace(
        "v = T.axis", f"v = eval\n                v(\"__import__('os').{RUN}\")\n                v = T.axis"
    ),
    "module attribute": SCRIPT.replace("T.max(", f"T.os.{RUN} or T.max("),
    "huge power": SCRIPT.replace("T.float32(0)", "9 ** 9 ** 9 ** 9"),
    "huge shift": SCRIPT.replace("T.float32(0)", "1 << 10 ** 12"),
    "long text": SCRIPT.replace("T.float32(0)", "'a' * 10 ** 12"),
    "long list": SCRIPT.replace("T.reads(A[v])", "T.reads([A[v]] * 10 ** 12)"),
    "pragma with text": SCRIPT.replace('"pragma_auto_unroll_max_step": 16', '"pragma_import_llvm": "evil.ll"'),
    "pragma with code": SCRIPT.replace('"pragma_auto_unroll_max_step": 16', '"pragma_import_c": "main"'),
    "quoted shape": SCRIPT.replace("T.Buffer((8,)", 'T.Buffer(("T.entry",)'),
}
# Line ends that `str.splitlines` knows and Python's parser does not: code stood in text that nobody looked at.
for _name, _end in {
    "form feed": "\x0c",
    "file separator": "\x1c",
    "next line": "\x85",
    "line separator": "\u2028",
}.items():
    WHOLE[_name] = (
        f'# {_end * 3}\n"""\n@T.prim_func\ndef f(a: __import__("os").mkdir("ran")): pass\n"""\n'
        + SCRIPT.replace("T.float32(0)", "T.entry.inspect")
    )


def attacks() -> list[tuple[str, str]]:
    generator = random.Random(0)
    found = list(WHOLE.items())
    for expression in EXPRESSIONS:
        for old, new in generator.sample(PLACES, 3):
            assert old in SCRIPT
            found.append((f"{expression} in {old}", SCRIPT.replace(old, new.format(expression), 1)))
    return found

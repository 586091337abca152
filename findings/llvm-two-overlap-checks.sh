#!/bin/bash
# What surprises: LLVM's loop vectoriser guards a loop over buffers that may overlap in two ways. Where it can subtract
# the pointers, it compares their difference with the bytes of one step and calls that %diff.check, in the block that
# checks the number of iterations; else it compares ends with beginnings and calls that %found.conflict, in a block
# vector.memcheck of its own. A reader that knows one of them takes the other for a branch that data decide, and counts
# half of each run in a scalar loop that never executes. Evaluate the comparison: no name is part of LLVM's interface.
# Versions: llvmlite 0.45.1, which holds LLVM 20; LLVM 22 does the same.
# One would expect: one kind of check with one name.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet llvmlite==0.45.1
"$folder/venv/bin/python" - <<'PYTHON'
import re
import sys

import llvmlite
import llvmlite.binding as llvm

print("llvmlite", llvmlite.__version__, "LLVM", *llvm.llvm_version_info)
llvm.initialize_native_target()
llvm.initialize_native_asmprinter()
COPY = """
target datalayout = "e-m:e-p270:32:32-p271:32:32-p272:64:64-i64:64-i128:128-f80:128-n8:16:32:64-S128"
target triple = "x86_64-unknown-linux-gnu"
define void @f(ptr %x, ptr %y, ptr %z, i64 %n) {
entry:
  br label %body
body:
  %i = phi i64 [ 0, %entry ], [ %next, %body ]
  %from = getelementptr float, ptr %x, i64 %i
  %value = load float, ptr %from
  %other = load float, ptr OTHER
  %sum = fadd float %value, %other
  %to = getelementptr float, ptr %y, i64 %i
  store float %sum, ptr %to
  %next = add nuw i64 %i, 1
  %done = icmp eq i64 %next, %n
  br i1 %done, label %end, label %body
end:
  ret void
}
"""


def checks(other):
    """Names of the checks and blocks that guard the vector loop, where the second operand is read from ``other``."""
    module = llvm.parse_assembly(COPY.replace("OTHER", other))
    machine = llvm.Target.from_triple("x86_64-unknown-linux-gnu").create_target_machine(cpu="haswell", opt=3)
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=3))
    builder.getModulePassManager().run(module, builder)
    return sorted(set(re.findall(r"(%diff\.check|%found\.conflict|^vector\.memcheck)", str(module), re.MULTILINE)))


moving, fixed = checks("%from"), checks("%z")
print("both operands at %x + i:", *moving)
print("one operand always at %z:", *fixed)
sys.exit(0 if moving == ["%diff.check"] and fixed == ["%found.conflict", "vector.memcheck"] else 1)
PYTHON

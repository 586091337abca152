#!/bin/bash
# What surprises: the first TuneContext in a process, whatever its target, parses the tensor intrinsics of every kind of
# processor, 248 functions of TVMScript, most of them CUDA's. The decorator of each calls inspect.stack(), which looks
# for the source file and the lines of every frame. That search, not the parsing, is most of the time; it grows with the
# modules that are imported and with the depth of the stack: 20 s next to torch, 100 s in a test of pytest.
# Versions: apache-tvm 0.27.0.post1.
# One would expect: a context imports what its target may use, and a decorator looks at the frames that it needs.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet apache-tvm==0.27.0.post1 numpy==2.4.0 psutil==7.1.3 cloudpickle==3.1.2
cat >"$folder/context.py" <<'PYTHON'
import inspect
import sys
import time
from traceback import walk_stack

import tvm
from tvm.s_tir import meta_schedule

calls, stack = [], inspect.stack


def bare(context=1):
    calls.append(1)
    if sys.argv[1] == "as it is":
        return stack(context)[1:]
    return [
        inspect.FrameInfo(frame, frame.f_code.co_filename, line, frame.f_code.co_name, None, None)
        for frame, line in walk_stack(sys._getframe(1))
    ]


inspect.stack = bare
begin = time.process_time()
meta_schedule.TuneContext(target=tvm.target.Target({"kind": "llvm", "num-cores": 1}))
print(time.process_time() - begin, len(calls), "tvm.s_tir.tensor_intrin.cuda" in sys.modules)
PYTHON
read -r slow calls cuda < <("$folder/venv/bin/python" "$folder/context.py" "as it is")
read -r fast _ _ < <("$folder/venv/bin/python" "$folder/context.py" "without sources")
echo "a context for a CPU: $slow s, with $calls calls of inspect.stack; CUDA's intrinsics imported: $cuda"
echo "the same where inspect.stack looks for no sources: $fast s"
[ "$cuda" = True ] && python3 -c "import sys; sys.exit(not $slow > 2 * $fast)"

#!/usr/bin/env bash
# TVM's ONNX importer: attributes that it does not read, and domains, change nothing, and nothing is said.
#
# `from_onnx` looks a node up by its op_type alone and reads the attributes that its converter knows. So
#   - ConvTranspose with output_shape=[10, 10] becomes one that makes 11 x 11;
#   - MaxPool with auto_pad=SAME_LOWER makes 3 columns of 7 by a stride of 2, where SAME_UPPER makes the right 4;
#   - TopK of operator set 10 returns one element whatever k is;
#   - Relu of the domain com.example, which may be anything, becomes the standard's Relu;
#   - operator set 99, which does not exist, is imported; onnx.checker.check_model, full_check included, accepts it too.
# Expected: an error that names the node, or the result that onnx.shape_inference declares.
#
# Seen with apache-tvm 0.27.0.post1 and onnx 1.23.2. Needs Linux on x86-64 or AArch64, Python 3.11 to 3.13, no GPU.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet apache-tvm==0.27.0.post1 apache-tvm-ffi==0.1.14.post1 onnx==1.23.2 numpy==2.4.6
"$work/venv/bin/python" - 2>/dev/null <<'EOF'
import sys

import numpy as np
import onnx
import tvm
from onnx import TensorProto, helper, numpy_helper
from tvm.relax.frontend.onnx import from_onnx

print(f"apache-tvm {tvm.__version__}, onnx {onnx.__version__}")


def model(operator, shape, weights, opset=18, outputs=1, domain="", **attributes):
    names = [f"y{i}" for i in range(outputs)]
    node = helper.make_node(operator, ["x", *(f"w{i}" for i in range(len(weights)))], names, domain=domain, **attributes)
    given = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    results = [helper.make_empty_tensor_value_info(name) for name in names]
    stored = [numpy_helper.from_array(value, f"w{i}") for i, value in enumerate(weights)]
    sets = [helper.make_opsetid("", opset), *([helper.make_opsetid(domain, 1)] if domain else [])]
    return helper.make_model(helper.make_graph([node], "g", given, results, stored), opset_imports=sets, ir_version=9)


def declared(made):
    value = onnx.shape_inference.infer_shapes(made, strict_mode=True, data_prop=True).graph.output[0]
    return [dim.dim_value for dim in value.type.tensor_type.shape.dim]


def imported(made):
    kind = from_onnx(made)["main"].ret_ty
    kind = kind.fields[0] if hasattr(kind, "fields") else kind
    return [int(size) for size in kind.shape.values]


surprise = True
weights = [np.ones((4, 3, 3, 3), np.float32)]
for name, made, found in (
    ("ConvTranspose, output_shape", model("ConvTranspose", [1, 4, 5, 5], weights, strides=[2, 2], output_shape=[10, 10]), [1, 3, 11, 11]),
    ("MaxPool, SAME_LOWER", model("MaxPool", [1, 3, 8, 7], [], kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_LOWER"), [1, 3, 4, 3]),
    ("TopK, set 10, k = 3", model("TopK", [3, 4], [np.array([3])], 10, 2, axis=1), [3, 1]),
):
    print(f"{name}: {declared(made)} by the standard, {imported(made)} by TVM")
    surprise &= imported(made) == found != declared(made)
foreign = "R.nn.relu" in from_onnx(model("Relu", [2, 3], [], domain="com.example")).script()
print(f"com.example:Relu is imported as R.nn.relu: {foreign}")
future = model("Relu", [2, 3], [], 99)
future.graph.output[0].CopyFrom(helper.make_tensor_value_info("y0", TensorProto.FLOAT, [2, 3]))
onnx.checker.check_model(future, full_check=True)
print(f"operator set 99 passes onnx.checker, and is imported as {imported(future)}")
sys.exit(0 if surprise and foreign and imported(future) == [2, 3] else 1)
EOF
echo "as described: settings that the importer does not know change nothing, and nothing is said"

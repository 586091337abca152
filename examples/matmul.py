"""A product of two 512 x 512 matrices with ReLU, scheduled for a CPU: tiled for registers, parallel and vectorised.

cdmpp predict examples/matmul.py --device xeon-icelake
"""

from tvm.script import ir as I
from tvm.script import tirx as T

N = 512


@I.ir_module
class MatmulRelu:
    @T.prim_func(s_tir=True)
    def main(
        A: T.Buffer((N, N), "float32"),
        B: T.Buffer((N, N), "float32"),
        D: T.Buffer((N, N), "float32"),
    ):
        T.func_attr({"tirx.noalias": True})
        C = T.sblock_alloc_buffer((N, N))
        for rows in T.parallel(64):  # 8 rows of the result each
            for columns in range(16):  # 32 columns
                for row in T.unroll(8):
                    for column in T.vectorized(32):
                        with T.sblock("C_init"):
                            i = T.axis.spatial(N, rows * 8 + row)
                            j = T.axis.spatial(N, columns * 32 + column)
                            C[i, j] = T.float32(0)
                for summand in range(512):
                    for row in T.unroll(8):
                        for column in T.vectorized(32):
                            with T.sblock("C"):
                                i = T.axis.spatial(N, rows * 8 + row)
                                j = T.axis.spatial(N, columns * 32 + column)
                                k = T.axis.reduce(N, summand)
                                C[i, j] = C[i, j] + A[i, k] * B[k, j]
                for row in T.unroll(8):
                    for column in T.vectorized(32):
                        with T.sblock("D"):
                            i = T.axis.spatial(N, rows * 8 + row)
                            j = T.axis.spatial(N, columns * 32 + column)
                            D[i, j] = T.max(C[i, j], T.float32(0))

"""A network prediction made by hand: ResNet-like, 62 calls of 21 kernels, with numbers as an A100 would have them."""

from __future__ import annotations

from collections.abc import Sequence

from cdmpp.network.prediction import Bounds, KernelPrediction, NetworkPrediction
from cdmpp.simulate import Task, simulate

GAP_S = 2.1e-6
# name, op class, calls, latency in us, GFLOP, MB
_KERNELS = [
    ("fused_conv2d_batch_norm_relu_stem", "conv2d", 1, 38.2, 0.236, 7.2),
    ("fused_max_pool2d", "pool", 1, 7.4, 0.0018, 4.0),
    ("fused_conv2d1_batch_norm_relu", "conv2d", 1, 9.8, 0.0257, 1.66),
    ("fused_conv2d2_batch_norm_relu", "conv2d", 3, 27.5, 0.2312, 1.75),
    ("fused_conv2d3_batch_norm_add_relu", "conv2d", 3, 22.3, 0.1028, 7.3),
    ("fused_conv2d4_batch_norm_relu", "conv2d", 2, 21.0, 0.1028, 4.1),
    ("fused_conv2d5_batch_norm_relu", "conv2d", 4, 29.1, 0.2312, 1.4),
    ("fused_conv2d6_batch_norm_add_relu", "conv2d", 4, 18.8, 0.1028, 3.9),
    ("fused_conv2d7_batch_norm_relu", "conv2d", 3, 18.1, 0.1028, 2.3),
    ("fused_conv2d8_batch_norm_relu", "conv2d", 6, 34.9, 0.2312, 2.8),
    ("fused_conv2d9_batch_norm_add_relu", "conv2d", 6, 19.9, 0.1028, 2.9),
    ("fused_conv2d10_batch_norm_relu", "conv2d", 5, 18.6, 0.1028, 2.1),
    ("fused_conv2d11_batch_norm_relu", "conv2d", 3, 52.2, 0.2312, 9.6),
    ("fused_conv2d12_batch_norm_add_relu", "conv2d", 3, 24.1, 0.1028, 4.9),
    ("fused_conv2d13_batch_norm_relu", "conv2d", 2, 23.3, 0.1028, 4.6),
    ("fused_conv2d14_winograd_a_kernel_of_a_very_long_name_that_no_column_can_hold_whole", "winograd", 6, 31, 0.1, 5.1),
    ("fused_add_relu", "elementwise", 4, 4.1, 0.0002, 2.4),
    ("fused_mean_softmax<b>&amp;", "reduce", 1, 5.2, 0.0001, 0.41),
    ("reshape", "elementwise", 2, 2.9, 0.0, 0.02),
    ("плотный_слой_全結合", "dense", 1, 11.8, 0.0041, 8.2),
    ("fused_transpose", "data movement", 1, 3.3, 0.0, 0.8),
]


def kernels(intervals: bool = True, measured: bool = True) -> tuple[KernelPrediction, ...]:
    """Every third kernel has been measured; two have flags."""
    made = []
    for i, (name, op_class, count, micros, gflop, megabytes) in enumerate(_KERNELS):
        seconds = 1e-6 * micros
        bounds: Bounds = {level: (seconds / f, seconds * f) for level, f in ((0.8, 1.2), (0.9, 1.4))}
        intensity = gflop * 1e3 / megabytes
        made.append(
            KernelPrediction(
                task_id=f"task{i}",
                name=name,
                op_class=op_class,
                count=count,
                latency_s=seconds,
                cold_s=1e6 * megabytes / 6e12,
                intervals=bounds if intervals else {},
                flops=1e9 * gflop,
                io_bytes=1e6 * megabytes,
                bound="compute" if intensity > 12.5 else "memory",
                candidates=16,
                flags=("unlike training",) if op_class in ("winograd", "reduce") else (),
                measured_s=seconds * (1.25, 0.93, 1.02, 0.8)[i // 3 % 4] if measured and i % 3 == 0 else None,
            )
        )
    return tuple(made)


def tasks_of(used: Sequence[KernelPrediction], engines: Sequence[str] = ("stream 0",)) -> list[Task]:
    """The calls in rounds, one after the other, or in turn on several engines."""
    made: list[Task] = []
    for turn in range(max(kernel.count for kernel in used)):
        for kernel in used:
            if turn < kernel.count:
                place = len(made)
                engine, after = engines[place % len(engines)], made[-len(engines) :][:1] if len(made) else []
                made.append(
                    Task(
                        f"{kernel.name}#{place}",
                        kernel.latency_s + kernel.cold_s,
                        (engine,),
                        tuple(task.key for task in after),
                        gap_s=GAP_S,
                        label=kernel.op_class,
                    )
                )
    return made


def example(
    used: Sequence[KernelPrediction] | None = None,
    engines: Sequence[str] = ("stream 0",),
    intervals: bool = True,
    **changes: object,
) -> NetworkPrediction:
    """Of ``used`` kernels, those of the list by default; ``changes`` are fields."""
    used = kernels(intervals) if used is None else tuple(used)
    timeline = simulate(tasks_of(used, engines)) if used else simulate([])
    latency = timeline.makespan_s
    fields: dict[str, object] = {
        "network": "torchvision:resnet50",
        "device": "a100",
        "model": "a100",
        "schedule": "best_of:16",
        "kernels": tuple(used),
        "timeline": timeline,
        "batch": 1,
        "intervals": {0.8: (0.86 * latency, 1.17 * latency), 0.9: (0.8 * latency, 1.3 * latency)} if intervals else {},
        "intervals_from": "the errors on 14 networks of which no kernel was trained on",
        "overhead_s": GAP_S * max(0, sum(kernel.count for kernel in used) - 1),
        "weight_bytes": 102_228_128,
        "input_bytes": 602_112,
        "activation_bytes": 9_633_792,
        "folded": 53,
        "warnings": (
            "The launch overhead of a100 was never timed: that of the h200 is used.",
            "2 of 21 kernels, 12% of the time: unlike training: farther from the training programs than 99 %",
        ),
    }
    return NetworkPrediction(**{**fields, **changes})  # type: ignore[arg-type]

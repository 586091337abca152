"""A Relax network as it is deployed: what only weights decide is computed once, in a function of its own."""

from __future__ import annotations

from typing import Any

FOLD = "fold"
"""Name of the function that is run once."""


def split_known(module: Any) -> tuple[Any, list[tuple[str, Any]]]:
    """Split into ``main(inputs, known values)`` and ``fold(weights)``, which returns these values as a tuple.

    The same kernels are folded as ``graph_of`` leaves out. TVM's own pass keeps those that read no weight at all.
    Returns the module and name and type of each parameter of ``fold``: weights, results of operators that no tensor
    program computes (a sum along an axis of a constant mask), and what is made of these. Their values are made up.
    """
    import tvm
    from tvm import relax

    passes = relax.transform
    module = tvm.transform.Sequential([passes.RewriteDataflowReshape(), passes.ToNonDataflow()])(module)
    main = module["main"]
    count = int(main.attrs["num_input"])
    inputs, given = list(main.params[:count]), list(main.params[count:])
    unknown, made_up = {_key(parameter) for parameter in inputs}, set[Any]()
    once, every = [], []
    for block in main.body.blocks:
        for binding in block.bindings:
            read = [_key(variable) for variable in relax.analysis.free_vars(binding.value)]
            if any(key in unknown for key in read):
                unknown.add(_key(binding.var))
                every.append(binding)
            elif _computes(binding.value) and not any(key in made_up for key in read):
                once.append(binding)
            else:
                made_up.add(_key(binding.var))
                given.append(binding.var)
    later = [key for b in every for key in map(_key, relax.analysis.free_vars(b.value))]
    later += map(_key, relax.analysis.free_vars(main.body.body))
    read_later = set(later) - unknown
    known = [v for v in (*given, *(binding.var for binding in once)) if _key(v) in read_later]
    told = [(variable.name, variable.ty) for variable in given]
    kept = tvm.ir.TupleType([variable.ty for variable in known])
    parts = {
        "main": ([*inputs, *known], every, main.body.body, main.ret_ty),
        FOLD: (given, once, relax.Tuple(known), kept),
    }
    for name, (parameters, bindings, result, kind) in parts.items():
        function = relax.Function(parameters, relax.SeqExpr([relax.BindingBlock(bindings)], result), kind)
        named = relax.utils.copy_with_new_vars(function).with_attr("global_symbol", name)
        module[name] = named.with_attr("num_input", count if name == "main" else 0)
    # A kernel that nothing calls any more may be one that LLVM cannot compile.
    return tvm.transform.Sequential([passes.Normalize(), passes.DeadCodeElimination(["main", FOLD])])(module), told


def _computes(value: Any) -> bool:
    import tvm

    name = getattr(getattr(value, "op", None), "name", "")
    return not isinstance(value, tvm.ir.Call) or name in ("relax.call_tir", "relax.reshape")


def _key(value: Any) -> Any:
    return value.__chandle__()

from __future__ import annotations

import numpy as np

from cdmpp.measure.timing import make_inputs


def test_floats_are_sane_and_fixed() -> None:
    arguments = [[[3, 1 << 20], "float32"], [[7], "float16"], [[], "float32"]]
    first, second = make_inputs(arguments), make_inputs(arguments)
    for array, again, (shape, dtype) in zip(first, second, arguments, strict=True):
        assert array.shape == tuple(shape) and array.dtype == np.dtype(dtype)
        assert np.array_equal(array, again)
        assert np.all(array >= 0.0999) and np.all(array <= 1.0)


def test_indices_fit_every_axis_of_every_table() -> None:
    ids, table, flags = make_inputs([[[1, 128], "int64"], [[30, 16], "float32"], [[4, 4], "bool"]])
    assert ids.min() >= 0 and ids.max() < table.shape[1] and len(np.unique(ids)) > 1
    assert flags.dtype == bool and flags.all()
    (lonely,) = make_inputs([[[8], "int32"]])
    assert not lonely.any()


def test_a_mask_of_bytes_masks_nothing_out() -> None:
    """With zeros the softmax of an attention would return before it computed anything."""
    _, mask = make_inputs([[[1, 12, 8, 8], "float32"], [[1, 12, 8], "int8"]])
    assert mask.dtype == np.int8 and (mask == 1).all()

"""Bodies: JSON of the standard, and nothing else."""

from __future__ import annotations

import pytest

from cdmpp.serve.body import parsed


def test_what_is_json_is_read():
    assert parsed(b'{"device": "a100", "sizes": [1, 2.5, null, true]}') == {
        "device": "a100",
        "sizes": [1, 2.5, None, True],
    }


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"NaN", b'{"a": NaN}', b'{"a": Infinity}', b'{"a": -Infinity}', b"\xff\xfe{}", b"{'a': 1}",
        b'{"a": 1, "a": 2}', b"null", b"[]", b"5", b'"text"',
        b"[" * 100_000, b"[" * 65 + b"]" * 65, b'{"a":' * 100 + b"1" + b"}" * 100,
        b"1" * 5000, b"{} {}",
    ],
)  # fmt: skip
def test_what_is_none_is_refused(body):
    with pytest.raises(ValueError, match="."):
        parsed(body)


def test_brackets_in_texts_are_no_nesting():
    assert parsed(b'{"a": "' + b"[" * 10_000 + b'"}')["a"] == "[" * 10_000

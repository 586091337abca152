"""Names that a client may give: those of a list; nothing leads to a file or another machine."""

from __future__ import annotations

import pytest

from cdmpp.errors import UsageError
from cdmpp.serve.names import check_names, network_names

TORCHVISION = frozenset({"torchvision:resnet50"})


def check(**asked: object) -> None:
    check_names({"device": "a100", **asked}, TORCHVISION)


@pytest.mark.parametrize(
    "asked",
    [
        {"network": "bert_tiny"}, {"network": "torchvision:resnet50"}, {"network": "hf:gpt2"}, {"model": "a100"},
        {"schedule": "best_of:16"}, {"schedule": "untuned"}, {"link": "nvlink3"}, {"cluster": "dgx-a100"},
        {"device": {"a100": 4, "t4": 4}}, {"network": {"onnx": "AAAA"}}, {},
    ],
)  # fmt: skip
def test_names_of_the_lists_are_taken(asked):
    check(**asked)


@pytest.mark.parametrize(
    "asked",
    [
        *({"network": name} for name in (
            "/etc/passwd", "../model.onnx", "model.onnx", "module.py:make", "./x.py:f", "hf:/etc", "hf:.", "hf:../x",
            "hf:someone/else", "hf:~/x", "torchvision:../x", "torchvision:no_such", "http://example.org/x.onnx",
            "zoo:resnet50", "resnet50\0", "config.json", "file:///etc/passwd", "bert_tiny ", "",
        )),
        *({"device": name} for name in ("../a100", "a100.yaml", "/conf/device/a100", "a100\n", {"a100": 4, "../x": 4})),
        *({"model": name} for name in ("/tmp/model", "../a100", "a100/", ".", "outputs/x")),
        *({"schedule": name} for name in ("database:/etc", "database:.", "best_of:99999", "best_of:0", "best_of:1;x")),
        *({"link": name} for name in ("/tmp/x.csv", "messages.csv", "../nvlink3")),
        *({"cluster": name} for name in ("x.yaml", "/etc/x.yml", "../dgx-a100")),
    ],
)  # fmt: skip
def test_everything_else_is_refused(asked):
    with pytest.raises(UsageError, match="is no name|takes best_of"):
        check(**asked)


def test_no_name_of_the_lists_is_a_path_or_code():
    assert network_names() and not [name for name in network_names() if name.startswith(("/", ".")) or ".py" in name]

"""What names an entry of the cache: versions of what made it, and of nothing else."""

from __future__ import annotations

import importlib.metadata

import pytest

from cdmpp.network import network_key
from cdmpp.network.network_key import surroundings, toolchain, version_of


@pytest.fixture
def versions(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    installed = {"torch": "2.13.0+cpu", "torchvision": "0.28.0", "transformers": "5.24.0", "apache-tvm": "0.27.0"}

    def version(package: str) -> str:
        version_of.cache_clear()
        if package not in installed:
            raise importlib.metadata.PackageNotFoundError(package)
        return installed[package]

    monkeypatch.setattr(network_key.importlib.metadata, "version", version)
    version_of.cache_clear()
    yield installed
    version_of.cache_clear()


@pytest.mark.parametrize(
    ("network", "by_tvm", "counted"),
    [
        ("torchvision:resnet18", True, {"torch", "torchvision", "apache-tvm"}),
        ("torchvision:resnet18", False, {"torch", "torchvision"}),
        ("hf:gpt2", True, {"torch", "transformers", "apache-tvm"}),
        ("hf:gpt2", False, {"torch", "transformers"}),
        ("bert_tiny", True, {"torch", "torchvision", "transformers", "apache-tvm"}),
        (object(), True, {"torch", "torchvision", "transformers", "apache-tvm"}),
        (None, True, {"torch", "torchvision", "transformers", "apache-tvm"}),
    ],
)
def test_versions_of_what_reads_a_network_count_and_no_others(network, by_tvm, counted, versions):
    before = surroundings(network, by_tvm)
    for package in list(versions):
        versions[package] += ".1"
        version_of.cache_clear()
        assert (surroundings(network, by_tvm) != before) == (package in counted), package
        before = surroundings(network, by_tvm)


@pytest.mark.parametrize("build", ["", "+cpu", "+cu128", "+rocm6.4", "+xpu"])
def test_builds_of_torch_for_other_accelerators_read_the_same(build, versions):
    versions["torch"] = f"2.13.0{build}"
    version_of.cache_clear()
    assert version_of("torch") == "2.13.0"


def test_other_builds_do_not_count_as_the_release(versions):
    for version in ("2.13.0+git1234567", "2.13.0a0", "2.13.0.dev20260101+cpu"):
        versions["torch"] = version
        version_of.cache_clear()
        assert version_of("torch") not in ("2.13.0", "")


def test_programs_of_another_tvm_or_system_have_another_name(versions, monkeypatch):
    before = toolchain()
    versions["apache-tvm"] = "0.28.0"
    version_of.cache_clear()
    after = toolchain()
    monkeypatch.setattr(network_key.platform, "machine", lambda: "riscv64")
    assert len({before, after, toolchain()}) == 3 and "0.27.0" in before
    del versions["apache-tvm"]
    version_of.cache_clear()
    assert "none" in toolchain()

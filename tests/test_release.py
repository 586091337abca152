"""What a release is made by: builds that can be compared, README's commands, the recipe, the workflow."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from types import ModuleType

import pytest
import yaml

import cdmpp

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def archive(path: Path, *files: tuple[str, str, int]) -> Path:
    with zipfile.ZipFile(path, "w") as made:
        for name, text, year in files:
            made.writestr(zipfile.ZipInfo(name, (year, 1, 1, 0, 0, 0)), text)
    return path


def test_two_builds_are_compared_byte_by_byte(tmp_path):
    differing = script("build_wheel").differing
    first = archive(tmp_path / "1", ("a", "x", 2020), ("b", "y", 2020))
    assert differing(first, archive(tmp_path / "2", ("a", "x", 2020), ("b", "y", 2020))) == []
    assert differing(first, archive(tmp_path / "3", ("a", "x", 2020), ("b", "z", 2020))) == ["b: other content"]
    assert differing(first, archive(tmp_path / "4", ("a", "x", 2020))) == ["b: in one of the two"]
    assert differing(first, archive(tmp_path / "5", ("b", "y", 2020), ("a", "x", 2020))) == ["the order of the files"]
    (found,) = differing(first, archive(tmp_path / "6", ("a", "x", 2021), ("b", "y", 2020)))
    assert found.startswith("times")


@pytest.mark.slow
def test_the_wheel_is_the_same_bytes_wherever_it_is_built(tmp_path):
    if not (ROOT / ".git").exists() or not shutil.which("git"):
        pytest.skip("not a git checkout")
    command = [sys.executable, str(ROOT / "scripts" / "build_wheel.py"), "--check", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ})
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.glob("*.whl"))) == 1


def test_commands_of_the_readme_are_found():
    module = script("check_wheel")
    found = module.commands(README)
    assert len(found) >= 10 and found[0] == "cdmpp devices" and all("#" not in one for one in found)
    assert module.files_of("cdmpp predict examples/matmul.py --device x") == [Path("examples/matmul.py")]
    left_out = [one for one in found if not module.runnable(one)]
    assert {one.split()[1] for one in left_out} <= {"predict", "network", "trace", "tune"}
    assert len(found) - len(left_out) >= 6


def test_the_recipe_has_what_the_package_needs():
    recipe = yaml.safe_load((ROOT / "recipe" / "recipe.yaml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    def plain(word: str) -> str:
        name, wanted = re.fullmatch(r"([\w-]+)\s*(.*)", word).groups()  # type: ignore[union-attr]
        return f"{'torch' if name == 'pytorch' else name} {wanted.removeprefix('==')}"

    given = {plain(one) for one in recipe["requirements"]["run"] if not one.startswith("python ")}
    assert given == {plain(one) for one in project["dependencies"]}
    assert f"python {project['requires-python']}" in recipe["requirements"]["run"]
    assert recipe["context"]["version"] == cdmpp.__version__


def test_the_workflow_publishes_only_what_was_checked_and_signed():
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())["jobs"]
    assert set(jobs["publish"]["needs"]) == set(jobs) - {"publish"}
    steps = jobs["publish"]["steps"]
    used = [step.get("uses", step.get("name", "")) for step in steps]
    assert "sha256sum" in steps[1]["run"]
    signed, published = (next(n for n, one in enumerate(used) if word in one) for word in ("sigstore", "pypi-publish"))
    assert signed < published
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    pythons = [one.rsplit(" ", 1)[1] for one in classifiers if re.search(r":: 3\.\d+$", one)]
    assert jobs["install"]["strategy"]["matrix"]["python"] == pythons


def test_the_version_has_its_part_of_the_changelog():
    text = (ROOT / "CHANGELOG.md").read_text()
    part = text[text.index(f"## {cdmpp.__version__} (") :]
    assert len(part[: part.index("\n## ", 5)].splitlines()) <= 150

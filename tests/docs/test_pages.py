"""The pages of docs/: the site builds strictly, links and commands exist, numbers are those of the code."""

from __future__ import annotations

import importlib
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from cdmpp import devices
from cdmpp.ast.layout import KERNEL_WIDTH, LEAF_WIDTH
from cdmpp.cli.verbs import VERBS
from cdmpp.data.splits import split_definition, split_names
from cdmpp.machine_code.cpu.code_features import CODE_WIDTH
from cdmpp.model.code_prior import N_RESOURCES
from cdmpp.network.source.checkpoint import read_checkpoints
from cdmpp.predict.model_folder import pretrained_names
from cdmpp.recipes.compose import compose
from cdmpp.training.config import TrainConfig
from cdmpp.training.sampling import SAMPLERS
from cdmpp.uncertainty.conformal import FITTED_TASKS

REPOSITORY = Path(__file__).parents[2]
DOCS = REPOSITORY / "docs"
GUIDES = [
    f"docs/{name}.md"
    for name in (
        "predicting", "networks", "framework-operators", "precision", "training-steps", "layers", "plans",
        "memory", "synchrony", "parameter-servers", "unlike-devices", "partition", "traces", "collectives",
        "fitting", "serving", "cluster", "tuning", "training", "data", "measuring", "fleets", "new-device", "security",
        "migrating",
    )
]  # fmt: skip
METHODS = sorted(f"docs/method/{path.name}" for path in (DOCS / "method").glob("*.md"))
WRITTEN = ["README.md", "docs/index.md", "docs/glossary.md", "docs/architecture.md", *GUIDES, *METHODS]
"""Pages that people write; the others are generated."""
CONFIGURED = {
    "model train": "config",
    "model evaluate": "evaluate",
    "data import": "import_data",
    "data measure": "measure",
    "model finetune": "finetune",
}
"""Verb -> file of conf/ with its settings."""


def text(page: str) -> str:
    return (REPOSITORY / page).read_text()


def commands(page: str) -> list[str]:
    return [
        line.strip() for block in re.findall(r"```bash\n(.*?)```", text(page), re.DOTALL) for line in block.splitlines()
    ]


def test_site_builds_strictly(tmp_path):
    pytest.importorskip("mkdocs")
    pytest.importorskip("material")
    pytest.importorskip("mkdocstrings")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=REPOSITORY,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Predictor" in (tmp_path / "site" / "api" / "predict" / "index.html").read_text()
    page = (tmp_path / "site" / "index.html").read_text()
    assert not re.findall(r'(?:src|rel="stylesheet" href)="https?://', page)  # works without a network


@pytest.mark.parametrize("page", WRITTEN)
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)#]+)[^)]*\)", text(page)):
        if "://" not in link:
            assert ((REPOSITORY / page).parent / link).exists(), link


@pytest.mark.parametrize("page", WRITTEN)
def test_paths_in_prose_exist(page):
    named = re.findall(r"`((?:cdmpp|conf|scripts|tests|benchmarks|datasets|examples)/[\w./-]*)`", text(page))
    named += re.findall(r"\b((?:scripts|benchmarks|tests|examples)/[\w/-]+\.(?:py|ipynb))", text(page))
    made_by_users = {"datasets/my-cpu", "datasets/my-cpu-torch"}
    for path in set(named) - made_by_users:
        assert (REPOSITORY / path).exists(), path


@pytest.mark.parametrize("page", WRITTEN)
def test_commands_are_known(page):
    makefile = (REPOSITORY / "Makefile").read_text()
    for line in commands(page):
        words = line.split()
        if words[:1] == ["make"]:
            assert re.search(rf"^{words[1]}:", makefile, re.MULTILINE), line
        if words[:1] == ["cdmpp"]:
            assert {words[1], " ".join(words[1:3])} & set(VERBS), line
        for name in re.findall(r"\bdevice=([\w-]+)", line) + re.findall(r"--device ([\w-]+)", line):
            assert name == "my-cpu" or name in devices.names(), line
        for name in re.findall(r"\bexperiment=([\w/]+)", line):
            assert (REPOSITORY / "conf" / "experiment" / f"{name}.yaml").is_file(), line


def test_checkpoints_of_commands_are_known():
    shipped = {name.split("/")[-1] for name in read_checkpoints()}
    pages = ["README.md", *(str(path.relative_to(REPOSITORY)) for path in DOCS.glob("*.md"))]
    named = {name for page in pages for line in commands(page) for name in re.findall(r"\bhf:([\w.-]+)", line)}
    assert named and named <= shipped, named - shipped


@pytest.mark.parametrize("page", WRITTEN)
def test_settings_of_commands_compose(page):
    for line in commands(page):
        words = shlex.split(line, comments=True)[1:] if line.startswith("cdmpp ") else []
        verb, words = " ".join(words[:2]), words[2:]
        if verb == "data measure":  # it knows its settings where it is loaded
            pytest.importorskip("tvm")
            importlib.import_module("cdmpp.cli.data.measure")
        if verb == "model finetune":
            importlib.import_module("cdmpp.recipes.finetune_settings")
        if verb in CONFIGURED:
            compose(CONFIGURED[verb], [word.replace("my-cpu", "xeon-icelake") for word in words])


@pytest.mark.parametrize("page", WRITTEN)
def test_python_examples_compile(page):
    for block in re.findall(r"```python\n(.*?)```", text(page), re.DOTALL):
        compile(block, page, "exec")


@pytest.mark.tvm
@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_first_python_example_runs(page, monkeypatch, capsys):
    pytest.importorskip("tvm")
    monkeypatch.chdir(REPOSITORY)
    exec(re.findall(r"```python\n(.*?)```", text(page), re.DOTALL)[0], {})
    assert re.search(r"\[[\d.e-]+\]", capsys.readouterr().out)  # a latency in seconds


@pytest.mark.parametrize("page", WRITTEN)
def test_settings_in_prose_exist(page):
    """A key that is gone must leave the pages, too."""
    keys = {group: set(values) for group, values in TrainConfig().to_dict().items()}
    keys["split"] = set().union(*(split_definition(name) for name in split_names()))
    for group, key in re.findall(r"\b(model|loss|trainer|split)\.([a-z_]+)=", text(page)):
        assert key in keys[group], f"{group}.{key}"


def test_numbers_of_the_architecture_are_those_of_the_code():
    page = text("docs/architecture.md")
    for number, what in (
        (len(devices.SPEC_FIELDS), "datasheet numbers"),
        (devices.VECTOR_WIDTH, "numbers: values"),
        (CODE_WIDTH, r"numbers\. A leaf"),
        (LEAF_WIDTH, r"numbers and a kernel"),
        (KERNEL_WIDTH, r"numbers\. The prior"),
        (N_RESOURCES, "resources"),
        (FITTED_TASKS, "calibration tasks"),
    ):
        assert re.search(rf"\b{number} {what}", page), (number, what)
    page = text("docs/method/model.md")
    for name in re.findall(r"(?<![/\w])\w+\.py", page):  # the picture of the model
        assert (REPOSITORY / "cdmpp" / "model" / name).is_file(), name
    assert f"kernels (B, K, {KERNEL_WIDTH})" in page
    assert f"leaves (B, L, {LEAF_WIDTH})" in page
    assert f"code vector (B, {CODE_WIDTH})" in page


def test_shipped_models_are_all_named():
    assert "Five models come with the package" in text("README.md") and len(pretrained_names()) == 5
    for page in ("README.md", "docs/predicting.md"):
        assert all(f"`{name}`" in text(page) for name in pretrained_names()), page


def test_guide_names_every_sampler():
    assert all(f"`{name}`" in text("docs/new-device.md") for name in SAMPLERS)


def words(page: str) -> int:
    return len(text(page).split())


def test_pages_are_short():
    assert words("README.md") <= 700
    assert {page: words(page) for page in [*GUIDES, *METHODS, "docs/architecture.md"] if words(page) > 800} == {}


def test_every_page_is_generated_or_has_a_word_limit():
    assert {f"docs/{path.name}" for path in DOCS.glob("*.md")} <= {*WRITTEN}


def test_glossary_is_short_and_sorted():
    terms = re.findall(r"^\| ([^|]+) \|", text("docs/glossary.md"), re.MULTILINE)[1:]
    assert len(terms) <= 30
    assert terms == sorted(terms, key=str.lower)


def test_table_of_records_names_every_shipped_data_set():
    shipped = [
        path.parent.name
        for path in (REPOSITORY / "datasets").glob("*/dataset.json")
        if path.parent.name in devices.names()
    ]
    assert shipped
    assert all(f"`{name}`" in text("docs/data.md") for name in shipped)


@pytest.mark.parametrize("page", WRITTEN)
def test_prose_names_no_commit(page):
    assert not re.findall(r"\b(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{7,40}\b", text(page))

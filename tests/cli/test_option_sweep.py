"""Every option of the verbs and every setting of their trees, given what cannot be: one line and exit code 2, no work.

Both sweeps walk the parsers and the composed trees themselves: what is declared tomorrow is covered.
"""

from __future__ import annotations

import argparse
import copy
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import cdmpp
from cdmpp import cli
from cdmpp.cli import command, old_names, verbs
from cdmpp.cli.data import measure
from cdmpp.cli.data.import_data import ImportSettings
from cdmpp.cli.model import train
from cdmpp.cli.options import address
from cdmpp.cli.provision import counts
from cdmpp.errors import CdmppError
from cdmpp.evaluation import network_session
from cdmpp.evaluation.network_session import NetworkSettings
from cdmpp.evaluation.session import EvaluationSettings
from cdmpp.measure.disturbance import Disturbance
from cdmpp.platform.limits import Limits, path, text
from cdmpp.recipes.compose import compose
from cdmpp.recipes.finetune_settings import FinetuneSettings
from cdmpp.steps.step_graph import RankGraph, StepGraph

EXAMPLES = Path(__file__).parents[2] / "examples" / "workers"
VERBS = {
    "model calibrate": ["--device", "xeon-icelake"],
    "data codes": ["--path", "nowhere"],
    "data merge": ["nowhere"],
    "devices": [],
    "cache": [],
    "model list": [],
    "data summary": [],
    "collective": ["all_reduce", "64MiB", "--ranks", "8", "--link", "nvlink3"],
    "trace": ["nowhere"],
    "tune": ["torchvision:resnet18", "--device", "xeon-icelake", "--out", "db"],
    "predict": ["op", "linear", "8x8x8", "--device", "a100"],
    "network": ["torchvision:resnet18", "--device", "a100", "--runtime", "torch"],
    "compare": ["torchvision:resnet18", "--devices", "a100,t4", "--runtime", "torch"],
    "step": ["torchvision:resnet18", "--device", "a100", "--runtime", "torch", "--ranks", "4", "--link", "nvlink3"],
    "synchrony": ["torchvision:resnet18", "--workers", str(EXAMPLES / "core.yaml"), "--runtime", "torch"],
    "serve": [],
    "fit": [str(EXAMPLES.parent / "runs.csv"), "--group", "model"],
    "plan": ["torchvision:resnet18", "--device", "a100", "--runtime", "torch", "--ranks", "4", "--link", "nvlink3"],
}
NO_NUMBERS = ("nan", "inf", "-inf", "1e18", "-1e18", "9" * 19, "1" * 5000, "", " ", "many", "0x10", "1,5")
MAY_BE_ZERO = {"port", "boxes", "past", "trials", "rows", "replays", "spread", "seed"}


def options_of(verb: str) -> list[argparse.Action]:
    parser: argparse.ArgumentParser = command._parser(verb)
    for word in verb.split():
        verbs = next(one for one in parser._actions if isinstance(one, argparse._SubParsersAction))
        parser = verbs.choices[word]
    return [action for action in parser._actions if action.dest != "help" and action.nargs != 0]


def with_option(verb: str, action: argparse.Action, *values: str) -> list[str]:
    """The command with one option, or argument, of these values."""
    words = list(VERBS[verb])
    if not action.option_strings:
        place = [one.dest for one in options_of(verb) if not one.option_strings].index(action.dest)
        return [*verb.split(), *words[:place], *values, *words[place + 1 :]]
    beside = {"cluster": "--link", "link": "--cluster", "schedule": "--runtime"}.get(action.dest)
    for name in {action.option_strings[0], beside} & set(words):
        place = words.index(name)
        del words[place : place + 2]
    if action.nargs == "+":
        return [*verb.split(), *words, action.option_strings[0], *values]
    return [*verb.split(), *words, *(f"{action.option_strings[0]}={value}" for value in values)]


LATE = {(verb, name) for verb in ("network", "compare", "step", "plan") for name in ("network", "model", "input")}
LATE |= {("plan", "explain"), ("synchrony", "network")}
"""Names that are looked up while a network is read or priced, which is work."""


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command that is to be refused before any work: its one line."""

    def work(*_: Any, **__: Any) -> None:
        raise AssertionError("work began")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("cdmpp.recipes.calibrate.probe", work)
    monkeypatch.setattr(Disturbance, "now", staticmethod(lambda *_: Disturbance()))
    monkeypatch.setattr(cdmpp, "tune_network", work)
    monkeypatch.setattr("cdmpp.expression.fit_runs", work)
    for place in ("cdmpp.network.predict.predict_read", "cdmpp.predict.predictor.Predictor.predict"):
        monkeypatch.setattr(place, work)

    def line(words: list[str]) -> str:
        assert cli.main(words) == 2, words
        shown = capsys.readouterr()
        assert shown.out == "" and len(shown.err.splitlines()) == 1 and len(shown.err) < 2000, (words, shown)
        assert list(tmp_path.iterdir()) == [], words
        return shown.err

    return line


def test_no_verb_is_left_out():
    valued = {verb.name for verb in verbs.VERBS.values() if not verb.has_settings and options_of(verb.name)}
    assert valued == set(VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_every_number_of_a_command_line_has_limits(verb, refused):
    for action in options_of(verb):
        if action.choices or action.type in (path, text, address):
            continue
        assert isinstance(action.type, Limits) or action.type is counts or action.dest == "bucket_mb", (
            f"{verb} {action.dest}: declare it with cdmpp.platform.limits"
        )
        for value in NO_NUMBERS:
            refused(with_option(verb, action, value))
        refused(with_option(verb, action, "-1"))
        if action.dest not in MAY_BE_ZERO:
            refused(with_option(verb, action, "0"))


@pytest.mark.parametrize("verb", VERBS)
def test_every_text_of_a_command_line_is_known_or_refused(verb, refused):
    for action in options_of(verb):
        if isinstance(action.type, Limits) or action.dest == "bucket_mb":
            continue
        late = action.type is path or verb == "tune" or (verb, action.dest) in LATE
        for value in ("", " ", "a\nb", *([] if late else ["no such thing", "nan", "x=nan"])):
            refused(with_option(verb, action, value))


TWICE = {
    "input": ("x=1,3,8,8", "x=2,3,8,8"),
    "straggler": ("2=1.3", "2=5"),
    "sweep": ("batch=2", "batch=4"),
    "path": (".", "."),
    "what_if": ("bandwidth=2", "bandwidth=3"),
    "programs": ("op", "linear", "8x8x8", "bias=0", "bias=1"),
}


@pytest.mark.parametrize("verb", VERBS)
def test_what_is_said_twice_is_refused(verb, refused):
    """Also where both say the same: whoever says two things means one of them."""
    for action in options_of(verb):
        if action.dest in TWICE:
            refused(with_option(verb, action, *TWICE[action.dest]))
        elif action.option_strings:
            name, words = action.option_strings[0], VERBS[verb]
            value = words[words.index(name) + 1] if name in words else (action.choices or ["5"])[0]
            assert "twice" in refused([*with_option(verb, action, value), f"{name[2:]}={value}"])


def test_devices_are_compared_once_each(refused):
    words = ["compare", "torchvision:resnet18", "--runtime", "torch", "--devices"]
    assert "says 'a100' twice: name each once" in refused([*words, "a100,t4,a100"])


@pytest.mark.parametrize("verb", VERBS)
def test_no_option_is_abbreviated(verb, refused):
    known = {action.dest.replace("_", "-") for action in options_of(verb)}
    for action in options_of(verb):
        if action.option_strings and (short := action.option_strings[0][:-1])[2:] not in known:
            if short in old_names.SEARCHES:  # what was a search for a plan
                continue
            assert f"no option {short}" in refused([*with_option(verb, action, "5"), short, "5"])


WHAT_IF = ("ranks", "bucket_mb", "bandwidth", "latency", "kernel:a", "link_gbps", "straggler", "nothing")


@pytest.mark.parametrize("key", WHAT_IF)
def test_every_what_if_has_limits(key):
    from cdmpp.trace.what_if import changed

    for value in (*NO_NUMBERS, "-1", *([] if key in ("latency", "straggler") else ["0"])):
        with pytest.raises(CdmppError) as caught:
            changed(StepGraph((RankGraph(0, ()),)), {key: value})
        assert key in str(caught.value)


@pytest.mark.parametrize("size", [*NO_NUMBERS, "0", "-1", "0.4", "1e3", "5 parsecs", "99999999TB", "9" * 400 + "B"])
def test_sizes_of_collectives_have_limits(size, refused):
    assert "size" in refused(["collective", "all_reduce", size, "--ranks", "2", "--link", "nvlink3"])


READERS: dict[str, tuple[list[str], Callable[[dict[str, Any]], Any]]] = {
    "config": (["device=xeon-icelake"], train.read_settings),
    "evaluate": (["device=xeon-icelake"], EvaluationSettings.from_dict),
    "evaluate_networks": (["device=xeon-icelake"], NetworkSettings.from_dict),
    "finetune": (["device=xeon-icelake"], FinetuneSettings.from_dict),
    "import_data": (["device=xeon-icelake", "path=x"], ImportSettings.from_dict),
    "measure": (["device=xeon-icelake"], measure.MeasureSettings.from_dict),
}
OTHER_TREES = {
    "config": [
        *(["device=xeon-icelake", f"split={split}"] for split in ("by_network", "random")),
        ["device=xeon-icelake", "split=by_device", "target=xeon-icelake-avx2"],
        *(["device=xeon-icelake", f"experiment={name}"] for name in ("reference", "quick")),
        ["device=a100", "model=library", "features=library"],
    ]
}
TREES = [(name, words) for name, (words, _) in READERS.items()]
TREES += [(name, words) for name, more in OTHER_TREES.items() for words in more]
FREE_TEXTS = {
    *("out", "name", "chooser", "start", "resume", "network", "path", "key", "tasks_from", "schedules_from"),
    *("kit_folder", "programs", "measure.out", "measure.key", "measure.kit_folder"),
}
"""Names of the user's own things and places."""
ZERO = {
    *("seed", "seeds", "repeat", "revise", "min_separation_s", "measure.test_tasks", "split.unlabelled_fraction"),
    *("split.test_labels", "model.layers", "model.dropout", "model.bins", "model.code_dropout", "tuning.folds"),
    *("tuning.replay", "tuning.replay_weight", "tuning.weight_decay", "tuning.warmup", "tuning.ema"),
    *("trainer.weight_decay", "trainer.warmup", "trainer.ema", "trainer.grad_clip", "trainer.interval_folds"),
    *("loss.log_weight", "loss.relative_weight", "loss.label_mse_weight", "loss.label_relative_weight"),
    *("loss.device_balance", "loss.domain_weight", "loss.doubling_weight"),
}
"""Zero is among what they may be."""
NEVER = (math.nan, math.inf, -math.inf, 1e18, 10**18, -(10**18), -1, 1j, "", " ", "a\0b", [""], ["x", "x"], ["x", None])
NEVER += ([math.nan], [[]], {"x": 1})


def leaves(tree: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """Dotted names of the settings; what a user names himself (networks of a zoo, variants) is one setting."""
    for key, value in tree.items():
        own = key in ("zoo", "variants", "stored")
        if isinstance(value, dict) and not own and prefix + key != "device":
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


def changed(tree: dict[str, Any], name: str, value: Any) -> dict[str, Any]:
    other = copy.deepcopy(tree)
    place = other
    *groups, key = name.split(".")
    for group in groups:
        place = place[group]
    place[key] = value
    return other


@pytest.mark.parametrize(("config", "words"), TREES, ids=[f"{name} {words[-1]}" for name, words in TREES])
def test_every_setting_has_limits(config, words, monkeypatch):
    monkeypatch.setattr(network_session, "check_is_here", lambda device: None)
    read, tree, accepted = READERS[config][1], compose(config, words), []
    read(copy.deepcopy(tree))
    names, zero = list(leaves(tree)), ZERO
    if tree.get("model", {}).get("name") != "cdmpp":
        zero = ZERO - {"model.layers"}
    for name in names:
        mapping = name in ("zoo", "variants", "stored", "device")
        cases = [value for value in NEVER if not (mapping and isinstance(value, dict))]
        cases += [] if name in zero else [0, 0.0]
        cases += [] if name in FREE_TEXTS else ["no such thing"]
        for value in cases:
            try:
                read(changed(tree, name, value))
            except CdmppError as error:
                said = str(error)
                assert len(said) < 3000 and "\n" not in said, (name, value, said)
            else:
                accepted.append((name, value))
    assert accepted == []
    for name in set(names) & zero:
        read(changed(tree, name, [0] if name == "seeds" else 0))


@pytest.mark.parametrize(
    ("verb", "word"),
    [("model train", "trainer.lr=nan"), ("data measure", "batch=inf"), ("model finetune", "budget=1e18"),
     ("model evaluate", "jobs=-1"), ("data import", "on_bad=maybe"), ("model evaluate-networks", "batches=[1,1]"),
     ("model train", "device.spec.clock_mhz=1"), ("model train", "trainer=none"),
     ("data measure", "networks=[resnet18,resnet18]")],
)  # fmt: skip
def test_a_setting_that_cannot_be_is_one_line_of_the_command(verb, word, capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        cli.main([*verb.split(), "device=xeon-icelake", *(["path=x"] if verb == "data import" else []), word])
    shown = capfd.readouterr()
    assert ended.value.code == 2 and shown.out == "" and len(shown.err.strip().splitlines()) == 1
    assert word.partition("=")[0].rpartition(".")[2].removesuffix("clock_mhz") in shown.err
    assert list(tmp_path.iterdir()) == []

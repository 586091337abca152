"""The verbs of the ``cdmpp`` command, by purpose. Each is one file that is imported when its verb is run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Verb:
    """A verb is one command, such as ``cdmpp model train``."""

    name: str
    """Words as typed, without ``cdmpp``."""
    text: str
    """One line for ``--help``."""
    has_settings: bool = False
    """It is configured by a file of ``conf/``, whose keys are its options; else its file declares options."""
    file: str = ""
    """Name of the file where it is not that of the verb."""
    libraries: tuple[str, ...] = ()
    """Names of ``platform.extension`` without which it has no answer."""

    @property
    def module(self) -> str:
        """Return the name of the module that runs it."""
        group, _, name = self.name.rpartition(" ")
        return ".".join(filter(None, ("cdmpp.cli", group, self.file or name.replace("-", "_"))))


_REPLAYS = ("engine",)
_PREDICTS = ("network",)
PURPOSES: Mapping[str, tuple[Verb, ...]] = {
    "Predict": (
        Verb("predict", "latency of tensor programs or of single operators", libraries=_PREDICTS),
        Verb("network", "time of a whole network", libraries=_REPLAYS),
        Verb("compare", "time of a whole network on several devices", libraries=_REPLAYS),
        Verb("step", "time of a training step, on one device or several, with memory", libraries=_REPLAYS),
        Verb(
            "synchrony",
            "how fast uneven workers with parameter servers train, and when each should commit",
            libraries=_REPLAYS,
        ),
        Verb("fit", "a readable expression of a job's run time, from a table of runs, and what it predicts"),
        Verb("collective", "time of an all-reduce, or another exchange between devices"),
        Verb(
            "serve",
            "answer these questions over HTTP, for those who have neither PyTorch nor TVM",
            libraries=(*_REPLAYS, "action_lists"),
        ),
    ),
    "Improve": (
        Verb(
            "plan",
            "search settings under which a training step on several devices is shorter, or fits",
            libraries=(*_REPLAYS, "action_lists"),
        ),
        Verb("tune", "choose the programs of a network, by prediction alone or measured here; a MetaSchedule database"),
        Verb(
            "trace",
            "read the traces of a training job on several ranks: replay it, ask what if, say why it is slow",
            libraries=_REPLAYS,
        ),
    ),
    "Devices and data": (
        Verb("devices", "list the devices, with the data and the models that are here for each"),
        Verb("cache", "what is kept for later questions, how large it is, and how to empty it"),
        Verb("data summary", "what data is here, in numbers and pictures"),
        Verb(
            "data import", "bring a tuning database, programs or operators into the record format", True, "import_data"
        ),
        Verb("data measure", "measure tensor programs or operators on this machine", True),
        Verb("data merge", "put data sets of several hosts together, and say where they disagree"),
        Verb("data codes", "compile the programs of a data set for their code vectors"),
        Verb("data probe", "time what no document states of this machine's core: clock, caches, latencies"),
    ),
    "Models": (
        Verb("model list", "list the trained models that are here, with the figures of their cards"),
        Verb("model train", "train a model on the records of a device", True, libraries=_PREDICTS),
        Verb("model finetune", "bring a model to a new device with few measured tasks", True),
        Verb("model calibrate", "scale a model to this machine in three minutes, by a dozen or two of its kernels"),
        Verb("model evaluate", "judge models and baselines on the named splits", True),
        Verb("model evaluate-networks", "run whole networks on this machine and compare with their predictions", True),
    ),
}
VERBS: Mapping[str, Verb] = {verb.name: verb for verbs in PURPOSES.values() for verb in verbs}
GROUPS: Mapping[str, str] = {
    "data": "Look at measured data, import it, measure it.",
    "model": "List, train, adapt and judge models.",
}
"""First word of the verbs that have two -> what they are about."""

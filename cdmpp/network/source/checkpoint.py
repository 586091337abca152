"""Entries for names of the Hugging Face Hub: the architecture of a checkpoint, without a download."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from cdmpp.errors import CdmppError
from cdmpp.platform.content import content_of, parse_json
from cdmpp.platform.paths import conf_folder
from cdmpp.programs.models import import_transformers

_NO_ARCHITECTURE = (
    "architectures",
    "model_type",
    "transformers_version",
    "torch_dtype",
    "dtype",
    "auto_map",
    "use_cache",
)
"""Fields of a ``config.json`` that say nothing about what runs here."""


_MOST = {"layers?$|depth": 10_000, "^(num|n)_": 2**17}
"""Words in the name of a field -> the most that it may be: one object or more is made for each."""
_MOST_SIZE = 2**31
"""The most that any other whole number may be, such as a width."""
_COUNT_PADDING = ("roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "roberta-prelayernorm", "data2vec-text")
"""Types of models that sum up which tokens are padding, to number the others; without padding that is a constant."""


def read_checkpoints() -> dict[str, dict[str, Any]]:
    """Read the shipped ``conf/data/checkpoints.yaml``: name on the hub -> entry."""
    path = conf_folder() / "data" / "checkpoints.yaml"
    try:
        return dict(yaml.safe_load(path.read_text(encoding="utf-8"))["checkpoints"])
    except (OSError, yaml.YAMLError, KeyError, TypeError) as error:
        raise CdmppError(f"cannot read the checkpoints of {path}: {error}") from error


def checkpoint_entry(name: str) -> tuple[str, dict[str, Any]]:
    """Return ``(short name, entry)`` of a shipped name, a ``config.json``, its folder, or what the hub's cache has.

    Raises:
        CdmppError: none of these; the message lists the nearest names.
    """
    path = Path(name).expanduser()
    if path.is_dir() or path.suffix == ".json":
        path = path / "config.json" if path.is_dir() else path
        return _told(path.resolve().parent.name if path.name == "config.json" else path.stem, entry_of_config(path))
    table = read_checkpoints()
    short = {full.split("/")[-1]: full for full in table}
    full = name if name in table else short.get(name, "")
    if full:
        return _told(name, table[full])
    if cached := cached_config(name):
        return _told(name, entry_of_config(cached))
    near = ", ".join(difflib.get_close_matches(name, [*table, *short], n=3, cutoff=0.4)) or ", ".join(list(short)[:5])
    raise CdmppError(
        f"hf:{name} is not among the {len(table)} checkpoints of conf/data/checkpoints.yaml; nearest: {near}. For any "
        "other, save its config.json and give hf:FOLDER (nothing is downloaded)"
    )


def _told(name: str, entry: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return (f"{name} ({entry['part']})" if "part" in entry else name), entry


def entry_of_config(path: Path) -> dict[str, Any]:
    """Return the entry of a ``config.json``: the model without a head for a task, of an encoder-decoder its encoder.

    Code that the file names (``auto_map``, kernels) is left out, never fetched.
    """
    try:
        given = parse_json(content_of(path))
    except ValueError as error:
        raise CdmppError(f"cannot read the config {path}: {error}") from error
    try:
        transformers = import_transformers()
    except ImportError as error:
        raise CdmppError(f"transformers is not installed ({error}): pip install 'transformers>=5,<6'") from error
    kind = given.get("model_type") if isinstance(given, dict) else None
    if not isinstance(kind, str) or kind not in transformers.CONFIG_MAPPING:
        near = ", ".join(difflib.get_close_matches(str(kind), list(transformers.CONFIG_MAPPING), n=3)) or "bert, llama"
        raise CdmppError(f"{path}: model_type is {kind!r}, which transformers does not know; nearest: {near}")
    config_class = transformers.CONFIG_MAPPING[kind]
    model_class = transformers.MODEL_MAPPING.get(config_class, None)
    if isinstance(model_class, tuple):
        model_class = model_class[0]
    if model_class is None:
        raise CdmppError(f"{path}: transformers has no model without a head for {kind}; write file.py:FUNCTION for it")
    arguments = _plain(given)
    _check_counts(arguments, path)
    try:
        config = config_class(**arguments)
    except Exception as error:
        raise CdmppError(f"{path} is no config of {kind}: {' '.join(str(error).split())[:300]}") from error
    first = {"first_position": (config.pad_token_id or 0) + 1} if kind in _COUNT_PADDING else {}
    part = {"part": "encoder"} if getattr(config, "is_encoder_decoder", False) else {}
    return {
        "source": "transformers",
        "build": model_class.__name__,
        "config": config_class.__name__,
        "module": model_class.__module__,
        "arguments": arguments,
        "input": _default_input(model_class.main_input_name if not part else "", config, path),
        **part,
        **first,
    }


def with_head(name: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    """Give the entry of a checkpoint the head and the loss of a language model.

    The loss is that of the class that transformers has for its config: of every next token, or of masked ones.

    Raises:
        CdmppError: there is no such class, or the model is a part of one.
    """
    transformers = import_transformers()
    config = getattr(transformers, entry["config"])
    heads = (transformers.MODEL_FOR_MASKED_LM_MAPPING, transformers.MODEL_FOR_CAUSAL_LM_MAPPING)
    found = next((one[config] for one in heads if config in one), None)
    if found is None or "part" in entry or "tokens" not in entry["input"]:
        raise CdmppError(
            f"hf:{name}: loss='model' needs a language model, and transformers has none for {entry['build']}: use "
            "cross_entropy or mse, or write file.py:FUNCTION"
        )
    found = found[0] if isinstance(found, tuple) else found
    return {**entry, "build": found.__name__, "module": found.__module__, "labels": True}


def as_decoder(name: str, entry: Mapping[str, Any], past: int) -> dict[str, Any]:
    """Give the entry of a checkpoint its head, and a cache of ``past`` tokens of each example; it reads one more then.

    Raises:
        CdmppError: transformers has no causal language model for its config, or it is a part of one.
    """
    transformers = import_transformers()
    found = transformers.MODEL_FOR_CAUSAL_LM_MAPPING.get(getattr(transformers, entry.get("config", ""), None), None)
    if found is None or "part" in entry or "tokens" not in entry["input"]:
        raise CdmppError(
            f"hf:{name}: past={past}, but transformers has no causal language model for {entry['build']}: leave past "
            "out, or give one such as hf:gpt2 or hf:meta-llama/Llama-3.1-8B"
        )
    found = found[0] if isinstance(found, tuple) else found
    sizes = {**entry["input"], "tokens": 1} if past else entry["input"]
    return {**entry, "build": found.__name__, "module": found.__module__, "past": past, "input": sizes}


def as_encoder_decoder(name: str, entry: Mapping[str, Any], tokens: int) -> dict[str, Any]:
    """Give the entry of an encoder its decoder and head too, which read ``tokens`` tokens of each example.

    Raises:
        CdmppError: transformers has no model for its config that has both.
    """
    transformers = import_transformers()
    tables = (transformers.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING, transformers.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING)
    config = getattr(transformers, entry.get("config", ""), None)
    found = next((one[config] for one in tables if config in one), None)
    if found is None:
        raise CdmppError(
            f"hf:{name}: decoder_sequence={tokens}, but transformers has no encoder with a decoder for "
            f"{entry['build']}: leave it out, or give one such as hf:t5-small or hf:openai/whisper-tiny"
        )
    found = found[0] if isinstance(found, tuple) else found
    whole = {key: value for key, value in entry.items() if key != "part"}
    return {**whole, "build": found.__name__, "module": found.__module__, "decoder_tokens": tokens}


def without_head(name: str, entry: Mapping[str, Any]) -> tuple[str, ...]:
    """Warn that a language model is trained without its head."""
    if entry["source"] != "transformers" or "tokens" not in entry["input"]:
        return ()
    return (
        f"hf:{name} is {entry['build']}, without the head of a language model: no logits, and a loss of its last "
        "hidden state; loss='model' (--loss model) trains it with its head and its own loss",
    )


def _plain(given: Mapping[str, Any]) -> dict[str, Any]:
    """Without fields that name code, files or types of numbers."""
    kept = {}
    for key, value in given.items():
        if key in _NO_ARCHITECTURE or key.startswith(("_", "quantization")) or "implementation" in key:
            continue
        kept[key] = _plain(value) if isinstance(value, dict) and key.endswith("_config") else value
    return kept


def _check_counts(arguments: Mapping[str, Any], path: Path) -> None:
    """``CdmppError`` for a count that a config or a model makes objects by, such as its layers, that none can have."""
    for key, value in arguments.items():
        if isinstance(value, dict):
            _check_counts(value, path)
        most = next((most for words, most in _MOST.items() if re.search(words, key)), _MOST_SIZE)
        for number in value if isinstance(value, list) else (value,):
            if isinstance(number, int) and number > most:
                raise CdmppError(f"{path}: {key} is {str(number)[:40]}: at most {most:,}")


def _default_input(name: str, config: Any, path: Path) -> dict[str, Any]:
    bins = getattr(config, "num_mel_bins", None)
    if name == "pixel_values":
        size, channels = getattr(config, "image_size", None) or 224, getattr(config, "num_channels", 3)
        height, width = (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))
        return {"image": height if (channels, height) == (3, width) else [channels, height, width]}
    if name == "input_features" or (not name and bins):
        return {"mel": [bins or 80, 2 * getattr(config, "max_source_positions", 1500)]}
    if name == "input_values":
        return {"audio": 16000}
    if name in ("input_ids", ""):
        most = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
        return {"tokens": min(128, most) if isinstance(most, int) and most > 0 else 128}
    raise CdmppError(f"{path}: its model reads {name}, for which there is no default; write file.py:FUNCTION for it")


def cached_config(name: str) -> Path | None:
    """Return the config that the hub's cache has of a name that is not shipped; None: there is none."""
    table = read_checkpoints()
    if name in table or name in {full.split("/")[-1] for full in table}:
        return None
    try:
        from huggingface_hub import try_to_load_from_cache

        found = try_to_load_from_cache(name, "config.json")
    except (ImportError, ValueError):
        return None
    return Path(found) if isinstance(found, str) else None

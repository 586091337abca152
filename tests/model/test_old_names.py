"""Old names of parts and settings of a model."""

from __future__ import annotations

import pytest

from cdmpp.errors import CdmppError
from cdmpp.model.config import CdmppConfig, model_config
from cdmpp.model.old_names import current_names


def test_parts_of_a_name_are_renamed_and_all_else_stays() -> None:
    old = {"members.0.anchor.known": 1, "members.0.code_anchor.own": 2, "members.0.anchored": 3, "ranker.out": 4}
    assert list(current_names(old)) == [
        "members.0.prior.known", "members.0.code_prior.own", "members.0.anchored", "ranker.out",
    ]  # fmt: skip
    assert list(current_names(current_names(old))) == list(current_names(old))


@pytest.mark.parametrize("names", [("anchor", "prior"), ("prior", "anchor")])
def test_both_names_at_once_are_refused(names: tuple[str, str]) -> None:
    with pytest.raises(CdmppError, match="prior is there under its old name, too"):
        current_names(dict.fromkeys(names, True))


def test_a_stored_configuration_with_the_old_name_is_read() -> None:
    assert model_config({"name": "cdmpp", "anchor": False}) == CdmppConfig(prior=False)

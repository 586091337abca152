"""Settings of a server: what cannot be is refused with what is allowed."""

from __future__ import annotations

import math

import pytest

from cdmpp.errors import UsageError
from cdmpp.serve.settings import ServeSettings


def test_defaults_listen_on_this_machine_alone():
    settings = ServeSettings()
    assert settings.host == "127.0.0.1" and settings.body_bytes == 64_000_000


@pytest.mark.parametrize("name", [name for name in ServeSettings.LIMITS])
@pytest.mark.parametrize("value", [-1, math.nan, math.inf, "many", True, 10**18])
def test_every_number_has_limits(name, value):
    with pytest.raises(UsageError, match=name):
        ServeSettings(**{name: value})


@pytest.mark.parametrize("host", ["nowhere", "a/b", "", "127.0.0.1:80", "no such thing"])
def test_a_host_is_an_address(host):
    with pytest.raises(UsageError, match="host"):
        ServeSettings(host=host)


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::1", "localhost"])
def test_addresses_are_taken(host):
    assert ServeSettings(host=host).host == host

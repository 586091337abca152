"""``key=value`` words of the command line, for the commands of this folder."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from cdmpp.errors import CdmppError


def run(main: Callable[..., None], words: list[str] | None = None, **defaults: Any) -> None:
    """Call ``main`` with ``defaults`` and ``words`` over them; ends with one line where something is wrong.

    A default of ``"???"`` must be given. ``words``: those of the command line where None.
    """
    settings = OmegaConf.create(defaults)
    OmegaConf.set_struct(settings, True)
    try:
        given = OmegaConf.to_container(OmegaConf.merge(settings, OmegaConf.from_cli(words)), throw_on_missing=True)
        main(**given)  # type: ignore[arg-type]
    except OmegaConfBaseException as error:
        sys.exit(f"error: {str(error).splitlines()[0]}; settings: {', '.join(defaults)}")
    except CdmppError as error:
        sys.exit(f"error: {error}")

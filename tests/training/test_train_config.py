from __future__ import annotations

import pytest

from cdmpp.errors import CdmppError
from cdmpp.training.config import TrainConfig, TrainerConfig
from cdmpp.training.lit import rate_factor


def test_round_trip_through_plain_values():
    config = TrainConfig.from_dict(
        {"model": {"name": "reference", "embedded_layers": [5, 6]}, "trainer": {"epochs": 3}}
    )
    assert TrainConfig.from_dict(config.to_dict()) == config
    assert config.model.embedded_layers == (5, 6)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"modle": {}}, "modle"),
        ({"model": {"name": "transformer"}}, "reference"),
        ({"loss": {"weight": 1}}, "loss.weight"),
        ({"loss": {"log": "l1"}}, "huber"),
        ({"loss": {"domain": "mmd"}}, "none, cmd"),
        ({"model": {"label": "quantile"}}, "yeo-johnson"),
        ({"trainer": {"epochs": 0}}, "a whole number from 1"),
        ({"trainer": {"schedule": "onecycle"}}, "cosine"),
        *(
            (
                {"trainer": {"devices": 2, "strategy": name}},
                f"trainer.strategy={name} is not supported.*one of auto, ddp",
            )
            for name in ("fsdp", "deepspeed", "ddp_spawn", "DDP")
        ),
        ({"model": {"loops": "flat"}}, "unknown setting model.loops"),
        ({"model": {"width": 30, "heads": 4}}, "divisible"),
    ],
)
def test_mistakes_are_named(values, message):
    with pytest.raises(CdmppError, match=message):
        TrainConfig.from_dict(values)


def test_schedules():
    cosine = [rate_factor(TrainerConfig(warmup=0.1), step, 100) for step in range(101)]
    assert max(cosine) == pytest.approx(1.0, abs=0.02) and cosine[-1] == pytest.approx(0.0, abs=1e-6)
    assert cosine[0] < cosine[5] < cosine[9]
    cyclic = TrainerConfig(schedule="cyclic", cycle_steps=10)
    assert [rate_factor(cyclic, s, 100) for s in (0, 10, 20, 25)] == pytest.approx([0.1, 10.0, 0.1, 5.05])

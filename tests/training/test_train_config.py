from __future__ import annotations

import pytest

from cdmpp.errors import CdmppError
from cdmpp.recipes.settings import _groups
from cdmpp.training.config import TrainConfig, TrainerConfig
from cdmpp.training.fit import task_weights
from cdmpp.training.schedule import rate_factor


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
        ({"loss": {"log": "l2"}}, "huber"),
        ({"trainer": {"epochs": 0}}, "at least 1"),
        ({"trainer": {"schedule": "step"}}, "cosine"),
        ({"model": {"loops": "tree"}}, "flat, sequence"),
        ({"model": {"width": 30, "heads": 4}}, "divisible"),
    ],
)
def test_mistakes_are_named(values, message):
    with pytest.raises(CdmppError, match=message):
        TrainConfig.from_dict(values)


def test_imported_vectors_list_no_loops():
    values = {"features": "ansor164", "loss": {}, "trainer": {}}
    assert _groups({**values, "model": {"anchor": True, "loops": "flat"}})["model"]["anchor"] is False
    with pytest.raises(CdmppError, match="ansor164 vectors list no loops"):
        _groups({**values, "model": {"anchor": True, "loops": "sequence"}})


def test_schedules():
    cosine = [rate_factor(TrainerConfig(warmup=0.1), step, 100) for step in range(101)]
    assert max(cosine) == pytest.approx(1.0, abs=0.02) and cosine[-1] == pytest.approx(0.0, abs=1e-6)
    assert cosine[0] < cosine[5] < cosine[9]
    cyclic = TrainerConfig(schedule="cyclic", cycle_steps=10)
    assert [rate_factor(cyclic, s, 100) for s in (0, 10, 20, 25)] == pytest.approx([0.1, 10.0, 0.1, 5.05])
    assert rate_factor(TrainerConfig(schedule="constant", warmup=0.0), 50, 100) == 1.0


def test_task_weights_balance_tasks():
    weights = task_weights(["a"] * 9 + ["b"], 1.0)
    assert weights.mean() == pytest.approx(1.0) and weights[:9].sum() == pytest.approx(weights[9])
    assert task_weights(["a", "a", "b"], 0.0).tolist() == [1.0, 1.0, 1.0]

"""Names of parameters are those of the user's model, whatever computes the loss."""

import pytest
import torch

from cdmpp.programs.training.joint import WRAPPERS, unwrapped
from cdmpp.programs.training.loss import with_loss


class LossOfItsOwn(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(4, 3)  # a part of the user's model may have any name

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": self.inner(x).square().mean()}


@pytest.mark.parametrize("loss", ["model", "mse"])
def test_a_wrapper_adds_nothing_to_a_name(loss):
    model = LossOfItsOwn() if loss == "model" else torch.nn.Linear(4, 3)
    wrapped, _ = with_loss(model, (torch.randn(2, 4),), loss)
    assert wrapped is not model and type(wrapped).__name__ in WRAPPERS
    names = unwrapped(wrapped)
    assert [names(name) for name, _ in wrapped.named_parameters()] == [name for name, _ in model.named_parameters()]

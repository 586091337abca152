"""Train on four workers and a parameter server, all of them processes here, under two synchronies. Needs torch."""

import torch
from torch import nn

import cdmpp.synchrony
from cdmpp.synchrony.policies import synchrony_of
from cdmpp.synchrony.processes.place import WorkerPlace


class Regression:
    def __init__(self, seed, worker):
        torch.manual_seed(seed)
        self.model, self.truth = nn.Linear(256, 64), torch.randn(256, 64) / 16
        self.parameters = list(self.model.parameters())
        self.optimizer = torch.optim.SGD(self.parameters, lr=0.5)
        self.random = torch.Generator().manual_seed(1000 * seed + worker)

    def batch(self):
        x = torch.randn(128, 256, generator=self.random)
        self.optimizer.zero_grad()
        loss = (self.model(x) - x @ self.truth).square().mean()
        loss.backward()
        self.optimizer.step()
        return len(x), loss.item()


def train(seed, worker, workers):
    return Regression(seed, worker)


if __name__ == "__main__":
    workers = [WorkerPlace()] * 4  # as root: WorkerPlace(cpu_share=0.2, mbit=100), each with its own
    for name in ("bsp", "async"):
        record = cdmpp.synchrony.run(train, synchrony_of(name), workers, seconds=2)
        waiting_s = sum(one.share.waiting_s for one in record.workers)
        losses = [point.batch_loss for point in record.losses if point.batch_loss is not None]
        print(
            f"{name}: {record.samples_per_s:.0f} samples/s, waiting {waiting_s / 4 / record.seconds:.0%}, "
            f"loss {losses[-1]:.3f}"
        )

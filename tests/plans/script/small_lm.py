import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.norm2 = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        y = self.norm(x)
        q, k, v = (
            part(y).unflatten(-1, (-1, x.shape[-1] // self.heads)).transpose(1, 2) for part in (self.q, self.k, self.v)
        )
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class LM(nn.Module):
    def __init__(self, width=32, heads=4, layers=4, words=96):
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Llama(nn.Module):
    """Llama of transformers, with few heads of keys and values, and biases."""

    def __init__(self):
        super().__init__()
        from transformers import LlamaConfig, LlamaForCausalLM

        config = LlamaConfig(
            vocab_size=96, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, attention_bias=True, mlp_bias=True, use_cache=False,
        )  # fmt: skip
        self.llama = LlamaForCausalLM(config)

    def forward(self, tokens):
        return self.llama(tokens, return_dict=False)[0]


def make_llama(batch=2):
    return Llama(), (torch.randint(0, 96, (batch, 16)),)


def make(batch=2):
    return LM(), (torch.randint(0, 96, (batch, 16)),)


def make_tied(batch=2):
    model, inputs = make(batch)
    model.head.weight = model.embedding.weight
    return model, inputs


class Experts(nn.Module):
    """Experts with the arguments of those of transformers, and their grouped products."""

    def __init__(self, count, width, inner):
        super().__init__()
        self.num_experts = count
        self.up = nn.Parameter(torch.randn(count, inner, width) / 8)
        self.down = nn.Parameter(torch.randn(count, width, inner) / 8)

    def forward(self, tokens, chosen, weights):
        from transformers.integrations.moe import _grouped_mm

        experts, order = torch.sort(chosen.flatten())
        many = chosen.shape[-1]
        ends = torch.histc(experts.float(), self.num_experts, 0, self.num_experts - 1).cumsum(0, dtype=torch.int32)
        made = _grouped_mm(tokens[order // many], self.up.transpose(-2, -1), ends)
        made = _grouped_mm(nn.functional.silu(made), self.down.transpose(-2, -1), ends)
        weighted = made * weights.flatten()[order].unsqueeze(-1)
        return torch.zeros_like(tokens).index_add(0, order // many, weighted)


class ExpertBlock(nn.Module):
    """Two experts take tokens by turns, so that each gets as many; their weights are learned."""

    def __init__(self, width, heads):
        super().__init__()
        self.block, self.gate, self.norm = Block(width, heads), nn.Linear(width, 2, bias=False), nn.LayerNorm(width)
        self.experts = Experts(2, width, 2 * width)

    def forward(self, x):
        x = self.block(x)
        tokens = self.norm(x).flatten(0, 1)
        chosen = torch.arange(tokens.shape[0], device=x.device).remainder(2).unsqueeze(-1)
        weights = self.gate(tokens).softmax(-1).gather(1, chosen)
        return x + self.experts(tokens, chosen, weights).view_as(x)


def make_experts(batch=2):
    model, inputs = make(batch)
    model.blocks = nn.ModuleList(ExpertBlock(32, 4) for _ in range(2))
    return model, inputs

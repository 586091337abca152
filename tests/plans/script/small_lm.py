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

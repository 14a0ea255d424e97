"""Models that are trained on batches of one shape: `Bert`, `LeNet` and `Recommender` (as DLRM)."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.gpu.training.sequence import Block

__all__ = ["Bert", "LeNet", "Recommender"]


class Bert(nn.Module):
    """Tokens to the masked tokens, with the layers of BERT (arXiv 1810.04805); one matrix embeds and finds words."""

    def __init__(self, hidden: int, layers: int, heads: int, vocabulary: int, longest: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, hidden), nn.Embedding(longest, hidden)
        self.segments = nn.Embedding(2, hidden)
        self.first, self.dropout = nn.LayerNorm(hidden), nn.Dropout(0.1)
        blocks = (Block(hidden, heads, 4 * hidden, causal=False, dropout=0.1) for _ in range(layers))
        self.layers = nn.Sequential(*blocks)
        self.head = nn.Sequential(nn.Linear(hidden, hidden), nn.GELU(), nn.LayerNorm(hidden))
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        nn.init.normal_(self.tokens.weight, std=0.02)

    def loss(self, tokens: Tensor, segments: Tensor, masked: Tensor) -> Tensor:
        """Return the loss of tokens (batch, length) at the flat places `masked`."""
        x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]] + self.segments(segments)
        x = self.layers(self.dropout(self.first(x)))
        chosen = x.flatten(0, 1).index_select(0, masked)
        found = functional.linear(self.head(chosen), self.tokens.weight, self.bias)
        return functional.cross_entropy(found, tokens.flatten().index_select(0, masked))


class LeNet(nn.Module):
    """Images (batch, 1, 28, 28) to ten classes: the layers of LeNet-5 (LeCun et al. 1998), max pooling and ReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
        )  # fmt: skip

    def loss(self, images: Tensor, classes: Tensor) -> Tensor:
        """Return the loss."""
        return functional.cross_entropy(self.layers(images), classes)


class Recommender(nn.Module):
    """Numbers and bags of categories to a click, with the layers of DLRM (arXiv 1906.00091).

    Parameters
    ----------
    tables, rows, width : int
        Embedding tables; their gradients are sparse, as DLRM has them, so that a step goes over used rows alone.
    bottom, top : sequence of int
        Widths of the linear layers, the first of `bottom` that of the numbers; the last is `width`, and 1.
    """

    def __init__(self, tables: int, rows: int, width: int, bottom: Sequence[int], top: Sequence[int]) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum", sparse=True) for _ in range(tables))
        self.bottom = _perceptron((*bottom, width))
        pairs = torch.tril_indices(tables + 1, tables + 1, -1)
        self.register_buffer("pairs", pairs[0] * (tables + 1) + pairs[1])
        self.top = _perceptron((width + pairs.shape[1], *top, 1))

    def loss(self, numbers: Tensor, categories: Tensor, clicks: Tensor) -> Tensor:
        """Return the loss of numbers (batch, n), categories (tables, batch, bag) and clicks (batch,)."""
        dense = torch.relu(self.bottom(numbers))
        bags = [table(one) for table, one in zip(self.tables, categories, strict=True)]
        features = torch.stack((dense, *bags), 1)
        products = torch.bmm(features, features.transpose(1, 2)).flatten(1).index_select(1, self.pairs)
        found = self.top(torch.cat((dense, products), 1)).squeeze(1)
        return functional.binary_cross_entropy_with_logits(found, clicks)


def _perceptron(widths: Sequence[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])

"""Networks that only part h runs: `ResNet`, `Experts` (a mixture of experts), `Generator` (a decoder with a cache)."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.gpu.training.sequence import Block

__all__ = ["Experts", "Generator", "ResNet"]


class Bottleneck(nn.Module):
    """Three convolutions with a shortcut (arXiv 1512.03385, figure 5); the first of a stage may halve the image."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.layers = nn.Sequential(
            nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs),
        )  # fmt: skip
        self.shortcut = nn.Identity() if inputs == outputs and stride == 1 else _projection(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Return the features of an image, with four times the width as channels."""
        return torch.relu(self.layers(x) + self.shortcut(x))


def _projection(inputs: int, outputs: int, stride: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))


class ResNet(nn.Module):
    """Images to classes, with the layers of ResNet-50 if `blocks` is (3, 4, 6, 3) and `width` 64.

    Parameters
    ----------
    blocks : sequence of int
        Bottlenecks of each stage.
    width : int
        Channels of the first stage.
    classes : int
        Classes to tell apart.
    """

    def __init__(self, blocks: Sequence[int], width: int, classes: int) -> None:
        super().__init__()
        stem = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        layers: list[nn.Module] = [stem, nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
        inputs = width
        for stage, count in enumerate(blocks):
            for number in range(count):
                layers.append(Bottleneck(inputs, width << stage, 2 if stage and number == 0 else 1))
                inputs = 4 * (width << stage)
        self.layers = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))

    def loss(self, images: Tensor, classes: Tensor) -> Tensor:
        """Return the loss of images (batch, 3, height, width) and classes (batch,)."""
        return functional.cross_entropy(self.layers(images), classes)


class Experts(nn.Module):
    """A layer of experts, each of two products, which take equal shares of the tokens.

    Parameters
    ----------
    hidden, inner, experts : int
        Sizes of a token and between the products, and number of experts.
    streams : int
        Streams that the experts are dealt out to; 1 runs them one after another. A CPU has one.
    """

    def __init__(self, hidden: int, inner: int, experts: int, streams: int) -> None:
        super().__init__()
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(hidden, inner), nn.GELU(), nn.Linear(inner, hidden)) for _ in range(experts)
        )
        self.streams = streams
        self._drawn: list[Any] = []

    def forward(self, tokens: Tensor) -> Tensor:
        """Return a token (tokens, hidden) for each token."""
        shares = tokens.chunk(len(self.experts))
        if self.streams == 1 or tokens.device.type != "cuda":
            return torch.cat([expert(share) for expert, share in zip(self.experts, shares, strict=True)])
        main, streams = torch.cuda.current_stream(), self._side_streams()
        results = []
        for stream in streams:
            stream.wait_stream(main)
        for number, (expert, share) in enumerate(zip(self.experts, shares, strict=True)):
            with torch.cuda.stream(streams[number % len(streams)]):
                results.append(expert(share))
        for stream in streams:
            main.wait_stream(stream)
        return torch.cat(results)

    def _side_streams(self) -> list[Any]:
        if not self._drawn:
            self._drawn = [torch.cuda.Stream() for _ in range(self.streams)]
        return self._drawn


class Generator(nn.Module):
    """A decoder that predicts tokens one by one, with keys and values of the tokens before in a cache.

    Parameters
    ----------
    hidden, layers, heads, vocabulary, longest : int
        Sizes, as those of `benchmarks.gpu.training.sequence.LanguageModel`.
    """

    def __init__(self, hidden: int, layers: int, heads: int, vocabulary: int, longest: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, hidden), nn.Embedding(longest, hidden)
        self.layers = nn.ModuleList(Block(hidden, heads, 4 * hidden, causal=True) for _ in range(layers))
        self.last = nn.LayerNorm(hidden)
        self.words = nn.Linear(hidden, vocabulary, bias=False)

    def cache(self, batch: int, length: int) -> list[tuple[Tensor, Tensor]]:
        """Return room for the keys and values of each layer, each (batch, heads, length, width), filled at random."""
        first = self.layers[0]
        assert isinstance(first, Block)
        width = first.joined.in_features // first.heads
        weight = self.words.weight

        def room() -> Tensor:
            return torch.randn((batch, first.heads, length, width), device=weight.device, dtype=weight.dtype)

        return [(room(), room()) for _ in self.layers]

    def prefill(self, tokens: Tensor) -> Tensor:
        """Return the scores of the token behind each prompt (batch, length)."""
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return self.words(self.last(x[:, -1]))

    def decode(self, tokens: Tensor, cache: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
        """Return the scores of the token behind the last tokens (batch, 1), whose keys and values end the cache."""
        x = self.tokens(tokens) + self.positions.weight[cache[0][0].shape[2] - 1]
        for layer, (keys, values) in zip(self.layers, cache, strict=True):
            assert isinstance(layer, Block)
            x = _decoded(layer, x, keys, values)
        return self.words(self.last(x))


def _decoded(layer: Block, x: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Return the output of a layer for one token a sequence."""
    parts = layer.projections(layer.first(x)).unflatten(-1, (3, layer.heads, -1)).permute(2, 0, 3, 1, 4)
    keys[:, :, -1:], values[:, :, -1:] = parts[1], parts[2]
    attended = functional.scaled_dot_product_attention(parts[0], keys, values)
    x = x + layer.joined(attended.transpose(1, 2).flatten(2))
    return x + layer.narrow(functional.gelu(layer.wide(layer.second(x))))

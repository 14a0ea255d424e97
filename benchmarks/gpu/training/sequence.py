"""Models whose cost depends on the sequence length: `Translation` (as GNMT), `LanguageModel` (a decoder as GPT-2)."""

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["Block", "LanguageModel", "Translation"]


class Block(nn.Module):
    """A transformer's layer: self-attention and two linear layers, each with its residual.

    Parameters
    ----------
    hidden, heads, inner : int
        `inner` between the linear layers.
    causal : bool
        Whether a token sees only those before it. Then normalisation comes first (GPT-2), else behind (BERT).
    dropout : float
    """

    def __init__(self, hidden: int, heads: int, inner: int, *, causal: bool, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads, self.causal, self.rate = heads, causal, dropout
        self.projections = nn.Linear(hidden, 3 * hidden)
        self.joined = nn.Linear(hidden, hidden)
        self.wide, self.narrow = nn.Linear(hidden, inner), nn.Linear(inner, hidden)
        self.first, self.second = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Return (batch, length, hidden) for the same."""
        if self.causal:
            x = x + self.dropout(self._attend(self.first(x)))
            return x + self.dropout(self._mix(self.second(x)))
        x = self.first(x + self.dropout(self._attend(x)))
        return self.second(x + self.dropout(self._mix(x)))

    def _attend(self, x: Tensor) -> Tensor:
        parts = self.projections(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        found = functional.scaled_dot_product_attention(
            parts[0], parts[1], parts[2], dropout_p=self.rate, is_causal=self.causal
        )
        return self.joined(found.transpose(1, 2).flatten(2))

    def _mix(self, x: Tensor) -> Tensor:
        return self.narrow(functional.gelu(self.wide(x)))


class LanguageModel(nn.Module):
    """Tokens to the next tokens."""

    def __init__(self, hidden: int, layers: int, heads: int, vocabulary: int, longest: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, hidden), nn.Embedding(longest, hidden)
        self.layers = nn.Sequential(*(Block(hidden, heads, 4 * hidden, causal=True) for _ in range(layers)))
        self.last = nn.LayerNorm(hidden)
        self.words = nn.Linear(hidden, vocabulary, bias=False)

    def loss(self, tokens: Tensor) -> Tensor:
        """Return the loss of tokens (batch, length + 1): each predicts the one behind it."""
        length = tokens.shape[1] - 1
        x = self.tokens(tokens[:, :length]) + self.places.weight[:length]
        found = self.words(self.last(self.layers(x)))
        return functional.cross_entropy(found.flatten(0, 1), tokens[:, 1:].flatten())


class Translation(nn.Module):
    """Tokens to tokens, with the layers of GNMT: LSTMs, the first both ways; attention of the decoder's first layer.

    Source and target have the same padded length, and nothing is packed.
    """

    def __init__(self, hidden: int, layers: int, vocabulary: int) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(vocabulary, hidden), nn.Embedding(vocabulary, hidden)
        self.both_ways = nn.LSTM(hidden, hidden // 2, batch_first=True, bidirectional=True)
        self.encoder = nn.LSTM(hidden, hidden, layers - 1, batch_first=True)
        self.first = nn.LSTM(hidden, hidden, batch_first=True)
        self.query = nn.Linear(hidden, hidden, bias=False)
        self.decoder = nn.LSTM(2 * hidden, hidden, layers - 1, batch_first=True)
        self.words = nn.Linear(hidden, vocabulary)

    def loss(self, tokens: Tensor) -> Tensor:
        """Return the loss of tokens (batch, length + 1); the target is the source moved on by one."""
        source, target = tokens[:, :-1], tokens[:, 1:]
        memory = self.encoder(self.both_ways(self.source(source))[0])[0]
        steps = self.first(self.target(source))[0]
        scores = torch.bmm(self.query(steps), memory.transpose(1, 2))
        context = torch.bmm(torch.softmax(scores, -1), memory)
        found = self.words(self.decoder(torch.cat((steps, context), -1))[0])
        return functional.cross_entropy(found.flatten(0, 1), target.flatten())

"""Three sequence models, small enough for a CPU, whose cost grows with the sequence length as in the originals.

`speech` has the layers of DeepSpeech2 (two convolutions, five bidirectional GRUs, a classifier of each frame),
`translation` those of GNMT (LSTM encoder and decoder with attention), `transformer` is an encoder with
self-attention, whose cost has a quadratic part.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

__all__ = ["MODELS", "Speech", "Transformer", "Translation"]

VOCABULARY, CLASSES, FEATURES = 500, 30, 32


class Speech(nn.Module):
    """Frames (batch, length, FEATURES) to classes of every fourth frame."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 8, (5, 5), stride=(2, 2), padding=2)
        self.second = nn.Conv2d(8, 8, (3, 3), stride=(2, 2), padding=1)
        self.recurrent = nn.GRU(FEATURES // 4 * 8, hidden, num_layers=5, batch_first=True, bidirectional=True)
        self.classes = nn.Linear(2 * hidden, CLASSES)

    def loss(self, length: int, batch: int, generator: torch.Generator) -> Tensor:
        """Return the loss of one random batch."""
        frames = torch.randn(batch, 1, length, FEATURES, generator=generator)
        mixed = torch.relu(self.second(torch.relu(self.first(frames))))
        steps = mixed.permute(0, 2, 1, 3).flatten(2)
        logits = self.classes(self.recurrent(steps)[0])
        target = torch.randint(CLASSES, logits.shape[:2], generator=generator)
        return nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten())


class Translation(nn.Module):
    """Tokens to tokens: an LSTM layer each side, dot-product attention of the decoder over the encoder."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.source = nn.Embedding(VOCABULARY, hidden)
        self.target = nn.Embedding(VOCABULARY, hidden)
        self.encoder = nn.LSTM(hidden, hidden, batch_first=True)
        self.decoder = nn.LSTM(hidden, hidden, batch_first=True)
        self.words = nn.Linear(2 * hidden, VOCABULARY)

    def loss(self, length: int, batch: int, generator: torch.Generator) -> Tensor:
        """Return the loss of one random batch; both sides have the padded length."""
        source, target = torch.randint(VOCABULARY, (2, batch, length), generator=generator)
        memory, state = self.encoder(self.source(source))
        steps, _ = self.decoder(self.target(target), state)
        attended = torch.softmax(steps @ memory.transpose(1, 2), -1) @ memory
        logits = self.words(torch.cat((steps, attended), -1))
        return nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten())


class Transformer(nn.Module):
    """Tokens to tokens: an encoder layer of four heads."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, hidden)
        layer = nn.TransformerEncoderLayer(hidden, 4, 4 * hidden, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.words = nn.Linear(hidden, VOCABULARY)

    def loss(self, length: int, batch: int, generator: torch.Generator) -> Tensor:
        """Return the loss of one random batch."""
        tokens = torch.randint(VOCABULARY, (batch, length), generator=generator)
        logits = self.words(self.layers(self.tokens(tokens)))
        return nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())


#: Models by name; each is made with a hidden size.
MODELS: dict[str, Callable[[int], nn.Module]] = {
    "speech": Speech,
    "translation": Translation,
    "transformer": Transformer,
}

"""`Trainer`: a model, its optimizer and its precision; one call trains one batch and waits for nothing."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

__all__ = ["TYPES", "Trainer", "adamw", "trainer"]

#: As PyTorch and as the tables call the types.
TYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
#: Of the loss in FP16, so that small gradients are no zeros. It is fixed: a scaler that looks at the gradients would
#: wait for the device in every iteration.
_FP16_SCALE = 1024.0


@dataclass(frozen=True)
class Trainer:
    """What trains one batch.

    Parameters
    ----------
    model : nn.Module
    optimizer : torch.optim.Optimizer
    dtype : str
        A key of `TYPES`; all but ``"fp32"`` by automatic mixed precision, the weights stay FP32.
    device : str
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    dtype: str
    device: str

    def step(self, loss: Callable[[], Tensor]) -> None:
        """Train on the loss of one batch; nothing here waits for the device."""
        self.optimizer.zero_grad(set_to_none=True)
        with self._precision():
            found = loss()
        (found * _FP16_SCALE if self.dtype == "fp16" else found).backward()
        self.optimizer.step()

    def _precision(self) -> AbstractContextManager[object]:
        if self.dtype == "fp32":
            return nullcontext()
        return torch.autocast(torch.device(self.device).type, TYPES[self.dtype])


def trainer(
    make: Callable[[], nn.Module],
    device: str,
    dtype: str,
    *,
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] | None = None,
) -> Trainer:
    """Return a trainer of a new model, made on the device; AdamW, fused on a GPU, where no optimizer is named."""
    with torch.device(device):
        model = make()
    model.train()
    return Trainer(model, (optimizer or adamw)(model), dtype, device)


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    """Return AdamW, fused on a GPU: one kernel for many parameters. (PyTorch has no LAMB, which is often BERT's.)"""
    fused = next(model.parameters()).device.type == "cuda"
    return torch.optim.AdamW(model.parameters(), lr=1e-4, fused=fused or None)

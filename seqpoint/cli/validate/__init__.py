"""`seqpoint validate`."""

import click

from seqpoint.cli.lazy import LazyGroup

#: Suite, where its command is, and its line in the help.
SUITES = {
    "selection": ("seqpoint.cli.validate.selection:selection", "Selectors, on configurations that they did not see."),
    "kernels": ("seqpoint.cli.validate.kernels:kernels", "Durations of operators."),
    "collectives": ("seqpoint.cli.validate.collectives:collectives", "Times of collectives."),
    "models": ("seqpoint.cli.validate.models:models", "Times of whole transformers."),
    "published": ("seqpoint.cli.validate.published:published", "What papers report, against our models of them."),
    "contention": ("seqpoint.cli.validate.contention:contention", "Works that ran side by side on a device."),
    "training": ("seqpoint.cli.validate.training:training", "Times of training steps."),
}


@click.group("validate", cls=LazyGroup, places=SUITES)
def command() -> None:
    """Score what the toolkit says against what was measured.

    \b
    seqpoint validate selection my_epochs/
    seqpoint validate kernels measured.parquet
    """

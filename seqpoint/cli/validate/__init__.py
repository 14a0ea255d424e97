"""`seqpoint validate`."""

import click

from seqpoint.cli.validate.collectives import collectives
from seqpoint.cli.validate.kernels import kernels
from seqpoint.cli.validate.models import models
from seqpoint.cli.validate.selection import selection
from seqpoint.cli.validate.training import training


@click.group("validate")
def command() -> None:
    """Score what the toolkit says against what was measured.

    \b
    seqpoint validate selection my_epochs/
    seqpoint validate kernels measured.parquet
    """


for suite in (selection, kernels, collectives, models, training):
    command.add_command(suite)

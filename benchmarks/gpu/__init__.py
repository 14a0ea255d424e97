"""Record on one GPU how kernels slow each other, what a training run takes, and how long operators are."""

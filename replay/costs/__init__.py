"""How long: operators, kernels, collectives, and the same on another device."""

"""A small input for every network that the tests look at."""

from __future__ import annotations

SHAPES = {
    "mobilenetv2": (3, 16, 16),
    "audionet": (2, 32, 40),
    "harnet": (1, 64, 3),
    "lenet5": (1, 28, 28),
    "lenet5-tanh": (3, 32, 32),
    "mcmahan-cnn": (1, 12, 16),
    "resnet9": (3, 16, 16),
    "resnet9-dropout": (3, 16, 16),
    "resnet9-wide": (3, 16, 16),
    "resnet18": (3, 16, 16),
    "resnet18-7x7": (3, 32, 32),
    "alexnet": (3, 64, 64),
    "alexnet-fedbn": (3, 64, 64),
    "unet": (3, 32, 32),
    "unet-small": (3, 32, 32),
    "small-cnn": (2, 9, 13),
    "digits-cnn": (1, 8, 8),
    "mlp": (3, 5),
    "harnet-gn": (1, 64, 3),
    "resnet9-gn": (3, 16, 16),
    "digits-cnn-gn": (1, 8, 8),
}

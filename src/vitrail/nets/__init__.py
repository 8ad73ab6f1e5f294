"""The networks. Each names its parameter groups (input, body, head, output) and knows its own gradient."""

from vitrail.nets.mlp import MLP
from vitrail.nets.module import Module
from vitrail.nets.pictures import cnn, resnet18

__all__ = ["MLP", "Module", "cnn", "resnet18"]

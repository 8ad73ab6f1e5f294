"""The networks. Each names its parameter groups (input, body, head, output) and knows its own gradient."""

from vitrail.nets.mlp import MLP

__all__ = ["MLP"]

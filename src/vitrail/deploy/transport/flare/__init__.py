"""NVIDIA FLARE carries the bytes. Nothing outside this folder imports it."""

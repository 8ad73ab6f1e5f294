"""A site's model as one file that works without Vitrail's run folder: ONNX, torch's own, or a safe file of ours."""

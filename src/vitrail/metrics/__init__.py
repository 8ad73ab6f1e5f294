"""How good predictions are: classification, regression, survival, calibration, skill against a baseline."""

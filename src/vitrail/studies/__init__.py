"""Many runs: methods side by side, hyperparameters tried, whom to learn from, what each site brought.

Nothing is loaded here: a process that gives or does jobs (`pool`) is there without torch and pandas.
"""

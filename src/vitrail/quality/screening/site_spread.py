"""How much hospitals differ: made by benchmarks/faults/site_spread.py from public multi-site tables.

{family of tests, kind of column: variance between sites beyond chance}, the median over tables; behind it, how
many tables have such a column.
"""

SITE_SPREAD = {
    "below, number": 0.01274,  # 7
    "beyond, number": 0.0009506,  # 7
    "kept, category": 0.05787,  # 4
    "kept, number": 0.05506,  # 6
    "kept, yes or no": 0.02818,  # 4
    "location, number": 0.216,  # 7
    "missing, category": 0.2006,  # 4
    "missing, number": 0.002716,  # 4
    "missing, yes or no": 0.005923,  # 3
    "outcome, category": 4.716e-06,  # 6
    "outcome, number": 0.003525,  # 7
    "outcome, yes or no": 0.0001357,  # 7
    "ratio, category": 6.229e-05,  # 3
    "ratio, number": 0.0002885,  # 7
    "ratio, outcome": 0.0001667,  # 7
    "ratio, yes or no": 4.345e-06,  # 7
    "related, category": 0.007843,  # 4
    "related, number": 0.001052,  # 6
    "related, yes or no": 0.003751,  # 4
    "share, category": 0.009751,  # 6
    "share, outcome": 0.009062,  # 7
    "share, yes or no": 0.005951,  # 7
    "size, number": 0.07156,  # 7
    "value, number": 0.001546,  # 7
}

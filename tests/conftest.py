import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # the tests' tensors are small: threads wait for each other, and no more
sys.path.insert(0, str(Path(__file__).parent))  # small.py: the federation that laws and engines share

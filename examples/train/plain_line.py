"""Fits a line by gradient descent, with nothing but Python: every rank of plain.yaml has data of its own."""

import os
import random

rank = int(os.environ.get("DIBS_RANK", "0"))
source = random.Random(rank)
points = [(x, 3 * x + 1) for x in (source.random() for _ in range(64))]
slope = offset = 0.0
for _ in range(2000):
    errors = [(x, slope * x + offset - y) for x, y in points]
    slope -= 0.5 * sum(2 * x * error for x, error in errors) / len(errors)
    offset -= 0.5 * sum(2 * error for _, error in errors) / len(errors)
print(f"y = {slope:.2f} x + {offset:.2f}, on {os.environ.get('DIBS_GPU_COUNT', '0')} GPU")

"""Fits a line with gradients that all processes average: `mpirun` starts it on every node of mpi.yaml."""

import os
import random

from mpi4py import MPI

world = MPI.COMM_WORLD
rank, size = world.Get_rank(), world.Get_size()
total = world.allreduce(rank)
where = os.uname().nodename
print(f"rank {rank} of {size} on {where}: all-reduce gives {total}, devices {os.environ.get('DIBS_GPUS', 'none')}")

random.seed(rank)  # every process has data of its own
points = [(x, 3 * x + 1) for x in (random.random() for _ in range(64))]
weight = bias = 0.0
for _ in range(400):
    errors = [(x, weight * x + bias - y) for x, y in points]
    slope = world.allreduce(sum(2 * error * x for x, error in errors) / len(points)) / size
    shift = world.allreduce(sum(2 * error for _, error in errors) / len(points)) / size
    weight, bias = weight - 0.5 * slope, bias - 0.5 * shift
print(f"rank {rank}: y = {weight:.2f} x + {bias:.2f}")

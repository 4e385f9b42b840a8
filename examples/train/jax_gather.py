"""Fits a line over all processes with JAX: every rank of examples/train/jax.yaml runs it."""

import os

import jax
import jax.numpy as jnp
from jax.experimental import multihost_utils

jax.distributed.initialize(
    coordinator_address=os.environ["JAX_COORDINATOR_ADDRESS"],
    num_processes=int(os.environ["JAX_NUM_PROCESSES"]),
    process_id=int(os.environ["JAX_PROCESS_ID"]),
)

rank, world = jax.process_index(), jax.process_count()
gathered = multihost_utils.process_allgather(jnp.array([float(rank)]))
print(f"rank {rank} of {world}: gather gives {gathered.sum():.0f}, devices {os.environ.get('DIBS_GPUS', 'none')}")

x = jax.random.uniform(jax.random.key(rank), (64,))
y = 3 * x + 1
gradient = jax.jit(jax.grad(lambda line: ((line[0] * x + line[1] - y) ** 2).mean()))
line = jnp.zeros(2)
for _ in range(40):
    for _ in range(10):
        line -= 0.5 * gradient(line)
    line = multihost_utils.process_allgather(line).mean(axis=0)
print(f"rank {rank}: y = {line[0]:.2f} x + {line[1]:.2f}")

"""Fits a line with gradients that all processes average: `torchrun` starts it on every rank of torch.yaml."""

import os

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
total = torch.tensor([float(rank)])
dist.all_reduce(total)
print(f"rank {rank} of {world}: all-reduce gives {total.item():.0f}, devices {os.environ.get('DIBS_GPUS', 'none')}")

torch.manual_seed(rank)  # every process has data of its own
x = torch.rand(64, 1)
y = 3 * x + 1
weight, bias = torch.zeros(1, requires_grad=True), torch.zeros(1, requires_grad=True)
for _ in range(400):
    loss = ((x * weight + bias - y) ** 2).mean()
    loss.backward()
    for one in (weight, bias):
        dist.all_reduce(one.grad)
        with torch.no_grad():
            one.sub_(0.5 * one.grad / world)
            one.grad.zero_()
print(f"rank {rank}: y = {weight.item():.2f} x + {bias.item():.2f}")
dist.destroy_process_group()

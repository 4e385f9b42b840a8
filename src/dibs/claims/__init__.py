"""Kubernetes' Dynamic Resource Allocation, without Kubernetes."""

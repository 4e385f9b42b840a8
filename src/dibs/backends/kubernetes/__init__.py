"""A Kubernetes cluster as a backend: a sandbox is a Pod, or an agent-sandbox Sandbox or BatchSandbox around one."""

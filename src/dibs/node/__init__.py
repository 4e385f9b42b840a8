"""`dibs node`: a node's devices for Kubernetes, as a DRA driver or as a device plugin. `cli/node.py` starts it.

driver.py     puts the parts together, and runs until it is told to stop
devices.py    what the node has: CDI, NVML, or a simulated world; as slices and by their published names
publish.py    ResourceSlices at the API server
prepare.py    claims become CDI names; records.py remembers which
specs.py      the CDI specs that are written here
plugin.py     the device plugin, for clusters without DRA
kubelet.py    sockets and registration; wire.py the messages
"""

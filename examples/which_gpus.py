"""What a program sees when dibs has leased GPUs for it."""

import os
from pathlib import Path

print(f"hello from {os.environ['DIBS_SANDBOX']}: {os.environ['DIBS_GPU_COUNT']} GPUs")
for uuid, model in zip(os.environ["DIBS_GPU_UUIDS"].split(","), os.environ["DIBS_GPU_MODELS"].split(","), strict=True):
    print(f"  {model}  {uuid}")
nodes = sorted(str(path) for path in Path("/dev").glob("*gpu*")) + sorted(str(p) for p in Path("/dev").glob("nvidia*"))
print(f"  device nodes: {', '.join(nodes)}")

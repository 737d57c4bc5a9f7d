"""What torch sees on this machine: ``python -m vla_rl.cli.doctor.torch_facts``, in a process of its own.

In: nothing. Out: one fact when torch is imported, and one when its GPUs were asked, so that a driver that hangs is told
from a torch that does. Each GPU computes something: a build of torch may lack the kernels for it.
"""

from __future__ import annotations

from typing import Any

from vla_rl.cli.doctor.children import tell


def main() -> None:
    """Tell the version, then the GPUs with their free memory in bytes."""
    try:
        import torch
    except Exception as error:
        tell({"broken": f"{type(error).__name__}: {error}"})
        return
    tell({"torch": str(torch.__version__), "cuda": torch.version.cuda})
    found = range(torch.cuda.device_count()) if torch.cuda.is_available() else ()
    tell({"gpus": [_gpu(torch, index) for index in found]})


def _gpu(torch: Any, index: int) -> dict[str, Any]:
    gpu: dict[str, Any] = {"name": f"GPU {index}", "free": None, "total": None, "broken": None}
    try:
        gpu["name"] = torch.cuda.get_device_name(index)
        gpu["free"], gpu["total"] = torch.cuda.mem_get_info(index)
        if float((torch.ones(256, device=f"cuda:{index}") * 2).sum()) != 512:
            gpu["broken"] = "it computes something else than it should"
    except Exception as error:
        gpu["broken"] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return gpu


if __name__ == "__main__":
    main()

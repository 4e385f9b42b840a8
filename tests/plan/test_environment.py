"""One value per variable, from what was leased."""

from __future__ import annotations

from dibs.cdi.spec import ContainerEdits
from dibs.devices.model import CdiAttachment, Device
from dibs.errors import Problem
from dibs.plan.environment import device_environment, lease_environment


def device(index: int, *env: str, vendor: str = "nvidia", spec_env: tuple[str, ...] = ()) -> Device:
    return Device(
        driver="gpu.nvidia.com",
        pool="host",
        name=f"gpu-{index}",
        vendor=vendor,
        model="H100",
        uuid=f"GPU-{index}",
        attachment=CdiAttachment(
            f"nvidia.com/gpu={index}", ContainerEdits(env=env), "spec", ContainerEdits(env=spec_env)
        ),
    )


def test_sd_25_two_devices_that_set_the_same_variable_give_one_merged_value() -> None:
    problems: list[Problem] = []
    env = device_environment([device(0, "MY_DEVICES=a"), device(1, "MY_DEVICES=b")], problems)
    assert env == {"MY_DEVICES": "a,b"}
    assert problems == []


def test_a_variable_that_cannot_be_merged_is_refused_with_both_values() -> None:
    problems: list[Problem] = []
    device_environment([device(0, "MODE=fast"), device(1, "MODE=slow")], problems)
    assert [problem.code for problem in problems] == ["ENV_CONFLICT"]
    assert '"fast"' in problems[0].reason
    assert '"slow"' in problems[0].reason


def test_what_the_spec_sets_for_all_its_devices_is_applied_once() -> None:
    problems: list[Problem] = []
    env = device_environment([device(0, spec_env=("A_DEVICES=x",)), device(1, spec_env=("A_DEVICES=x",))], problems)
    assert env == {"A_DEVICES": "x"}


def test_the_lease_describes_its_devices() -> None:
    env = lease_environment([device(0), device(3)], sandbox_id="sb-1", simulated=True)
    assert env["CUDA_VISIBLE_DEVICES"] == env["NVIDIA_VISIBLE_DEVICES"] == "GPU-0,GPU-3"
    assert env["DIBS_GPU_COUNT"] == "2"
    assert env["DIBS_SIMULATED"] == "1"


def test_sd_42_without_devices_the_environment_says_none() -> None:
    env = lease_environment([], sandbox_id="sb-1", simulated=False)
    assert env["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert env["CUDA_VISIBLE_DEVICES"] == ""
    assert "DIBS_GPUS" not in env

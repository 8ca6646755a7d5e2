"""GPUs: by what the system's tools print and a board's files say, each as it was seen."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgellm.hw import gpu
from edgellm.hw.gpu import GpuFacts, apple_gpus, gpus, jetson_gpus, nvidia_gpus

MIB = 1 << 20
MEMINFO = "MemTotal:  7802000 kB\nMemFree:  300000 kB\nMemAvailable: 5200000 kB\nNvMapMemUsed: 1048576 kB\n"


def board(root: Path, chip: str, model: str) -> Path:
    """Write the files of a board's device tree, which end with a zero byte."""
    (root / "proc/device-tree").mkdir(parents=True)
    (root / "proc/device-tree/compatible").write_bytes(f"nvidia,p3768\0nvidia,{chip}\0".encode())
    (root / "proc/device-tree/model").write_bytes(f"{model}\0".encode())
    (root / "proc/meminfo").write_text(MEMINFO)
    return root


def test_two_cards() -> None:
    """Memory in MiB, free memory as the driver says it, compute capability, driver."""
    text = (
        "NVIDIA GeForce RTX 4060 Laptop GPU, 8188, 7654, 8.9, 560.35.03\n"
        "NVIDIA H200, 143771, 143000, 9.0, 560.35.03\n"
    )
    first, second = nvidia_gpus(text)
    assert first == GpuFacts(
        "NVIDIA GeForce RTX 4060 Laptop GPU",
        "cuda",
        8188 * MIB,
        7654 * MIB,
        "8.9",
        driver="560.35.03",
    )
    assert ("9.0", False) == (second.compute_capability, second.unified)


@pytest.mark.parametrize("cell", ["[N/A]", "[Not Supported]", "N/A"])
def test_a_gpu_without_memory_of_its_own(cell: str) -> None:
    """GB10 and Orin give no figure: they share the host's."""
    (found,) = nvidia_gpus(f"NVIDIA GB10, {cell}, {cell}, 12.1, 580.95\n")
    assert (True, None, None) == (found.unified, found.total_bytes, found.free_bytes)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n",
        "a, b\n",
        "\0\0,,,",
        "No devices were found\n",
    ],
)
def test_no_card(text: str) -> None:
    """A tool without a driver prints words."""
    assert () == nvidia_gpus(text)


@pytest.mark.parametrize(
    ("chip", "capability"), [("tegra194", "7.2"), ("tegra234", "8.7"), ("tegra264", "11.0")]
)
def test_a_jetson_by_its_device_tree(tmp_path: Path, chip: str, capability: str) -> None:
    """One memory for both, no free memory of the GPU's own; what it holds is named."""
    root = board(tmp_path, chip, "NVIDIA Jetson Orin Nano Developer Kit")
    (found,) = jetson_gpus(root)
    assert found.name == "NVIDIA Jetson Orin Nano Developer Kit"
    assert (capability, True, None) == (found.compute_capability, found.unified, found.free_bytes)
    assert "1024 MiB" in found.note
    assert (found,) == gpus(root, "Linux")


def test_a_board_of_somebody_else(tmp_path: Path) -> None:
    """A Raspberry Pi has a device tree, too."""
    (tmp_path / "proc/device-tree").mkdir(parents=True)
    (tmp_path / "proc/device-tree/compatible").write_bytes(b"raspberrypi,5\0brcm,bcm2712\0")
    assert () == jetson_gpus(tmp_path)
    assert () == jetson_gpus(tmp_path / "none")


def sysctl(memory: int, limit: int = 0) -> str:
    """Return what a Mac prints."""
    return (
        f"machdep.cpu.brand_string: Apple M4 Max\nhw.memsize: {memory}\n"
        f"iogpu.wired_limit_mb: {limit}\niogpu.dynamic_lwm: 1\n"
    )


@pytest.mark.parametrize(
    ("gib", "limit_mib", "expected_mib"),
    [(8, 0, 5461), (32, 0, 21845), (64, 0, 49152), (64, 60000, 60000)],
)
def test_a_mac(gib: int, limit_mib: int, expected_mib: int) -> None:
    """Metal's shares as they were seen on 8, 32 and 64 GB, and a limit that the user raised."""
    (found,) = apple_gpus(sysctl(gib << 30, limit_mib), "arm64")
    assert found.total_bytes is not None
    assert expected_mib == found.total_bytes // MIB
    assert ("metal", True, "Apple M4 Max") == (found.kind, found.unified, found.name)


def test_a_mac_with_another_chip() -> None:
    """Intel Macs are not planned for, and neither is one that says nothing."""
    assert () == apple_gpus(sysctl(16 << 30), "x86_64")
    assert () == apple_gpus("", "arm64")


def test_macs_are_asked_by_sysctl(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system is Darwin, no driver's tool is started."""
    asked: list[str] = []

    def output(command: tuple[str, ...]) -> str:
        asked.append(command[0])
        return sysctl(16 << 30)

    monkeypatch.setattr(gpu, "_output", output)
    monkeypatch.setattr("platform.machine", lambda: "arm64")
    assert 1 == len(gpus(Path("/"), "Darwin"))
    assert asked == ["/usr/sbin/sysctl"]


def test_a_tool_that_is_not_there(tmp_path: Path) -> None:
    """Nothing is printed, and nothing is raised; nor by one that fails."""
    assert "" == gpu._output([str(tmp_path / "none")])
    assert "" == gpu._output(["false"])

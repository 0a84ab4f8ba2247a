"""A folder with Linux's files of CPU frequency policies."""

from __future__ import annotations

import os
from pathlib import Path


class FrequencyFiles:
    """Below ``root``: each of the ``policies`` is a list of CPUs that share a governor, ``ondemand`` at first."""

    def __init__(self, root: Path, *policies: list[int], governor: str = "ondemand") -> None:
        self.root = root
        self._cpus = root / "sys/devices/system/cpu"
        for cpus in policies:
            folder = self._cpus / f"cpufreq/policy{cpus[0]}"
            folder.mkdir(parents=True)
            (folder / "scaling_governor").write_text(f"{governor}\n")
            (folder / "scaling_available_governors").write_text("ondemand powersave performance\n")
            for cpu in cpus:
                (self._cpus / f"cpu{cpu}").mkdir()
                (self._cpus / f"cpu{cpu}/cpufreq").symlink_to(os.path.relpath(folder, self._cpus / f"cpu{cpu}"))

    def file(self, cpu: int, name: str = "scaling_governor") -> Path:
        return self._cpus / f"cpu{cpu}/cpufreq" / name

    def governors(self) -> list[str]:
        """The governor of each policy."""
        return [path.read_text().strip() for path in sorted(self._cpus.glob("cpufreq/policy*/scaling_governor"))]

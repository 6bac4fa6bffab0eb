# Executed by the kernel, so that no further process adds to what is measured.
import json
import os
import re


def _fields(path):
    with open(path) as file:
        pairs = re.findall(r"^(\w+):?\s+(\d+)", file.read(), re.M)
    return {key: int(value) for key, value in pairs}


def _bytes_of_container():
    folder, usage, inactive = "/sys/fs/cgroup", "memory.current", "inactive_file"
    if not os.path.exists(f"{folder}/{usage}"):  # the first version of cgroups
        folder, usage, inactive = f"{folder}/memory", "memory.usage_in_bytes", f"total_{inactive}"
    with open(f"{folder}/{usage}") as file:
        return int(file.read()) - _fields(f"{folder}/memory.stat")[inactive]


def _companion():
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with open(f"/proc/{pid}/cmdline") as file:
            if file.read().split("\0")[1:2] == ["companion"]:
                return pid


def _memory():
    companion = _companion()
    kibibytes = _fields(f"/proc/{companion}/smaps_rollup")
    return {
        "rss": kibibytes["Rss"] << 10,
        "pss": kibibytes["Pss"] << 10,
        "container": _bytes_of_container(),
    }


print(json.dumps(_memory()))

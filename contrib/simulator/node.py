"""The node. A simulated one: from its file to the /dev, /proc/driver and /sys that drivers, Slurm and CUDA programs read."""
import json
import os
import re
import stat
from pathlib import Path

from . import HOME, Problem, kernel

NVIDIA_MAJOR = 195
CAPABILITY_MAJOR = 239  # the kernel hands out 234-254 from the top; a simulated node has no driver to ask

INFORMATION = """\
Model: \t\t {model}
IRQ:   \t\t {irq}
GPU UUID: \t {uuid}
Video BIOS: \t 92.00.45.00.03
Bus Type: \t PCIe
DMA Size: \t 47 bits
DMA Mask: \t 0x7fffffffffff
Bus Location: \t {pci}
Device Minor: \t {minor}
GPU Excluded:\t {excluded}
"""
VERSION = """\
NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {driver}  Release Build  (dvs-builder@U22-I3)
GCC version:  gcc version 12.2.0 (Debian 12.2.0-14+deb12u1)
"""
UNKNOWN_UUID = "GPU-????????-????-????-????-????????????"  # what the driver shows before a card's first use


class Node:
    """A node file, read and checked. `text` is the file as it is, for the stand-ins."""

    real = False

    def __init__(self, path):
        self.text = path.read_text()
        try:
            content = json.loads(self.text)
            self.driver = content["driver"]
            self.sockets = content.get("sockets", 2)
            self.cores_per_socket = content.get("cores_per_socket", 8)
            self.links = content.get("links", {})
            self.cards = [{"numa": -1, **card} for card in content["cards"]]
            self.minors = sorted(card["minor"] for card in self.cards)
            self.addresses = sorted(card["pci"] for card in self.cards)
            self.domains = max([self.sockets] + [card["numa"] + 1 for card in self.cards])
        except (ValueError, KeyError, TypeError) as error:
            raise Problem(f"{path} is no node file ({error!r}): see `contrib/cluster --help`.") from None
        if len(set(self.minors)) < len(self.cards) or len(set(self.addresses)) < len(self.cards):
            raise Problem(f"{path} has two cards with one minor or one PCI address: give each card its own.")

    @property
    def cpus(self):
        return self.sockets * self.cores_per_socket

    def cpus_near(self, numa):
        """The CPUs of a NUMA node: an equal, contiguous share; all of them for a card without one (-1)."""
        if numa < 0:
            return range(self.cpus)
        return range(self.cpus * numa // self.domains, self.cpus * (numa + 1) // self.domains)

    def install(self):
        """Put the node in place of the machine's own, for this mount namespace."""
        simulation = HOME / "node"
        self._write_driver(simulation / "driver/nvidia")
        self._write_pci(simulation / "pci")
        self._write_domains(simulation / "numa")
        kernel.bind(simulation / "driver", "/proc/driver")
        kernel.bind(simulation / "pci", "/sys/bus/pci")
        kernel.bind(simulation / "numa", "/sys/devices/system/node")
        self._install_devices()

    def _write_driver(self, folder):
        _write(folder / "version", VERSION.format(driver=self.driver))
        _write(folder.parent / "nvidia-sim/node.json", self.text)
        for card in self.cards:
            _write(folder / "gpus" / card["pci"] / "information", INFORMATION.format(
                model=card["model"], irq=100 + card["minor"], pci=card["pci"], minor=card["minor"],
                uuid=UNKNOWN_UUID if card.get("uninitialised") else card["uuid"],
                excluded="Yes" if card.get("excluded") else "No"))
            for path, minor in _capabilities(card):
                _write(folder / "capabilities" / path,
                       f"DeviceFileMinor: {minor}\nDeviceFileMode: 256\nDeviceFileModify: 1\n")

    def _write_pci(self, folder):
        """Slurm's AutoDetect=nvidia looks the card up below its driver, others do among the devices."""
        (folder / "devices").mkdir(parents=True)
        (folder / "drivers/nvidia").mkdir(parents=True)
        for card in self.cards:
            near = self.cpus_near(card["numa"])
            attributes = {"numa_node": card["numa"], "local_cpulist": _cpu_list(near), "local_cpus": _cpu_mask(near),
                          "class": "0x030200", "vendor": "0x10de", "device": "0x20b2"}
            for name, value in attributes.items():
                _write(folder / "devices" / card["pci"] / name, f"{value}\n")
            os.symlink(f"../../devices/{card['pci']}", folder / "drivers/nvidia" / card["pci"])

    def _write_domains(self, folder):
        """NUMA nodes as firmware describes them: 10 to itself, 12 within a socket, 32 across."""
        for name in ("online", "possible", "has_cpu", "has_memory"):
            _write(folder / name, f"{_cpu_list(range(self.domains))}\n")
        sockets = [domain * self.sockets // self.domains for domain in range(self.domains)]
        for domain in range(self.domains):
            distances = [10 if other == domain else 12 if sockets[other] == sockets[domain] else 32
                         for other in range(self.domains)]
            _write(folder / f"node{domain}/distance", " ".join(map(str, distances)) + "\n")
            _write(folder / f"node{domain}/cpulist", f"{_cpu_list(self.cpus_near(domain))}\n")
            _write(folder / f"node{domain}/cpumap", f"{_cpu_mask(self.cpus_near(domain))}\n")

    def _install_devices(self):
        """A /dev with the machine's nodes, less its NVIDIA ones, plus the simulated ones."""
        machine = os.open("/dev", os.O_PATH)
        kernel.mount("tmpfs", "/dev", "mode=755")
        _copy_devices(f"/proc/self/fd/{machine}", "/dev")
        os.close(machine)
        _make_device("/dev/nvidiactl", NVIDIA_MAJOR, 255)
        _make_device("/dev/nvidia-uvm", CAPABILITY_MAJOR - 1, 0)
        for card in self.cards:
            _make_device(f"/dev/nvidia{card['minor']}", NVIDIA_MAJOR, card["minor"])
            for _, minor in _capabilities(card):
                _make_device(f"/dev/nvidia-caps/nvidia-cap{minor}", CAPABILITY_MAJOR, minor)
        for link, target in self.links.items():
            os.symlink(target, link)


class Machine:
    """The machine as it is, with the cards that its driver and its /dev have. Slurm is told of enough CPUs for tests."""

    real = True
    sockets, cores_per_socket = 1, max(os.cpu_count(), 8)
    cpus = sockets * cores_per_socket

    def __init__(self):
        informations = [path.read_text() for path in Path("/proc/driver/nvidia/gpus").glob("*/information")]
        minors = {int(re.search(r"Device Minor:\s*(\d+)", text).group(1)) for text in informations}
        self.cards = self.minors = sorted(minor for minor in minors if os.path.exists(f"/dev/nvidia{minor}"))
        if not self.minors:
            raise Problem("this machine has no NVIDIA card with a loaded driver: leave --real out to simulate some.")

    def install(self):
        """Nothing stands in the place of anything."""


def _capabilities(card):
    """(path below /proc/driver/nvidia/capabilities, minor) of each access file of the card's slices, once each."""
    instances = {}
    for part in card.get("slices", []):
        instance = f"gpu{card['minor']}/mig/gi{part['gi']}"
        instances[f"{instance}/access"] = part["cap_minors"][0]
        instances[f"{instance}/ci{part['ci']}/access"] = part["cap_minors"][1]
    return instances.items()


def _cpu_list(cpus):
    return f"{cpus.start}-{cpus.stop - 1}" if len(cpus) > 1 else f"{cpus.start}"


def _cpu_mask(cpus):
    """As the kernel prints it: groups of 32 bits in hexadecimal, highest first."""
    mask, groups = sum(1 << cpu for cpu in cpus), []
    while mask or not groups:
        groups.insert(0, f"{mask & 0xffffffff:08x}")
        mask >>= 32
    return ",".join(groups)


def _write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _make_device(path, major, minor):
    Path(path).parent.mkdir(exist_ok=True)
    os.mknod(path, stat.S_IFCHR, os.makedev(major, minor))
    os.chmod(path, 0o666)


def _copy_devices(source, target):
    for entry in os.scandir(source):
        path, status = f"{target}/{entry.name}", entry.stat(follow_symlinks=False)
        if entry.name.startswith("nvidia"):
            continue
        if entry.is_symlink():
            os.symlink(os.readlink(entry.path), path)
        elif entry.is_dir():
            os.mkdir(path)
            kernel.bind(entry.path, path)
        elif stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode):
            os.mknod(path, status.st_mode, status.st_rdev)
            os.chmod(path, stat.S_IMODE(status.st_mode))
            os.chown(path, status.st_uid, status.st_gid)

#!/usr/bin/env python3
"""Checks, where a training script starts, that torch sees the cards that gpu-align gave.

    import gpu_align_check
    gpu_align_check.check()            # prints torch index -> PCI -> UUID; raises if they differ

or, without touching the script:

    srun --gpu-align python -m gpu_align_check [--json]

One file, no dependency but torch (1.13 or newer); put it beside the script or on PYTHONPATH. What an old
torch cannot say (PCI addresses and UUIDs before 2.x) is said to be unknown, and what can still be compared is.

Exit status: 0 the cards are the ones that were given; 1 they are not; 2 it could not be told.
"""
import argparse
import json
import os
import sys

__all__ = ["check", "Mismatch", "Report"]


class Mismatch(RuntimeError):
    """torch does not see the cards that gpu-align gave."""


class Report:
    """What was seen: `devices` (a list of dicts), `wrong`, `warnings`, `unknown` (sentences)."""

    def __init__(self):
        self.torch = None
        self.cuda = None
        self.given = _given()
        self.own = os.environ.get("GPU_ALIGN_CARD")
        self.visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        self.devices = []
        self.wrong = []
        self.warnings = []
        self.unknown = []

    def as_dict(self):
        return {"schema": 1, **vars(self)}

    def lines(self):
        """For people, each with the prefix of everything that gpu-align says."""
        said = ["torch %s, CUDA %s: %s" % (self.torch or "is missing", self.cuda or "none", _count(len(self.devices)))]
        for device in self.devices:
            own = "  <- this rank's own" if device["uuid"] and device["uuid"] == self.own else ""
            said.append("  cuda:%d  %s  %s  %s%s" % (device["index"], device["pci"] or "bus unknown",
                                                   device["uuid"] or "UUID unknown", device["name"], own))
        said += ["wrong: " + text for text in self.wrong]
        said += ["warning: " + text for text in self.warnings]
        said += ["not looked at: " + text for text in self.unknown]
        return ["gpu-align: " + line for line in said]


def check(device=None, quiet=False, file=None):
    """Compares torch's devices with GPU_ALIGN_UUIDS; returns the Report or raises Mismatch.

    device: the index, "cuda:N" or torch.device that this rank is about to use: it is compared with the rank's own
    card in mode single, rotate and all. quiet: print nothing. file: where to print (default: sys.stderr).
    """
    report = look(device)
    if not quiet:
        print("\n".join(report.lines()), file=file or sys.stderr, flush=True)
    if report.wrong:
        raise Mismatch("gpu-align: " + "; ".join(report.wrong))
    return report


def look(device=None):
    """The Report, without printing or raising."""
    report = Report()
    try:
        import torch
    except Exception as error:  # a library that torch needs raises OSError, a broken one whatever it likes
        report.unknown.append("torch cannot be imported (%s); activate the environment that has it" % _first_line(error))
        return report
    report.torch = torch.__version__
    report.cuda = torch.version.cuda
    if report.cuda is None:
        report.unknown.append("this torch was built without CUDA; install a CUDA build")
        return report
    if torch.cuda.is_initialized():
        report.warnings.append("torch had started CUDA before this check: a CUDA_VISIBLE_DEVICES that was set since"
                               " has no effect; call check() first")
    _devices(torch, report)
    _compare(report)
    if device is not None:
        _compare_own(report, _index(device, torch))
    return report


def _devices(torch, report):
    count = torch.cuda.device_count()
    if count == 0:
        report.wrong += _no_device(torch, report)
        return
    try:
        # An old torch counts through the driver alone: only this says whether the cards can be used.
        torch.cuda.init()
    except Exception as error:  # whatever CUDA says, the user has to read it
        report.wrong.append("torch counts %s and CUDA does not start: %s" % (_count(count), _first_line(error)))
        return
    driver = None
    for index in range(torch.cuda.device_count()):
        try:
            properties = torch.cuda.get_device_properties(index)
        except Exception as error:  # a card that was lost, or that refuses a second process
            report.wrong.append("cuda:%d does not answer: %s" % (index, _first_line(error)))
            return
        uuid, pci = _as_given(_uuid(properties), report), _pci(properties)
        # Before CUDA 12 torch has a slice's card in the place of the slice.
        of_card = _slices_given(report) and uuid not in report.given
        if uuid is None or pci is None or of_card:
            driver = _driver_names(report) if driver is None else driver
            named = driver[index] if index < len(driver) else (None, None)
            said = _as_given(named[0], report)
            uuid, pci = said if uuid is None or (of_card and said) else uuid, pci or named[1]
        report.devices.append({"index": index, "name": properties.name, "pci": pci, "uuid": uuid,
                               "memory": properties.total_memory})
    if any(device["uuid"] is None for device in report.devices):
        report.unknown.append("torch %s does not give UUIDs and libcuda could not be asked" % report.torch)


def _no_device(torch, report):
    if report.visible is not None and report.visible.startswith(("GPU-", "MIG-")) and _version(torch) < (2, 0):
        return ["torch %s counts 0 devices because it reads only numbers in CUDA_VISIBLE_DEVICES; update to torch 2,"
                " or ask with --gpu-align=ids=index" % report.torch]
    shown = "unset" if report.visible is None else "'%s'" % report.visible
    return ["torch sees no device (CUDA_VISIBLE_DEVICES is %s); 'gpu-align verify' says why" % shown]


def _compare(report):
    """Rank by rank what was given with what is there."""
    if report.given is None:
        if "GPU_ALIGN_VERSION" in os.environ:
            report.unknown.append("gpu-align was in doubt at launch and gave no list; the job's log says why")
        else:
            report.unknown.append("gpu-align gave no list (GPU_ALIGN_UUIDS is unset); start with srun --gpu-align")
        return
    there = [device["uuid"] for device in report.devices]
    if None in there:
        if report.devices and len(there) != len(report.given) and not _slices_given(report):
            report.wrong.append("gpu-align gave %s and torch sees %s" % (_count(len(report.given)), _count(len(there))))
        return
    if not there or there == report.given:
        return
    if _slices_given(report) and set(there) <= set(report.given):
        return  # a process gets one slice of those that it was given
    if sorted(there) == sorted(report.given):
        report.wrong.append("torch counts the given cards in another order (%s, given %s): CUDA_DEVICE_ORDER or"
                            " CUDA_VISIBLE_DEVICES was changed after launch" % (_short(there), _short(report.given)))
    else:
        report.wrong.append("torch sees %s and gpu-align gave %s: CUDA_VISIBLE_DEVICES was changed after launch to '%s';"
                            " 'gpu-align verify' says by whom" % (_short(there), _short(report.given), report.visible))


def _compare_own(report, index):
    if not 0 <= index < len(report.devices):
        report.wrong.append("this rank is about to use cuda:%d and torch sees %s: invalid device ordinal"
                            % (index, _count(len(report.devices))))
        return
    uuid = report.devices[index]["uuid"]
    if report.own and uuid and uuid != report.own:
        where = [device["index"] for device in report.devices if device["uuid"] == report.own]
        use = "use cuda:%d" % where[0] if where else "it is not visible"
        report.wrong.append("this rank is about to use cuda:%d, which is %s, and its own card is %s: %s"
                            % (index, _short([uuid]), _short([report.own]), use))


def _given():
    listed = os.environ.get("GPU_ALIGN_UUIDS")
    return listed.split(",") if listed else None


def _slices_given(report):
    return any(name.startswith("MIG-") for name in report.given or [])


def _as_given(uuid, report):
    """torch has a slice's UUID without saying that it is one: the list that was given tells.

    Drivers before R470 know no UUIDs of slices: theirs are MIG-GPU-<the card's>/<GI>/<CI>.
    """
    if uuid is None:
        return None
    given, uuid = report.given or [], uuid.lower()
    for name in given:
        if name[4:].lower() == uuid:
            return name
    slices = [name for name in given if name.lower().startswith("mig-gpu-%s/" % uuid)]
    if not slices:
        return "GPU-" + uuid
    if len(slices) > 1:
        report.unknown.append("this driver names a slice by its card only, and %d slices of %s were given: which of them"
                              " this process has cannot be told" % (len(slices), _short(["GPU-" + uuid])))
    return report.own if report.own in slices else slices[0]


def _uuid(properties):
    """From torch 2.3 or so; without its prefix."""
    uuid = getattr(properties, "uuid", None)
    if uuid is None:
        return None
    text = str(uuid)
    return text[4:] if text.startswith(("GPU-", "MIG-")) else text


def _pci(properties):
    """From torch 2.8 or so."""
    parts = [getattr(properties, name, None) for name in ("pci_domain_id", "pci_bus_id", "pci_device_id")]
    return None if None in parts else "%04x:%02x:%02x.0" % tuple(parts)


def _driver_names(report):
    """(UUID, PCI) of CUDA's devices in order, from the driver library that torch has already started."""
    import ctypes
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
        count, device = ctypes.c_int(), ctypes.c_int()
        if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)):
            return []
        names = []
        get_uuid = getattr(cuda, "cuDeviceGetUuid_v2", cuda.cuDeviceGetUuid)
        for index in range(count.value):
            raw, text = (ctypes.c_ubyte * 16)(), ctypes.create_string_buffer(32)
            if cuda.cuDeviceGet(ctypes.byref(device), index) or get_uuid(raw, device):
                return names
            digits = bytes(raw).hex()
            uuid = "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
            pci = None if cuda.cuDeviceGetPCIBusId(text, 32, device) else text.value.decode().lower()
            names.append((uuid, pci))
        return names
    except (OSError, AttributeError) as error:
        report.unknown.append("libcuda.so.1 could not be asked (%s)" % error)
        return []


def _index(device, torch):
    """Of 0, "0", "cuda:0" or torch.device("cuda", 0); "cuda" is the device that torch has made current."""
    index = device if isinstance(device, int) else getattr(device, "index", None)
    if isinstance(index, int):
        return index
    kind, _, number = str(device).rpartition(":")
    if kind in ("", "cuda") and number.isdigit():
        return int(number)
    if str(device) == "cuda":
        return torch.cuda.current_device() if torch.cuda.is_initialized() else 0
    raise ValueError("gpu-align: '%s' is no device of CUDA; write it like 0 or cuda:0" % device)


def _version(torch):
    numbers = []
    for part in torch.__version__.split("+")[0].split(".")[:2]:
        digits = "".join(c for c in part if c.isdigit())
        numbers.append(int(digits or 0))
    return tuple(numbers)


def _count(number):
    return "1 device" if number == 1 else "%d devices" % number


def _short(uuids):
    """Long enough to tell them apart in a log, whatever its encoding."""
    return ",".join(uuid[:8] + "..." + uuid[-4:] for uuid in uuids)


def _first_line(error):
    return (str(error).splitlines() or [type(error).__name__])[0]


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="gpu_align_check", description=__doc__.splitlines()[0], epilog=(
        "exit status: 0 the cards are the ones that were given, 1 they are not, 2 it could not be told"))
    parser.add_argument("--json", action="store_true", help="print one JSON object on standard output")
    parser.add_argument("--device", metavar="N", help="the device that this rank is about to use, like 0 or cuda:0")
    options = parser.parse_args(arguments)
    try:
        report = look(options.device)
    except ValueError as error:
        parser.error(str(error))
    if options.json:
        print(json.dumps(report.as_dict()))
    else:
        print("\n".join(report.lines()))
    return 1 if report.wrong else 2 if report.unknown else 0


if __name__ == "__main__":
    sys.exit(main())

"""How many devices a gres.conf gives a node, so that slurm.conf can say the same."""
import itertools
import re
from collections import Counter


def generated(node_names, minors):
    """The gres.conf of a tidy site: every card by its device file, neighbouring minors as a range."""
    nodes = f"n[1-{len(node_names)}]" if len(node_names) > 1 else node_names[0]
    return "".join(f"NodeName={nodes} Name=gpu File=/dev/nvidia{run}\n" for run in _runs(minors))


def count(text, node_name, cards):
    """The Gres= value of a node: `gpu:8`, `gpu:a100:4,gpu:t4:2,shard:16`, or "" when it has none.

    `cards` is the number of the node's cards: what AutoDetect would find where no File is given.
    """
    total, detects = Counter(), False
    for line in text.splitlines():
        fields = dict(re.findall(r"(\w+)=(\S+)", line.split("#")[0].lower()))
        if node_name not in expand(fields.get("nodename", node_name)):
            continue
        detects = detects or fields.get("autodetect", "off") != "off"
        if "name" in fields and ("file" in fields or "count" in fields):
            kind = ":".join(filter(None, (fields["name"], fields.get("type"))))
            devices = len(expand(fields["file"])) if "file" in fields else 1
            total[kind] += int(fields.get("count", devices))
    if detects and cards and not any(kind.startswith("gpu") for kind in total):
        total["gpu"] = cards
    return ",".join(f"{kind}:{number}" for kind, number in total.items())


def expand(hostlist):
    """`n[1-3],x` → n1, n2, n3, x; leading zeros are kept."""
    names = []
    for word in re.findall(r"(?:\[[^]]*\]|[^,\[])+", hostlist):
        prefix, bracket, rest = word.partition("[")
        if not bracket:
            names.append(word)
            continue
        ranges, _, suffix = rest.partition("]")
        names += [prefix + number + tail for number in _numbers(ranges) for tail in expand(suffix) or [""]]
    return names


def _numbers(ranges):
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        for number in range(int(first), int(last or first) + 1):
            yield str(number).zfill(len(first))


def _runs(numbers):
    """[0, 1, 2, 5] → "[0-2]", "5"."""
    for _, group in itertools.groupby(enumerate(numbers), key=lambda item: item[1] - item[0]):
        run = [number for _, number in group]
        yield f"[{run[0]}-{run[-1]}]" if len(run) > 1 else f"{run[0]}"

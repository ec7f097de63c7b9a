"""What a combination's tasks must be, from the word of Slurm's controller and of the kernel alone."""
import json
import re
from collections import Counter, namedtuple
from pathlib import Path

from . import axes

# `wrong`: sentences; `unverified`: how many tasks gpu-align said that it cannot be sure of; `refused`: Slurm's words.
Verdict = namedtuple("Verdict", "tasks wrong unverified refused", defaults=(0, (), 0, None))

# What differs between two runs of the same launch.
VOLATILE = re.compile(r"SLURM_(JOB_?ID.*|TASK_PID|SRUN_COMM_PORT|STEP_LAUNCHER_PORT|JOB_(START|END)_TIME|HET_JOB_ID.*"
                      r"|JOB_SLUID|STEP_RESV_PORTS|GTIDS_.*|STEP_?ID|.*COMM_PORT.*)|PPID|_")


# What releases say of options that they do not know yet.
REFUSALS = r"(srun|sbatch): error: Invalid --gres-flags specification"


class Node:
    """A node file's cards: rank (place in PCI order), minor and UUID of each."""

    def __init__(self, cards):
        by_bus = sorted(cards, key=lambda card: [int(part, 16) for part in re.split("[:.]", card["pci"])])
        self.uuids = [card["uuid"] for card in by_bus]
        self.minors = [card["minor"] for card in by_bus]

    @classmethod
    def of(cls, gres):
        file = Path(__file__).resolve().parent.parent / f"nodes/{axes.GRES[gres].node}.json"
        return cls(json.loads(file.read_text())["cards"])

    def rank(self, uuid):
        return self.uuids.index(uuid)

    def with_minor(self, minor):
        return self.uuids[self.minors.index(minor)]


class Reading:
    """What Slurm's positions mean: the gres list, or the ranks that the neighbours live by (design rule 2)."""

    def __init__(self, setting):
        self.node = Node.of(setting.gres)
        order = axes.GRES[setting.gres].order
        self.listed = [self.node.with_minor(minor) for minor in order]
        ranks = [self.node.rank(uuid) for uuid in self.listed]
        permuted = ranks != sorted(ranks) and sorted(ranks) == list(range(len(ranks)))
        self.constrained = setting.constrain == "yes"
        self.unverified = permuted and not self.constrained

    def cards(self, positions):
        return [self.node.uuids[p] if self.unverified else self.listed[p] for p in positions]


def judge(setting, result):
    """The verdict on what `play` brought back for one combination."""
    launch = axes.LAUNCHES[result["launch"]]
    if result["status"] == "hung":
        return Verdict(wrong=(f"it did not end: {result['log'].strip()}",))
    if result["status"] != 0 and not result["tasks"]:
        return refused(result)
    if len(result["tasks"]) != launch.tasks:
        return Verdict(wrong=(f"{len(result['tasks'])} of {launch.tasks} tasks spoke: {result['log'].strip()}",))
    if result["words"] is None:
        return Verdict(launch.tasks, tuple(plugin_left_off(result)))
    wrong, unverified = [], 0
    for step in steps(result):
        verdict = judge_step(setting, result, step)
        wrong += verdict.wrong
        unverified += verdict.unverified
    return Verdict(launch.tasks, tuple(wrong), unverified)


def refused(result):
    """Slurm's own refusals are known; a launch that fails with other words is wrong."""
    for line in result["log"].splitlines():
        if re.fullmatch(REFUSALS, line):
            return Verdict(refused=line)
    return Verdict(wrong=(f"it failed: {result['log'].strip()}",))


def plugin_left_off(result):
    """Without the option, and without the plugin at all, the environment is byte for byte the same."""
    # Slurm alone gives a heterogeneous step's tasks now block and now cyclic (2 of 39 tasks, 22.05).
    flickers = "SLURM_DISTRIBUTION" if result["launch"] == "het" else None

    def environments(run):
        tasks = sorted(run["tasks"], key=lambda t: (t["env"].get("SLURM_STEP_ID", ""), int(t["env"]["SLURM_PROCID"])))
        return [{k: v for k, v in task["env"].items() if not VOLATILE.fullmatch(k) and k != flickers}
                for task in tasks]
    if len(result["without"]["tasks"]) != len(result["tasks"]):
        yield f"without the plugin {len(result['without']['tasks'])} tasks spoke: {result['without']['log'].strip()}"
    for ours, slurms in zip(environments(result), environments(result["without"]), strict=False):
        for name in sorted(ours.keys() | slurms.keys()):
            if ours.get(name) != slurms.get(name):
                yield f"without the option {name} is {ours.get(name)!r}, without the plugin {slurms.get(name)!r}"
    if "gpu-align" in result["log"]:
        yield "without the option it spoke"


def steps(result):
    """The tasks of each step on each node, in order of local rank."""
    groups = {}
    for task in result["tasks"]:
        groups.setdefault((task["env"].get("SLURM_STEP_ID", "batch"), task["host"]), []).append(task)
    return [sorted(tasks, key=lambda task: int(task["env"]["SLURM_LOCALID"])) for tasks in groups.values()]


def positions_in(text):
    """"0,3-5" → 0, 3, 4, 5."""
    ends = (part.partition("-") for part in text.split(","))
    return [p for first, _, last in ends for p in range(int(first), int(last or first) + 1)]


def allocation(result, task):
    """The positions that slurmctld gave the task's job on its node, and of these the step's."""
    found = re.search(rf"Nodes={task['host']} .*GRES=\S*\(IDX:([\d,-]+)\)", result["job"])
    job = positions_in(found[1]) if found else []
    if axes.LAUNCHES[result["launch"]].kind in ("batch", "het"):
        return job, job
    step = result["steps"].get(f"{task['env']['SLURM_JOB_ID']}.{task['env']['SLURM_STEP_ID']}")
    return job, positions_in(step) if step else []


def said_of(log, task):
    """The part of the log that speaks of the task's step on its node."""
    step = re.escape("batch" if task["env"].get("SLURM_STEP_ID", "-5") == "-5" else task["env"]["SLURM_STEP_ID"])
    header = re.compile(r"^gpu-align: (\S+) step \d+\.([^:]+): ", re.MULTILINE)
    starts = list(header.finditer(log))
    ends = [match.start() for match in starts[1:]] + [len(log)]
    return "".join(log[match.start():end] for match, end in zip(starts, ends)
                   if match[1] == task["host"] and re.fullmatch(step, match[2]))


def judge_step(setting, result, tasks):
    reading = Reading(setting)
    job, positions = allocation(result, tasks[0])
    if not positions or not set(positions) <= set(job):
        return Verdict(wrong=(f"slurmctld gave the step {positions} of the job's {job}: {result['job']}",))
    log = said_of(result["log"], tasks[0])
    left = [task for task in tasks if "GPU_ALIGN_CARD" not in task["env"]]
    if left:
        return judge_left(setting, result, tasks, left, log)
    held = reading.cards(positions)
    wrong = [f"local rank {local}: {why}" for local, task in enumerate(tasks)
             for why in judge_task(reading, result, held, positions, tasks, local)]
    wrong += judge_log(reading, log, tasks)
    owners = Counter(task["env"]["GPU_ALIGN_CARD"] for task in tasks)
    for group in groups(tasks):
        counts = Counter(task["env"]["GPU_ALIGN_CARD"] for task in group)
        choice = visible(group[0]) if mode(group[0]) != "single" else list(counts)
        if max(counts.values()) - min(counts[card] for card in choice) > 1:
            wrong.append(f"ranks per card: {sorted(counts.values())}")
    shared, said = max(owners.values()) > 1, bool(re.search(r"tasks share \d+ cards?:", log))
    if shared != said:
        wrong.append(f"tasks share a card: {shared}, and the log says so: {said}")
    said = "unverified" in log
    if said != reading.unverified:
        wrong.append(f"the log says unverified: {said}, and it should be {reading.unverified}")
    if "gpu-align" in result["out"]:
        wrong.append(f"it wrote to stdout: {result['out']}")
    return Verdict(wrong=tuple(wrong), unverified=len(tasks) * said)


def judge_left(setting, result, tasks, left, log):
    """Design rule 6 leaves a task alone only where Slurm says nothing and the kernel forbids nothing."""
    wrong = []
    told = any("SLURM_STEP_GPUS" in task["env"] for task in left)
    if setting.constrain == "yes" or result["launch"] != "none" or told:
        wrong.append(f"{len(left)} tasks were left as Slurm made them: {result['log'].strip()}")
    if "stays as Slurm made it" not in log:
        wrong.append("tasks were left alone and the log does not say why")
    if any(task["env"].get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID" for task in tasks):
        wrong.append("CUDA_DEVICE_ORDER was not forced")
    return Verdict(wrong=tuple(wrong), unverified=len(left))


def visible(task):
    return task["env"]["GPU_ALIGN_UUIDS"].split(",")


def mode(task):
    return task["env"]["GPU_ALIGN_MODE"]


def groups(tasks):
    """The tasks that share a set of cards: all of the step unless Slurm binds them."""
    found = {}
    for task in tasks:
        key = frozenset(visible(task)) if mode(task) != "single" else task["host"]
        found.setdefault(key, []).append(task)
    return list(found.values())


def judge_task(reading, result, held, positions, tasks, local):
    task = tasks[local]
    env, seen, node = task["env"], visible(task), reading.node
    cuda = [card["uuid"] for card in task["cuda"]]
    if cuda != seen:
        yield f"CUDA opens {cuda} and GPU_ALIGN_UUIDS is {seen} ({task['cuda_error']})"
    if not set(seen) <= set(held):
        yield f"it sees {seen} and its step holds {held}"
    shut = [uuid for uuid in seen if node.minors[node.rank(uuid)] not in task["open"]]
    if shut:
        yield f"it cannot open {shut}"
    form = r"\d+" if result["words"][1] == "index" else r"GPU-[0-9a-f-]{36}"
    if not all(re.fullmatch(form, entry) for entry in env["CUDA_VISIBLE_DEVICES"].split(",")):
        yield f"CUDA_VISIBLE_DEVICES is {env['CUDA_VISIBLE_DEVICES']}"
    if env["GPU_ALIGN_CARD"] not in seen:
        yield f"its own card {env['GPU_ALIGN_CARD']} is not among {seen}"
    launch = axes.LAUNCHES[result["launch"]]
    given, turn, of = held, local, len(tasks)
    if launch.per_task or result["launch"] == "closest":
        bound = [bound_to(reading, result, positions, other) for other in tasks]
        peers = [other for other, cards in enumerate(bound) if set(cards) == set(bound[local])]
        given, turn, of = bound[local], peers.index(local), len(peers)
    promised = laid_out(result, reading, given, turn, of)
    if (seen, env["GPU_ALIGN_CARD"]) != promised:
        yield f"it sees {seen} with its own {env['GPU_ALIGN_CARD']}; promised were {promised[0]} with {promised[1]}"


def bound_to(reading, result, positions, task):
    """The cards that Slurm gave a task: what the kernel opens, or else what the task's own variable means."""
    if len(positions) == 1:
        return reading.cards(positions)
    if "sharing" in result["launch"]:
        places = [int(n) for n in task["env"]["SLURM_STEP_GPUS"].split(",")]
        return reading.cards(positions[place] for place in places)
    if reading.constrained:
        return [uuid for uuid in reading.node.uuids
                if uuid in reading.listed and reading.node.minors[reading.node.rank(uuid)] in task["open"]]
    return reading.cards(int(n) for n in task["env"]["SLURM_STEP_GPUS"].split(","))


def laid_out(result, reading, held, local, tasks):
    """What a mode promises to one of the tasks that hold the same cards: (visible, own)."""
    words = result["words"][0]
    by_position = reading.node.uuids if reading.unverified else reading.listed
    cards = sorted(held, key=by_position.index if words == "order=slurm" else reading.node.rank)
    if words == "map":
        first = [cards[place] for place in axes.places(result["launch"])]
        cards = first + [card for card in cards if card not in first]
    many = len(cards)
    if words == "single":
        first, last = -(-local * many // tasks), -(-(local + 1) * many // tasks)
        own = cards[first:last] if tasks < many else [cards[local * many // tasks]]
        return own, own[0]
    if words == "rotate":
        first = local if tasks <= many else local * many // tasks
        return cards[first:] + cards[:first], cards[first]
    return cards, cards[local % many]


def judge_log(reading, log, tasks):
    """The block lists each task's own card at its cuda index, by nvidia-smi's number and by UUID."""
    rows = re.findall(r"^gpu-align: +(\d+) +\d+ +(\d+) +(\d+) +\S+ +\S+ +(GPU-\S+)", log, re.MULTILINE)
    said = {(int(rank), int(cuda)): (int(card), uuid) for rank, cuda, card, uuid in rows}
    for task in tasks:
        env, seen = task["env"], visible(task)
        rank = int(env["SLURM_PROCID"])
        own = seen.index(env["GPU_ALIGN_CARD"])
        shown = range(len(seen)) if mode(task) in ("single", "bound") else [own]
        for index in shown:
            expected = (reading.node.rank(seen[index]), seen[index])
            if said.get((rank, index)) != expected:
                yield f"rank {rank}: the log says {said.get((rank, index))} at cuda:{index}; CUDA opens {expected}"

"""What the live tests share: launches, and what each task really holds.

A task proves its card by reach (which /dev/nvidiaN the kernel lets it open), not by its
environment.
"""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
NODE = json.loads(Path("/proc/driver/nvidia-sim/node.json").read_text())
UUID_OF_MINOR = {card["minor"]: card["uuid"] for card in NODE["cards"]}

# What a task says of itself, as JSON in a file of the folder that is its argument: together the
# tasks say more than a pipe takes in one piece.
WITNESS = [sys.executable, "-c", """
import json, os, re, sys
minors = [int(m[1]) for n in os.listdir("/dev") if (m := re.fullmatch(r"nvidia(\\d+)", n))]
opens = sorted(m for m in minors if os.access(f"/dev/nvidia{m}", os.R_OK | os.W_OK))
with open(sys.argv[1] + "/" + os.environ["SLURM_PROCID"], "w") as file:
    json.dump({"opens": opens, "env": dict(os.environ)}, file)
"""]


class Task:
    """One task's testimony."""

    def __init__(self, said):
        self.env = said["env"]
        self.local = int(self.env["SLURM_LOCALID"])
        self.rank = int(self.env["SLURM_PROCID"])
        self.opens = {UUID_OF_MINOR[minor] for minor in said["opens"]}

    @property
    def visible(self):
        return self.env["CUDA_VISIBLE_DEVICES"].split(",")

    @property
    def own(self):
        return self.env["GPU_ALIGN_CARD"]

    @property
    def index(self):
        """Where the own card is in CUDA's order."""
        return self.env["GPU_ALIGN_UUIDS"].split(",").index(self.own)


def run(*command, env=None, **options):
    """Runs a command to its end; returns status, stdout and stderr."""
    done = subprocess.run([str(c) for c in command], env={**os.environ, **(env or {})}, text=True,
                          stdin=subprocess.DEVNULL, capture_output=True, timeout=120, **options)
    # srun's own words on waiting for the step before are nobody's business here.
    done.stderr = re.sub(r"(?m)^srun: job \d+ (queued and waiting for|has been allocated) resources\n", "", done.stderr)
    return done


def srun(*arguments, env=None):
    """Launches the witness; returns its tasks by rank, and what srun said on stderr."""
    with open_folder() as folder:
        done = run("srun", *arguments, *WITNESS, folder, env=env)
        if done.returncode:
            raise AssertionError(f"srun {' '.join(arguments)} answered {done.returncode}: {done.stderr}")
        return testimony(folder), done.stderr


def open_folder():
    """A temporary folder that every user may write to."""
    folder = tempfile.TemporaryDirectory()
    os.chmod(folder.name, 0o777)
    return folder


def testimony(folder):
    """The tasks that spoke into a folder, a file each, by rank."""
    tasks = [Task(json.loads(file.read_text())) for file in Path(folder).glob("[0-9]*")]
    return sorted(tasks, key=lambda task: task.rank)


def wait_for(condition, what, seconds=20):
    """Waits until a condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not happen within {seconds} s")
        time.sleep(0.02)


class Held:
    """Another job that holds `count` cards, so that positions do not start at 0."""

    def __init__(self, count):
        self.job = subprocess.Popen(["srun", "-n1", f"--gres=gpu:{count}", "sleep", "1000"],
                                    env={**os.environ, "SLURM_GPU_ALIGN": "off"},
                                    stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for(lambda: run("squeue", "-h", "-t", "R", "-o", "%A").stdout.strip(), "the other job's start")

    def end(self):
        self.job.terminate()
        self.job.wait()


def table(stderr):
    """The rows of the log block: (rank, local, cuda, card, uuid) as text."""
    rows = []
    for line in stderr.splitlines():
        cells = line.split()
        if len(cells) > 7 and cells[0] == "gpu-align:" and cells[3].isdigit() and cells[4].isdigit():
            rows.append((cells[1], cells[2], cells[3], cells[4], cells[7]))
    return rows


def notes(stderr):
    """Everything that gpu-align said apart from the table."""
    said = [line for line in stderr.splitlines() if line.startswith("gpu-align:")]
    return [line for line in said if " step " not in line and "rank local" not in line
            and len(table(line)) == 0]


class Installed:
    """The built program as /usr/bin/gpu-align, in this cluster's eyes only."""

    def __init__(self):
        self.layer = Path(tempfile.mkdtemp(dir="/run"))
        for name in ("upper", "work"):
            (self.layer / name).mkdir()
        shutil.copy(ROOT / "target/release/gpu-align", self.layer / "upper/gpu-align")
        layers = f"lowerdir=/usr/bin,upperdir={self.layer}/upper,workdir={self.layer}/work"
        subprocess.run(["mount", "-t", "overlay", "overlay", "-o", layers, "/usr/bin"], check=True)

    def end(self):
        subprocess.run(["umount", "-l", "/usr/bin"], check=True)


class NodeFile:
    """The simulated node after a change, in the stand-ins' eyes; /proc and /dev stay as they are."""

    PATH = Path("/proc/driver/nvidia-sim/node.json")

    def __init__(self, change):
        self.before = self.PATH.read_text()
        node = json.loads(self.before)
        change(node)
        self.after = json.dumps(node)

    def __enter__(self):
        self.PATH.write_text(self.after)

    def __exit__(self, *_):
        self.PATH.write_text(self.before)


def configure(*lines):
    """Gives slurm.conf these lines, in place of the ones given before."""
    def idle():
        return run("sinfo", "-h", "-o", "%T").stdout.strip() == "idle"

    path = Path(os.environ["SLURM_CONF"])
    own = path.read_text().partition("# Of the test:\n")[0]
    # A job that is completing while slurmd reads its configuration again can stay so.
    wait_for(idle, "the end of all jobs")
    path.write_text(own + "# Of the test:\n" + "".join(f"{line}\n" for line in lines))
    subprocess.run(["scontrol", "reconfigure"], check=True)
    wait_for(idle, "the node's return")


def drained():
    return "drain" in run("sinfo", "-h", "-o", "%T").stdout

"""contrib/cluster keeps its promises: run as root with `python3 tests/test_cluster.py [-v] [TEST…]`."""
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
REPOSITORY = Path(__file__).resolve().parents[1]
CLUSTER = REPOSITORY / "contrib/cluster"
sys.path.insert(0, str(CLUSTER.parent))

from simulator import gres  # noqa: E402 (after the path to it)

# What a task can open: a simulated device that the cgroup allows has no card behind it and says ENXIO.
REACH = """
import errno, os
def reachable(minor):
    try:
        os.open(f"/dev/nvidia{minor}", os.O_RDWR)
    except OSError as error:
        return error.errno == errno.ENXIO
print(os.environ.get("SLURM_PROCID", "-"), *filter(reachable, range(8)))
"""


def cluster(*arguments, plugin=("--no-plugin",), **options):
    """Run contrib/cluster to its end."""
    return subprocess.run([CLUSTER, *plugin, *arguments], capture_output=True, text=True, timeout=300, **options)


def start(*arguments):
    """Start contrib/cluster with pipes, its standard input open."""
    return subprocess.Popen([CLUSTER, "--no-plugin", *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True)


def traces(launcher):
    """What a cluster could leave on this machine: mounts, files, and the cgroups of this launcher."""
    mounts = [line for line in Path("/proc/mounts").read_text().splitlines() if "gpu-align-cluster" in line]
    files = [path for path in (Path("/run/gpu-align-cluster"), *CLUSTER.parent.rglob("__pycache__")) if path.exists()]
    return mounts + files + list(Path("/sys/fs/cgroup").glob(f"*/gpu-align-cluster-{launcher}"))


def keeper_of(process):
    """The first process of the cluster's namespace, among the launcher's children."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return next(int(pid) for pid in children if os.readlink(f"/proc/{pid}/ns/pid") != os.readlink("/proc/self/ns/pid"))


def end(pid):
    """Kill a process that may be gone."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def processes_in(namespace):
    """The processes whose PID namespace this is."""
    found = []
    for path in Path("/proc").glob("[0-9]*/ns/pid"):
        try:
            found += [path] if os.readlink(path) == namespace else []
        except OSError:  # the process ended meanwhile
            continue
    return found


class Status(unittest.TestCase):
    def test_is_that_of_the_command(self):
        self.assertEqual(cluster("--", "sh", "-c", "exit 7").returncode, 7)

    def test_tells_the_signal_that_killed_the_command(self):
        self.assertEqual(cluster("--", "sh", "-c", "kill -9 $$").returncode, 128 + 9)

    def test_tells_what_is_wrong_in_one_sentence(self):
        for arguments, plugin, words in (
                (["--user", "nobody-at-all", "true"], ["--no-plugin"], "user nobody-at-all does not exist"),
                (["--gres", "/nowhere", "true"], ["--no-plugin"], "/nowhere is no file"),
                (["--nodes", "0", "true"], ["--no-plugin"], "--nodes 0 makes no cluster"),
                ([], ["--no-plugin"], "no command was given"),
                (["--", "no-such-program"], ["--no-plugin"], "no-such-program did not start"),
                (["--", "true"], [], "/nowhere.so is not built: run `make`")):
            with self.subTest(words):
                result = cluster(*arguments, plugin=plugin, env={**os.environ, "GPU_ALIGN_PLUGIN": "/nowhere.so"})
                self.assertEqual(result.returncode, 125)
                self.assertIn(words, result.stderr)
                self.assertEqual(result.stderr.count("\n"), 1)

    def test_asks_for_root(self):
        result = cluster("--", "true", user="nobody")
        self.assertEqual(result.returncode, 125)
        self.assertIn("need root", result.stderr)

    def test_shows_the_last_words_of_a_daemon_that_does_not_start(self):
        result = cluster("--conf", "Nonsense=1", "--", "true")
        self.assertEqual(result.returncode, 125)
        self.assertIn("slurmctld ended with status 1", result.stderr)
        self.assertIn("Nonsense", result.stderr)

class Cards(unittest.TestCase):
    def reach(self, *arguments, srun):
        result = cluster(*arguments, "--", "srun", *srun, "python3", "-c", REACH)
        self.assertEqual((result.returncode, result.stderr), (0, ""), arguments)
        return sorted(result.stdout.splitlines())

    def test_of_others_are_out_of_reach(self):
        self.assertEqual(self.reach(srun=["--gres=gpu:3"]), ["0 0 1 2"])

    def test_are_all_in_reach_where_nothing_constrains(self):
        self.assertEqual(self.reach("--constrain", "no", srun=["--gres=gpu:3"]), ["0 0 1 2 3 4 5 6 7"])

    def test_are_bound_per_task(self):
        self.assertEqual(self.reach(srun=["-n3", "--gres=gpu:3", "--gpu-bind=map_gpu:2,0,1"]), ["0 2", "1 0", "2 1"])

    def test_follow_another_gres_conf(self):
        with tempfile.NamedTemporaryFile("w") as conf:
            conf.write("".join(f"NodeName=n1 Name=gpu File=/dev/nvidia{minor}\n" for minor in range(7, -1, -1)))
            conf.flush()
            self.assertEqual(self.reach("--gres", conf.name, srun=["--gres=gpu:2"]), ["0 6 7"])

    def test_are_found_by_slurm_itself(self):
        with tempfile.NamedTemporaryFile("w") as conf:
            conf.write("AutoDetect=nvidia\nName=gpu\n")
            conf.flush()
            for release in ("24.11", "26.05"):  # the first core is near cards 0000:01 and 0000:21, minors 4 and 5
                with self.subTest(release):
                    self.assertEqual(self.reach("--slurm", release, "--gres", conf.name, srun=["--gres=gpu:2"]),
                                     ["0 4 5"])

    def test_of_every_shipped_node_reach_slurm(self):
        for path in (REPOSITORY / "tests/nodes").glob("*.json"):
            with self.subTest(path.name):
                cards = len(json.loads(path.read_text())["cards"])
                result = cluster("--node", path, "--", "sinfo", "-h", "-o", "%G")
                self.assertEqual(result.stdout, f"gpu:{cards}\n" if cards else "(null)\n")


class Node(unittest.TestCase):
    def test_shows_the_driver_the_buses_and_the_slices(self):
        with tempfile.NamedTemporaryFile("w") as file:
            json.dump({"driver": "580.1", "links": {"/dev/gpuA0": "nvidia3"}, "kept": "for the stand-ins", "cards": [
                {"pci": "0000:21:00.0", "minor": 3, "uuid": "GPU-3", "model": "NVIDIA X", "numa": 1,
                 "slices": [{"uuid": "MIG-1", "gi": 2, "ci": 0, "profile": "1g.5gb", "cap_minors": [21, 22]}]}]}, file)
            file.flush()
            result = cluster("--node", file.name, "--", "sh", "-c", """
                cat /proc/driver/nvidia/gpus/0000:21:00.0/information
                cat /sys/bus/pci/devices/0000:21:00.0/local_cpulist
                head -n1 /proc/driver/nvidia/capabilities/gpu3/mig/gi2/access
                head -n1 /proc/driver/nvidia/capabilities/gpu3/mig/gi2/ci0/access
                ls /dev/nvidia*; readlink /dev/gpuA0; grep -c kept /proc/driver/nvidia-sim/node.json
                cat /sys/devices/system/node/node1/distance""")
        self.assertEqual(result.stderr, "")
        self.assertEqual(result.stdout.split("\n", 4)[4].replace("\t", " ").split("Bus Location:")[1].split(),
                         """0000:21:00.0 Device Minor: 3 GPU Excluded: No 8-15 DeviceFileMinor: 21 DeviceFileMinor: 22
                         /dev/nvidia-uvm /dev/nvidia3 /dev/nvidiactl
                         /dev/nvidia-caps: nvidia-cap21 nvidia-cap22
                         nvidia3 1 32 10""".split())


class Steps(unittest.TestCase):
    def test_span_nodes(self):
        result = cluster("--nodes", "2", "--", "srun", "-N2", "sh", "-c", "echo $SLURMD_NODENAME")
        self.assertEqual(sorted(result.stdout.split()), ["n1", "n2"])

    def test_run_as_another_user_in_the_current_folder(self):
        for release in ("system", "24.11"):
            with self.subTest(release):
                result = cluster("--slurm", release, "--user", "nobody", "--", "srun", "sh", "-c", "id -un; pwd",
                                 cwd=REPOSITORY / "contrib")
                self.assertEqual(result.stdout.split(), ["nobody", str(REPOSITORY / "contrib")])

    def test_run_on_other_releases(self):
        for release in ("24.11", "26.05"):
            with self.subTest(release):
                result = cluster("--slurm", release, "--", "sh", "-c", f"srun --version; ls -d {REPOSITORY}/contrib")
                self.assertEqual(result.stdout.split()[1][:5], release)
                self.assertEqual(result.stdout.split()[2], f"{REPOSITORY}/contrib")

    def test_do_not_run_on_another_release_than_was_asked_for(self):
        self.assertEqual(cluster("--slurm", "24.11", "--", "true").returncode, 0)  # its chroot is there from here on
        with tempfile.TemporaryDirectory() as cache:
            for suite, holds in (("forky", "trixie"), ("trixie", "trixie")):
                Path(cache, suite).symlink_to(f"/var/cache/gpu-align/{holds}")
            other = cluster("--slurm", "26.05", "--cache", cache, "--", "true")
            self.assertEqual((other.returncode, other.stderr.count("\n")), (125, 1), other.stderr)
            self.assertRegex(other.stderr, r"--slurm 26.05 is Debian forky, and .* holds slurm-wlm 24\.11\.")
            for asked in ("24.11", "forky"):  # what is there, or whatever is there
                same = cluster("--slurm", asked, "--cache", cache, "--", "true")
                self.assertEqual((same.returncode, same.stderr), (0, ""), asked)

    def test_start_fast(self):
        begin = time.monotonic()
        cluster("--", "sh", "-c", "for i in 1 2 3 4 5; do srun true; done")
        self.assertLess(time.monotonic() - begin, 8)


class End(unittest.TestCase):
    def running(self, *arguments):
        """A cluster in the middle of a step, with its PID namespace."""
        process = start(*arguments, "--", "srun", "--gres=gpu:8", "sh", "-c",
                        "sleep 300 & echo $SLURM_JOB_ID; sleep 300")
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        self.assertEqual(process.stdout.readline(), "1\n")
        keeper = keeper_of(process)
        namespace = os.readlink(f"/proc/{keeper}/ns/pid")
        self.addCleanup(end, keeper)
        return process, namespace

    def assert_gone(self, process, namespace, patience=5.0):
        deadline = time.monotonic() + patience
        while processes_in(namespace) or traces(process.pid):
            self.assertLess(time.monotonic(), deadline, (processes_in(namespace), traces(process.pid)))
            time.sleep(0.05)

    def test_by_a_signal_leaves_nothing(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            with self.subTest(number.name):
                process, namespace = self.running()
                process.send_signal(number)
                self.assertEqual(process.wait(10), 128 + number)
                self.assertEqual((processes_in(namespace), traces(process.pid)), ([], []))

    def test_of_a_killed_launcher_leaves_nothing(self):
        process, namespace = self.running()
        process.kill()
        self.assert_gone(process, namespace)

    def test_of_a_killed_first_process_leaves_nothing(self):
        process, namespace = self.running("--slurm", "24.11")
        os.kill(keeper_of(process), signal.SIGKILL)
        self.assertEqual(process.wait(10), 128 + signal.SIGKILL)
        self.assert_gone(process, namespace)

    def test_of_both_at_once_leaves_nothing(self):
        process, namespace = self.running()
        keeper = keeper_of(process)
        os.kill(process.pid, signal.SIGKILL)
        os.kill(keeper, signal.SIGKILL)
        self.assert_gone(process, namespace)

    def test_of_a_daemon_is_reported(self):
        result = cluster("--", "sh", "-c", "kill -9 $(cat /run/gpu-align-cluster/pid/slurmctld); sleep 30")
        self.assertEqual(result.returncode, 125)
        self.assertIn("slurmctld was ended by signal 9", result.stderr)

    def test_of_one_cluster_leaves_the_other_alone(self):
        first, _ = self.running()
        second, namespace = self.running()
        first.send_signal(signal.SIGTERM)
        first.wait(10)
        self.assertIsNone(second.poll())
        self.assertTrue(processes_in(namespace))
        second.send_signal(signal.SIGTERM)
        second.wait(10)
        self.assert_gone(second, namespace)


class GresConf(unittest.TestCase):
    def test_counts_devices_per_type(self):
        for text, value in (
                ("Name=gpu File=/dev/nvidia[0-3,7]", "gpu:5"),
                ("NodeName=n2 Name=gpu File=/dev/nvidia0\nNodeName=n[1,3] name=gpu file=/dev/nvidia1 # one", "gpu:1"),
                ("Name=gpu Type=a100 File=/dev/nvidia[0-1]\nName=gpu Type=t4 File=/dev/nvidia2", "gpu:a100:2,gpu:t4:1"),
                ("Name=gpu File=/dev/nvidia0\nName=shard Count=8", "gpu:1,shard:8"),
                ("AutoDetect=nvidia\nName=gpu", "gpu:6"),
                ("AutoDetect=off\nName=gpu File=/dev/gpuA[08-11]", "gpu:4"),
                ("", "")):
            with self.subTest(text):
                self.assertEqual(gres.count(text, "n1", 6), value)


if __name__ == "__main__":
    unittest.main()

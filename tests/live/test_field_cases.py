"""The field cases in which Slurm or the kernel takes part, each on the node that it was met on.

The numbers are those of tests/cases, which holds the same cases, and many more, as data.
"""
# cluster Permuted: --node tests/nodes/inv8p.json
# cluster PermutedUnconstrained: --node tests/nodes/inv8p.json --constrain no
# cluster Renamed: --node tests/nodes/renamed4.json --gres tests/live/renamed4.gres.conf
# cluster RenamedUnconstrained: --node tests/nodes/renamed4.json --gres tests/live/renamed4.gres.conf --constrain no
# cluster Tidy: --node tests/nodes/tidy8.json
# cluster TidyUnconstrained: --node tests/nodes/tidy8.json --constrain no
# cluster WithoutCards: --node tests/nodes/tidy4.json --constrain no
# cluster WithoutCards: --slurm 24.11 --node tests/nodes/tidy4.json --constrain no
# cluster WithoutCards: --slurm 26.05 --node tests/nodes/tidy4.json --constrain no
# cluster TaskSharing: --slurm 26.05 --node tests/nodes/tidy8.json --constrain no
# cluster CardLost: --node tests/nodes/tidy8.json
# cluster CardLostUnconstrained: --node tests/nodes/tidy8.json --constrain no
# cluster SlowNvml: --node tests/nodes/slow_nvml4.json
# cluster NoDriver: --node tests/nodes/none.json
# cluster TwoNodes: --nodes 2 --node tests/nodes/tidy4.json
import json
import re
import shutil
import subprocess
import time
import unittest
from contextlib import contextmanager
from pathlib import Path

from harness import NODE, ROOT, Held, notes, open_folder, run, srun, table

CARD = [card["uuid"] for card in sorted(NODE["cards"], key=lambda card: card["pci"])]
PROBE = ROOT / "target/release/cuda-probe"


@contextmanager
def held(count):
    """Another job holds the first `count` positions."""
    other = Held(count)
    try:
        yield
    finally:
        other.end()


def probed(*arguments, view=(), env=None):
    """What CUDA opens in each task: [{cuda, env, open}, …] by local rank, and the log."""
    done = run("srun", *arguments, *view, PROBE, env=env)
    if done.returncode:
        raise AssertionError(f"srun answered {done.returncode}: {done.stderr}")
    said = [json.loads(line) for line in done.stdout.splitlines()]
    return sorted(said, key=lambda task: int(task["env"]["SLURM_LOCALID"])), done.stderr


def cuda(task):
    return [device["uuid"] for device in task["cuda"]]


class Permuted(unittest.TestCase):
    """Minors 4, 5, 6, 7, 2, 3, 0, 1 in PCI order; constrained."""

    def test_fc_01_minor_and_index_differ(self):
        for words, visible in (("", CARD[6]), ("=ids=index", "0")):
            tasks, log = probed("-n1", "--gres=gpu:1", f"--gpu-align{words}")
            self.assertEqual(tasks[0]["env"]["SLURM_STEP_GPUS"], "0")
            self.assertEqual(tasks[0]["open"], [0])
            self.assertEqual(tasks[0]["env"]["CUDA_VISIBLE_DEVICES"], visible)
            self.assertEqual(cuda(tasks[0]), [CARD[6]])
            self.assertEqual(table(log), [("0", "0", "0", "6", CARD[6])])

    def test_fc_07_the_same_number_in_every_bound_task(self):
        with held(2):
            tasks, log = probed("-n2", "--gpus-per-task=1", "--gpu-align")
        self.assertEqual([task["open"] for task in tasks], [[2], [3]])
        self.assertEqual({task["env"]["SLURM_STEP_GPUS"] for task in tasks}, {"2"}, "Slurm no longer lies")
        self.assertEqual([cuda(task) for task in tasks], [[CARD[4]], [CARD[5]]])
        self.assertEqual([row[4] for row in table(log)], [CARD[4], CARD[5]])
        self.assertNotIn("share", log)

    def test_fc_46_a_step_without_gres_is_silent(self):
        for gres in ((), ("--gres=none",)):
            tasks, log = srun("-n2", *gres, "--gpu-align")
            self.assertEqual(log, "")
            for task in tasks:
                self.assertFalse([name for name in task.env if name.startswith(("CUDA_", "GPU_ALIGN_"))])


class PermutedUnconstrained(unittest.TestCase):
    def test_fc_02_two_jobs_do_not_meet(self):
        with held(6):
            theirs, log = probed("-n1", "--gres=gpu:1", "env", "CUDA_DEVICE_ORDER=PCI_BUS_ID")
        self.assertEqual(theirs[0]["env"]["CUDA_VISIBLE_DEVICES"], "6")
        self.assertEqual((cuda(theirs[0]), log), ([CARD[6]], ""))
        ours, log = probed("-n1", "--gres=gpu:1", "--gpu-align")
        self.assertEqual(ours[0]["env"]["SLURM_STEP_GPUS"], "0")
        # By its file position 0 is card 6, where the other job is.
        self.assertEqual(cuda(ours[0]), [CARD[0]])
        self.assertIn("unverified: this node does not constrain devices", log)

    def test_fc_38_unverified_does_not_hide_the_warning_of_a_container(self):
        _, log = srun("-n2", "--gres=gpu:2", "--gpu-align=ids=index", env={"NVIDIA_VISIBLE_DEVICES": "0,1"})
        self.assertEqual(log.count("unverified: this node does not constrain devices"), 1, log)
        self.assertEqual(log.count("counts those from 0: ask with ids=uuid"), 1, log)


class Renamed(unittest.TestCase):
    """gpuA0 → nvidia3, gpuA1 → nvidia1, gpuA2 → nvidia0, gpuA3 → nvidia2."""

    def test_fc_14_digits_of_a_link_are_not_the_minor(self):
        tasks, log = probed("-n1", "--gres=gpu:1", "--gpu-align")
        self.assertEqual((tasks[0]["env"]["SLURM_STEP_GPUS"], tasks[0]["open"]), ("0", [3]))
        self.assertEqual(cuda(tasks[0]), [CARD[3]])
        self.assertEqual(table(log), [("0", "0", "0", "3", CARD[3])])
        tasks, _ = probed("-n4", "--gres=gpu:4", "--gpu-align=single,order=slurm")
        self.assertEqual([cuda(task) for task in tasks], [[CARD[3]], [CARD[1]], [CARD[0]], [CARD[2]]])


class RenamedUnconstrained(unittest.TestCase):
    def test_fc_14_the_neighbours_reading_is_followed_and_said(self):
        tasks, log = probed("-n1", "--gres=gpu:1", "--gpu-align")
        self.assertEqual(cuda(tasks[0]), [CARD[0]])
        self.assertIn("unverified", log)


# A container that offers cards 4 to 7 only: a /dev of its own, where the probe then runs.
CONTAINER = ["unshare", "-m", "sh", "-c",
             "mount -t tmpfs none /dev && for n in 4 5 6 7; do mknod /dev/nvidia$n c 195 $n; done; exec \"$0\""]


class Tidy(unittest.TestCase):
    def test_fc_38_inside_a_container_both_forms_are_right(self):
        for form in "uuid", "index":
            with held(4):
                tasks, _ = probed("-n4", "--gres=gpu:4", f"--gpu-align=ids={form}", view=CONTAINER)
            self.assertEqual([task["open"] for task in tasks], [[4, 5, 6, 7]] * 4)
            self.assertEqual([cuda(task) for task in tasks], [CARD[4:]] * 4)


class TidyUnconstrained(unittest.TestCase):
    def test_fc_38_inside_a_container_the_default_form_is_right(self):
        with held(4):
            tasks, _ = probed("-n4", "--gres=gpu:4", "--gpu-align", view=CONTAINER)
            plain, _ = probed("-n4", "--gres=gpu:4", view=CONTAINER)
        self.assertEqual([task["open"] for task in tasks], [[4, 5, 6, 7]] * 4)
        self.assertEqual([cuda(task) for task in tasks], [CARD[4:]] * 4)
        self.assertEqual([cuda(task) for task in plain], [[]] * 4, "Slurm's own numbers are right in there")

    def test_fc_38_indices_for_a_container_are_warned_of(self):
        warning = "a container that shows only some counts those from 0: ask with ids=uuid"
        wanted = {"NVIDIA_VISIBLE_DEVICES": "4,5,6,7"}
        with held(4):
            for words, env, times in (("ids=index", wanted, 1), ("ids=uuid", wanted, 0), ("ids=index", {}, 0)):
                tasks, log = srun("-n2", "--gres=gpu:4", f"--gpu-align={words}", env=env)
                self.assertEqual(log.count(warning), times, (words, env, log))
                self.assertEqual(len(tasks), 2)
            inside, log = probed("-n1", "--gres=gpu:4", "--gpu-align=ids=index", view=CONTAINER, env=wanted)
            self.assertEqual((cuda(inside[0]), log.count(warning)), ([], 1), "the warning is of what does not happen")
            doctor = run("srun", "-n1", "--gres=gpu:4", "--gpu-align=ids=index,print=off",
                         ROOT / "target/release/gpu-align", "doctor", env=wanted)
        self.assertEqual(doctor.returncode, 1)
        said = " ".join(doctor.stdout.split())
        self.assertIn("NVIDIA_VISIBLE_DEVICES=4,5,6,7 shows cards 4, 5, 6, 7: there CUDA_VISIBLE_DEVICES=4,5,6,7 selects"
                      " no card", said)


class WithoutCards(unittest.TestCase):
    """Steps without cards in a job that holds all four, which every task can open."""

    # Run in the job. Only a real step may be told from the others by what Slurm leaves in its environment.
    SCRIPT = """#!/bin/sh
        step() { echo "== $*"; srun "$@" --gpu-align sh -c 'env | grep -E "^(CUDA_|GPU_ALIGN_)"'; }
        step -n1 --gres=none
        step -n2 --gres=none
        step -n2 --gres=none --export=ALL
        step -n2 --gres=none --gpu-bind=none
        export SLURM_GPUS_ON_NODE=4 SLURM_STEP_GPUS=0,1,2,3 CUDA_VISIBLE_DEVICES=0,1,2,3
        step -n2 --gres=none
        unset SLURM_GPUS_ON_NODE SLURM_STEP_GPUS CUDA_VISIBLE_DEVICES
        step -n2 --gres=gpu:4 --gpu-bind=none
        """

    def check(self, said):
        said = re.sub(r"(?m)^(srun|salloc): .*\n", "", said)
        *without, real = said.split("== ")[1:]
        self.assertEqual(len(without), 5)
        for step in without:
            self.assertEqual(step.count("\n"), 1, step)
        self.assertIn("2 tasks, 4 cards, mode all", real)
        self.assertEqual(real.count(f"CUDA_VISIBLE_DEVICES={','.join(CARD)}"), 2)

    def test_fc_46_are_silent_and_unchanged_though_the_job_holds_them_all(self):
        with open_folder() as folder:
            script, out = Path(folder, "job.sh"), Path(folder, "out")
            script.write_text(self.SCRIPT)
            script.chmod(0o755)
            run("sbatch", "-W", "-n2", "--gres=gpu:4", f"--output={out}", script)
            self.check(out.read_text())
            run("sh", "-c", f"salloc -n2 --gres=gpu:4 {script} >{out} 2>&1")
            self.check(out.read_text())


class TaskSharing(unittest.TestCase):
    def test_fc_24_places_inside_the_step_are_not_taken_for_another_jobs_positions(self):
        binding = ("-n2", "--gpus-per-task=1", "--gres-flags=allow-task-sharing")
        with held(3):
            plain, _ = probed(*binding)
            tasks, log = probed(*binding, "--gpu-align")
        # The step holds positions 3 and 4; Slurm's own numbers are the other job's cards.
        self.assertEqual([task["env"]["CUDA_VISIBLE_DEVICES"] for task in plain], ["0", "1"])
        self.assertEqual([cuda(task) for task in tasks], [[CARD[3]], [CARD[4]]])
        self.assertNotIn("stays as Slurm made it", log)


def lose(rank):
    """The card falls off the bus while slurmd, with its old list, goes on."""
    card = sorted(NODE["cards"], key=lambda card: card["pci"])[rank]
    shutil.rmtree(Path("/proc/driver/nvidia/gpus", card["pci"]))
    Path(f"/dev/nvidia{card['minor']}").unlink()
    card["gone"] = True
    Path("/proc/driver/nvidia-sim/node.json").write_text(json.dumps(NODE))


class CardLost(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        lose(2)

    def test_fc_41_later_numbers_do_not_shift(self):
        with held(5):
            tasks, log = probed("-n1", "--gres=gpu:1", "--gpu-align")
        self.assertEqual((tasks[0]["env"]["SLURM_STEP_GPUS"], tasks[0]["open"]), ("5", [5]))
        self.assertEqual(cuda(tasks[0]), [CARD[5]])
        self.assertEqual([row[4] for row in table(log)], [CARD[5]])

    def test_fc_42_a_lost_card_has_no_substitute(self):
        tasks, log = probed("-n3", "--gres=gpu:3", "--gpu-align")
        for task in tasks:
            self.assertEqual(task["env"]["CUDA_VISIBLE_DEVICES"], "0,1,2")
            self.assertEqual(task["env"]["CUDA_DEVICE_ORDER"], "PCI_BUS_ID")
            self.assertLessEqual(set(cuda(task)), {CARD[0], CARD[1]})
        self.assertEqual(len(notes(log)), 0)
        self.assertIn("CUDA_VISIBLE_DEVICES stays as Slurm made it: Slurm's position 2 names no card", log)


class CardLostUnconstrained(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        lose(2)

    def test_fc_41_later_numbers_do_not_shift(self):
        with held(5):
            tasks, _ = probed("-n1", "--gres=gpu:1", "--gpu-align")
        self.assertEqual(tasks[0]["env"]["SLURM_STEP_GPUS"], "5")
        self.assertEqual(cuda(tasks[0]), [CARD[5]])

    def test_fc_42_the_neighbours_card_is_no_substitute(self):
        # Seven positions, six of them alive, and seven cards that open: one is not this step's.
        _, log = probed("-n1", "--gres=gpu:7", "--gpu-align")
        self.assertEqual(table(log), [])
        self.assertIn("Slurm's position 2 names no card", log)


class SlowNvml(unittest.TestCase):
    def test_fc_45_a_driver_library_that_hangs_delays_nobody(self):
        ask = "import ctypes; ctypes.CDLL('libnvidia-ml.so.1').nvmlInit_v2()"
        with self.assertRaises(subprocess.TimeoutExpired):
            subprocess.run(["/usr/bin/python3", "-c", ask], timeout=1)
        start = time.monotonic()
        tasks, log = probed("-n8", "--gres=gpu:4", "--gpu-align=single")
        self.assertLess(time.monotonic() - start, 5)
        self.assertEqual([cuda(task) for task in tasks], [[CARD[rank // 2]] for rank in range(8)])
        self.assertIn("8 tasks share 4 cards: 2 on each", log)


class NoDriver(unittest.TestCase):
    def test_fc_46_a_node_without_cards_is_silent(self):
        for driver in "without cards", "not loaded":
            tasks, log = srun("-n2", "--gpu-align")
            self.assertEqual(log, "", driver)
            for task in tasks:
                self.assertFalse([name for name in task.env if name.startswith(("CUDA_", "GPU_ALIGN_"))], driver)
            shutil.rmtree("/proc/driver/nvidia", ignore_errors=True)


class TwoNodes(unittest.TestCase):
    def test_fc_50_one_block_a_node_and_no_noise(self):
        aligned = run("srun", "-N2", "-n16", "--gres=gpu:4", "--gpu-align", "echo", "same")
        plain = run("srun", "-N2", "-n16", "--gres=gpu:4", "echo", "same")
        self.assertEqual((aligned.stdout, plain.stdout), ("same\n" * 16, "same\n" * 16))
        self.assertEqual(plain.stderr, "")
        for node in "n1", "n2":
            self.assertEqual(aligned.stderr.count(f"gpu-align: {node} step "), 1)
        self.assertTrue(all(line.startswith("gpu-align: ") for line in aligned.stderr.splitlines()), aligned.stderr)
        self.assertNotIn("error", aligned.stderr)


if __name__ == "__main__":
    unittest.main()

"""FC-41: a card falls off the bus while slurmd runs, and slurmd keeps the list that AutoDetect made at its start.

Positions are minors here: position 2 is the card of rank 4, and those behind it must not shift when it is gone.
"""
# cluster Lost: --slurm 24.11 --node tests/nodes/detect8.json --gres tests/gres/autodetect.conf
# cluster LostUnconstrained: --slurm 24.11 --node tests/nodes/detect8.json --gres tests/gres/autodetect.conf --constrain no
# cluster Named: --slurm 26.05 --node tests/nodes/detect8.json --gres tests/gres/autodetect.conf
import json
import shutil
import unittest
from pathlib import Path

from harness import NODE, ROOT, Installed, NodeFile, configure, run, srun

DRIVER, RECORD = Path("/proc/driver/nvidia"), Path("/run/gpu-align/node.json")
CONF = Path("/run/gpu-align-cluster/etc/gres.conf")
BY_MINOR = {card["minor"]: card["uuid"] for card in NODE["cards"]}
LOST = "0000:81:00.0"


class Without:
    """A part of /proc/driver/nvidia taken away."""

    def __init__(self, *names):
        self.names = names

    def __enter__(self):
        for name in self.names:
            shutil.move(DRIVER / name, DRIVER.parent / Path(name).name)

    def __exit__(self, *_):
        for name in self.names:
            shutil.move(DRIVER.parent / Path(name).name, DRIVER / name)


def setUpModule():
    global installed
    installed = Installed()
    configure(f"Prolog={ROOT}/slurm/prolog.d/*", f"Epilog={ROOT}/slurm/epilog.d/*", "PrologFlags=Alloc")


def tearDownModule():
    installed.end()


def prolog(*arguments, **env):
    return run("gpu-align", "prolog", *arguments, env={"SLURMD_NODENAME": "n1", **env})


def lost_card():
    return NodeFile(lambda node: node["cards"].pop(4))


def record_of_a_job():
    """(position, UUID) of the cards of a job that holds all eight, and the positions that are not known."""
    done = run("srun", "-n1", "--gres=gpu:8", "sh", "-c", "cat /run/gpu-align/jobs/$SLURM_JOB_ID.json")
    if done.returncode:
        raise AssertionError(done.stderr)
    record = json.loads(done.stdout)
    return [(card["position"], card["uuid"]) for card in record["cards"]], record["unknown"]


class Lost(unittest.TestCase):
    def setUp(self):
        RECORD.unlink(missing_ok=True)

    def test_a_jobs_record_names_every_other_card_right(self):
        self.assertEqual(prolog().stderr, "")
        with Without(f"gpus/{LOST}"), lost_card():
            cards, unknown = record_of_a_job()
        self.assertEqual(cards, [(position, BY_MINOR[position]) for position in (0, 1, 3, 4, 5, 6, 7)])
        self.assertEqual(unknown, [2])

    def test_without_a_record_from_before_the_loss_it_names_none(self):
        with Without(f"gpus/{LOST}"), lost_card():
            self.assertEqual(record_of_a_job(), ([], list(range(8))))

    def test_every_prolog_says_it_and_drains_where_the_site_asks(self):
        prolog()
        with Without(f"gpus/{LOST}"), lost_card():
            for _ in range(3):
                done = prolog("--drain")
                self.assertEqual(done.returncode, 1)
                self.assertIn(f"card {LOST} was there earlier in this boot and is gone, 7 cards are left", done.stderr)
                self.assertIn("AutoDetect finds 7 of the 8 GPUs that slurm.conf counts", done.stderr)
            RECORD.unlink()
            done = prolog("--drain=missing")
            self.assertEqual((done.returncode, done.stderr.count("\n")), (1, 1), done.stderr)
        self.assertEqual((prolog("--drain").returncode, json.loads(RECORD.read_text())["gone"]), (0, []))

    def test_a_driver_that_is_not_loaded_is_a_fault_and_the_job_has_a_record(self):
        # With a record and without one: gres.conf and slurm.conf alone tell that cards belong here.
        for before in (prolog, lambda: RECORD.unlink()):
            before()
            with Without("gpus", "version"):
                done = prolog("--drain", SLURM_JOB_ID="4711", SLURM_JOB_GPUS="0,3")
                self.assertEqual(prolog().returncode, 0)
            self.assertEqual(done.returncode, 1)
            self.assertIn("the NVIDIA driver is not loaded", done.stderr)
            record = json.loads(Path("/run/gpu-align/jobs/4711.json").read_text())
            self.assertEqual((record["cards"], record["unknown"]), ([], [0, 3]))

    def test_a_node_where_slurm_counts_no_gpus_is_silent_without_a_driver(self):
        with Without("gpus", "version"):
            done = run("gpu-align", "prolog", "--drain", env={"SLURMD_NODENAME": "cpu1"})
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_a_list_that_cannot_be_read_is_said(self):
        text = CONF.read_text()
        self.addCleanup(CONF.write_text, text)
        job = {"SLURM_JOB_ID": "4712", "SLURM_JOB_GPUS": "5"}
        for broken, node, words in (("Name=gpu oops", "n1", "gres.conf:1: 'oops'"),
                                    ("NodeName=n2 Name=gpu File=/dev/nvidia[0-7]", "n1", "gives node n1 no GPUs")):
            CONF.write_text(broken)
            done = prolog("--drain", **job)
            self.assertEqual(done.returncode, 0)
            self.assertIn(words, done.stderr)
            self.assertIn("Slurm's position 5 may be any card", done.stderr)
            record = json.loads(Path("/run/gpu-align/jobs/4712.json").read_text())
            self.assertEqual((record["cards"], record["unknown"]), ([], [5]))
        done = prolog("--gres-conf=/nowhere/gres.conf")
        self.assertIn("cannot read /nowhere/gres.conf", done.stderr)


class LostUnconstrained(unittest.TestCase):
    def test_a_rank_that_may_be_another_jobs_card_is_a_doubt(self):
        with Without(f"gpus/{LOST}"), lost_card():
            tasks, log = srun("-n1", "--gres=gpu:6", "--gpu-align")
            strict = run("srun", "-n1", "--gres=gpu:6", "--gpu-align=strict", "echo", "ran")
        self.assertEqual(tasks[0].env["CUDA_VISIBLE_DEVICES"], "0,1,2,3,4,5")
        self.assertIn("stays as Slurm made it: AutoDetect finds fewer GPUs than slurm.conf counts", log)
        self.assertNotIn("unverified", log)
        self.assertNotEqual(strict.returncode, 0)
        self.assertEqual(strict.stdout, "")

    def test_it_is_one_to_a_rank_that_another_launcher_started(self):
        rank = ("--gpu-align=off", "gpu-align", "exec", "strict", "--", "echo", "ran")
        with Without(f"gpus/{LOST}"), lost_card():
            done = run("srun", "-n1", "--gres=gpu:6", *rank)
        self.assertIn("stays as it was: AutoDetect finds fewer GPUs than slurm.conf counts", done.stderr)
        self.assertEqual((done.returncode, done.stdout), (1, ""), done.stderr)


class Named(unittest.TestCase):
    """From 25.11 on Slurm itself names the cards in the Prolog."""

    def test_without_a_record_from_before_the_loss_slurms_names_are_enough(self):
        RECORD.unlink(missing_ok=True)
        with Without(f"gpus/{LOST}"), lost_card():
            cards, unknown = record_of_a_job()
        self.assertEqual(sorted(cards), [(None, card["uuid"]) for card in NODE["cards"] if card["pci"] != LOST])
        self.assertEqual(unknown, list(range(8)))


if __name__ == "__main__":
    unittest.main()

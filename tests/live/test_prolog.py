"""Prolog and Epilog as shipped, the record they leave, and what the plugin makes of it.

On this node no card was ever used, so the driver names none of them: the plugin needs the record,
or the helper, for every UUID.
"""
# cluster: --node tests/nodes/unused8.json
# cluster Belief Shipped: --slurm 26.05 --node tests/nodes/unused8.json
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

from harness import ROOT, Installed, NodeFile, configure, drained, open_folder, run, srun, wait_for

UUIDS = [f"GPU-00000000-0008-4000-8000-00000000000{rank}" for rank in range(8)]
RECORD, JOBS = Path("/run/gpu-align/node.json"), Path("/run/gpu-align/jobs")
BOOT = Path("/proc/sys/kernel/random/boot_id").read_text().strip()

SHIPPED = (f"Prolog={ROOT}/slurm/prolog.d/*", f"Epilog={ROOT}/slurm/epilog.d/*", "PrologFlags=Alloc")


def setUpModule():
    global installed
    installed = Installed()
    configure(*SHIPPED)


def tearDownModule():
    installed.end()


def prolog(*arguments, **env):
    return run("gpu-align", "prolog", *arguments, env={"SLURMD_NODENAME": "n1", **env})


def askers():
    """The ids of processes that ask NVML."""
    return run("pgrep", "-f", "gpu-align inventory|ask stock").stdout


def assert_once_within(test, seconds, attempt):
    """An attempt says how long it took. Load on the machine only adds: the quickest of a few counts."""
    took = []
    while not took or min(took) >= seconds and len(took) < 5:
        took.append(attempt())
    test.assertLess(min(took), seconds, took)


class Shipped(unittest.TestCase):
    def test_a_job_leaves_the_nodes_record_and_its_own_while_it_runs(self):
        RECORD.unlink(missing_ok=True)
        done = run("srun", "-n1", "--gres=gpu:2", "sh", "-c", f"cat {JOBS}/$SLURM_JOB_ID.json; echo; stat -c %a:%U {RECORD}")
        self.assertEqual(done.returncode, 0, done.stderr)
        said, mode = done.stdout.splitlines()
        # Positions 0 and 1 are minors 0 and 1, which are cards 6 and 7.
        names = [(c["position"], c["rank"], c["minor"], c["pci"], c["uuid"]) for c in json.loads(said)["cards"]]
        self.assertEqual(names, [(0, 6, 0, "0000:c1:00.0", UUIDS[6]), (1, 7, 1, "0000:e1:00.0", UUIDS[7])])
        self.assertEqual(mode, "644:root")
        self.assertEqual(json.loads(RECORD.read_text())["boot_id"], BOOT)
        wait_for(lambda: not list(JOBS.glob("*.json")), "the removal of the job's record")

    def test_a_record_without_a_folder_lies_in_the_working_one(self):
        with open_folder() as folder:
            done = run("gpu-align", "prolog", "--record=node.json", cwd=folder)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertEqual(json.loads(Path(folder, "node.json").read_text())["boot_id"], BOOT)

    def test_a_lost_card_drains_the_node_only_where_the_site_asks(self):
        with NodeFile(lambda node: node["cards"][2].update(lost=True)):
            done = prolog()
            self.assertEqual((done.returncode, done.stderr.count("\n")), (0, 1), done.stderr)
            self.assertIn("card 0000:41:00.0 is lost", done.stderr)
            self.assertEqual(prolog("--drain").returncode, 1)
            self.assertEqual(prolog("--drain=lost").returncode, 1)
            self.assertEqual(prolog("--drain=mismatch,missing").returncode, 0)

    def test_a_configured_card_that_is_gone_is_missing(self):
        prolog()
        information = Path("/proc/driver/nvidia/gpus/0000:41:00.0/information")
        said = information.read_text()
        information.unlink()
        information.parent.rmdir()
        try:
            with NodeFile(lambda node: node["cards"].pop(2)):
                # Each Prolog leaves a record without it, and the next one says it again.
                prolog()
                done = prolog("--drain=missing")
        finally:
            information.parent.mkdir()
            information.write_text(said)
        self.assertEqual(done.returncode, 1)
        self.assertIn("card 0000:41:00.0 was there earlier in this boot and is gone, 7 cards are left", done.stderr)
        self.assertIn("position 6 of", done.stderr)

    def test_the_deadline_holds_when_nvml_hangs(self):
        def attempt():
            before = time.monotonic()
            with NodeFile(lambda node: node.update(nvml={"sleep_s": 1000})):
                done = prolog("--timeout=1", "--drain=unanswered")
            took = time.monotonic() - before
            self.assertEqual(done.returncode, 1)
            # NVML's share of the deadline, after which all the rest was done.
            self.assertIn("NVML did not answer within 0.6 s", done.stderr)
            self.assertNotIn("prolog was not done", done.stderr)
            self.assertEqual(askers(), "")
            return took
        assert_once_within(self, 1.2, attempt)


class Inventory(unittest.TestCase):
    """Whatever becomes of NVML, the driver's cards are listed with the reason."""

    def check(self, words, **trouble):
        with NodeFile(lambda node: node.update(nvml=trouble)):
            done = run("gpu-align", "inventory", "--timeout=1")
            self.assertEqual((done.returncode, done.stderr), (1, ""))
            self.assertEqual(done.stdout.count("NVIDIA A100"), 8, done.stdout)
            self.assertIn(words, done.stdout)
            stock = json.loads(run("gpu-align", "inventory", "--json", "--timeout=1").stdout)
        self.assertEqual((len(stock["cards"]), words in stock["nvml"]["why"]), (8, True), stock["nvml"])
        self.assertEqual(askers(), "")

    def test_hang(self):
        self.check("NVML did not answer within 1.0 s", sleep_s=1000)

    def test_crash(self):
        self.check("NVML died by signal 6", fault="crash")

    def test_who_ends_it_ends_its_question(self):
        with NodeFile(lambda node: node.update(nvml={"sleep_s": 1000})):
            hung = subprocess.Popen(["gpu-align", "inventory", "--timeout=600"], start_new_session=True)
            wait_for(lambda: run("pgrep", "-f", "ask stock").stdout, "the question")
            os.killpg(hung.pid, signal.SIGKILL)
            hung.wait()
        wait_for(lambda: not askers(), "the question's end")


class Unit(unittest.TestCase):
    def test_the_unit_takes_stock_at_boot(self):
        RECORD.unlink(missing_ok=True)
        with tempfile.TemporaryDirectory() as prefix:
            subprocess.run(["make", "-s", "install", f"PREFIX={prefix}"], cwd=ROOT, check=True)
            unit = Path(prefix, "share/gpu-align/gpu-align.service")
            [line] = re.findall(r"(?m)^ExecStart=(.*)$", unit.read_text())
            done = run(*shlex.split(line), env={"SLURMD_NODENAME": "n1"})
            self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))
            if shutil.which("systemd-analyze"):
                found = run("systemd-analyze", "verify", "--man=no", unit)
                self.assertEqual((found.returncode, found.stdout + found.stderr), (0, ""))
        record = json.loads(RECORD.read_text())
        self.assertEqual((record["boot_id"], [card["uuid"] for card in record["cards"]]), (BOOT, UUIDS))


class Belief(unittest.TestCase):
    """NVML is silent here: a record that is not believed leaves nobody to ask."""

    def setUp(self):
        RECORD.unlink(missing_ok=True)
        self.assertEqual(prolog().stderr, "")
        self.record = json.loads(RECORD.read_text())
        self.silence = NodeFile(lambda node: node.update(nvml={"fault": "unknown"}))
        self.silence.__enter__()
        self.addCleanup(self.silence.__exit__)
        # While NVML is silent, the job's own Prolog leaves the record as it is.

    def launch(self):
        tasks, log = srun("-n2", "--gres=gpu:2", "--gpu-align")
        return [task.env["CUDA_VISIBLE_DEVICES"] for task in tasks], log

    def write(self, **changes):
        RECORD.write_text(json.dumps({**self.record, **changes}))

    def assert_disbelieved(self, why):
        visible, log = self.launch()
        self.assertEqual(visible, ["0,1", "0,1"])
        self.assertEqual(log.count("\n"), 1, log)
        self.assertIn(why, log)
        self.assertIn("NVML does not start", log)
        self.assertIn("let the Prolog run", log)

    def test_today(self):
        visible, log = self.launch()
        self.assertEqual(visible, [f"{UUIDS[6]},{UUIDS[7]}"] * 2)
        self.assertNotIn("record", log)

    def test_another_boot(self):
        self.write(boot_id="0")
        self.assert_disbelieved("it was written before this boot")

    def test_another_driver(self):
        self.write(driver="570.1")
        self.assert_disbelieved("under driver 570.1, and 580.159.04 is loaded")

    def test_a_card_less(self):
        self.write(cards=self.record["cards"][1:])
        self.assert_disbelieved("it lacks card 0000:01:00.0")

    def test_a_card_more(self):
        self.write(cards=self.record["cards"] + [{**self.record["cards"][0], "pci": "0000:f1:00.0"}])
        self.assert_disbelieved("it has card 0000:f1:00.0")

    def test_a_later_version(self):
        RECORD.write_text(json.dumps({"schema": 2, "nodes": {"boot": BOOT}}))
        self.assert_disbelieved("its schema is 2")

    def test_group_writable(self):
        RECORD.chmod(0o664)
        self.assert_disbelieved("others than root may write it (mode 664)")

    def test_owned_by_a_user(self):
        os.chown(RECORD, 65534, 65534)
        self.assert_disbelieved("it is owned by user 65534")

    def test_cut_in_half(self):
        text = RECORD.read_text()
        RECORD.write_text(text[:len(text) // 2])
        self.assert_disbelieved("it is not what gpu-align writes")

    def test_a_symbolic_link(self):
        RECORD.rename(RECORD.with_suffix(".real"))
        RECORD.symlink_to(RECORD.with_suffix(".real"))
        self.assert_disbelieved("it is a symbolic link")

    def test_a_hundred_megabytes_of_zeros(self):
        with open(RECORD, "w") as file:
            file.truncate(100 << 20)
        self.assert_disbelieved("it is larger than")


class Faults(unittest.TestCase):
    """No record and one fault of NVML at a time, with 8 tasks: the job always runs."""

    DEADLINE = 2.0

    @classmethod
    def setUpClass(cls):
        configure()
        cls.addClassCleanup(configure, *SHIPPED)

    def setUp(self):
        RECORD.unlink(missing_ok=True)

    def launch(self, **trouble):
        """What the tasks see, and the log. A launch pays no more for a fault than the deadline."""
        seen = {}

        def attempt():
            before = time.monotonic()
            with NodeFile(lambda node: node.update(nvml=trouble)):
                tasks, log = srun("-n8", "--gres=gpu:8", "--gpu-align")
            delay = time.monotonic() - before
            self.assert_nothing_is_left()
            before = time.monotonic()
            srun("-n8", "--gres=gpu:8", "--gpu-align=off")
            seen["tasks"], seen["log"] = {task.env["CUDA_VISIBLE_DEVICES"] for task in tasks}, log
            return delay - (time.monotonic() - before)
        assert_once_within(self, self.DEADLINE + 0.2, attempt)
        return seen["tasks"], seen["log"]

    def assert_nothing_is_left(self):
        self.assertFalse(drained())
        self.assertEqual(askers(), "")
        self.assertFalse([p for p in Path("/proc").glob("[0-9]*/stat") if " Z " in read(p) and ("gpu-align" in read(p) or "(exe)" in read(p))])

    def assert_left(self, words, **trouble):
        visible, log = self.launch(**trouble)
        self.assertEqual(visible, {"0,1,2,3,4,5,6,7"})
        self.assertEqual(log.count("\n"), 1, log)
        self.assertIn("CUDA_VISIBLE_DEVICES stays as Slurm made it", log)
        self.assertIn(words, log)

    def test_none(self):
        visible, _ = self.launch()
        self.assertEqual(visible, {",".join(UUIDS)})

    def test_driver_not_loaded(self):
        self.assert_left("NVML finds no loaded driver; load it", fault="driver_not_loaded")

    def test_library_mismatch(self):
        self.assert_left("of different versions; reload the driver or reboot", fault="lib_rm_version_mismatch")

    def test_no_permission(self):
        self.assert_left("look at the modes of /dev/nvidia*", fault="no_permission")

    def test_lost(self):
        self.assert_left("a card is lost", fault="gpu_is_lost")

    def test_unknown(self):
        self.assert_left("NVML does not start", fault="unknown")

    def test_absent(self):
        library = Path("/run/gpu-align-cluster/lib/libnvidia-ml.so.1")
        away = library.with_name("away")
        library.rename(away)
        try:
            self.assert_left("NVML cannot be loaded; install the driver's libnvidia-ml.so.1")
        finally:
            away.rename(library)

    def test_crash(self):
        self.assert_left("NVML died by signal 6 when it was asked; reload the driver or reboot", fault="crash")

    def test_garbage(self):
        self.assert_left("ask the admin whether it is lost", fault="garbage")

    def test_hang(self):
        self.assert_left("did not answer within 2 s", sleep_s=1000)

    def test_one_card_lost(self):
        """The others' UUIDs are right, but a step that holds the lost one cannot be aligned."""
        with NodeFile(lambda node: node["cards"][2].update(lost=True)):
            tasks, _ = srun("-n2", "--gres=gpu:2", "--gpu-align")
            self.assertEqual({task.env["CUDA_VISIBLE_DEVICES"] for task in tasks}, {f"{UUIDS[6]},{UUIDS[7]}"})
            tasks, log = srun("-n2", "--gres=gpu:8", "--gpu-align")
            self.assertEqual({task.env["CUDA_VISIBLE_DEVICES"] for task in tasks}, {"0,1,2,3,4,5,6,7"})
            self.assertIn("0000:41:00.0", log)

    def test_a_step_without_gpus_asks_nobody(self):
        helper, real, asked = Path("/usr/bin/gpu-align"), Path("/usr/bin/gpu-align.real"), Path("/run/gpu-align-asked")
        helper.rename(real)
        self.addCleanup(real.rename, helper)
        helper.write_text(f'#!/bin/sh\necho "$*" >> {asked}\nexec {real} "$@"\n')
        helper.chmod(0o755)
        done = run("srun", "-n1", "--gpu-align", "true")
        self.assertEqual((done.returncode, done.stderr, read(asked)), (0, "", ""))
        # A step with GPUs does, once.
        srun("-n8", "--gres=gpu:8", "--gpu-align")
        self.assertEqual(read(asked), "inventory --json\n")


def read(path):
    try:
        return path.read_text()
    except OSError:
        return ""


if __name__ == "__main__":
    unittest.main()

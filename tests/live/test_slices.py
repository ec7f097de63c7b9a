"""MIG: FC-35, four slices on two cards, and FC-06, two slices beside whole cards, in CUDA's eyes."""
# cluster FourSlices: --node tests/nodes/fc35.json --gres tests/gres/fc35.conf
# cluster FourSlices: --slurm 26.05 --node tests/nodes/fc35.json --gres tests/gres/fc35.conf
# cluster Mixed: --node tests/nodes/fc06.json --gres tests/gres/fc06.conf
# cluster MixedUnconstrained: --node tests/nodes/fc06.json --gres tests/gres/fc06.conf --constrain no
import json
import os
import unittest
from pathlib import Path

from harness import NODE, ROOT, Held, Installed, NodeFile, run

RECORD = Path("/run/gpu-align/node.json")
PROBE = ROOT / "target/release/cuda-probe"
CARD = [card["uuid"] for card in NODE["cards"]]
SLICE = [part["uuid"] for card in NODE["cards"] for part in card.get("slices", [])]
ONE_ONLY = "before driver 570 a CUDA process uses the first MIG slice of its list only"


def setUpModule():
    global installed
    installed = Installed()


def tearDownModule():
    installed.end()


def probed(*arguments):
    """Each task's (CUDA_VISIBLE_DEVICES, the UUIDs that CUDA counts), by local rank; and the log."""
    # The last word counts.
    done = run("srun", "--gpu-align", *arguments, PROBE)
    if done.returncode:
        raise AssertionError(f"srun answered {done.returncode}: {done.stderr}")
    tasks = sorted(map(json.loads, done.stdout.splitlines()), key=lambda task: int(task["env"]["SLURM_LOCALID"]))
    return [(task["env"].get("CUDA_VISIBLE_DEVICES"), [d["uuid"] for d in task["cuda"]]) for task in tasks], done.stderr


class BeforeR470:
    """A driver that gives slices the older names; CUDA's own are the same as ever."""

    VERSION = Path("/proc/driver/nvidia/version")

    def __enter__(self):
        self.version = self.VERSION.read_text()
        self.node = NodeFile(lambda node: node.update(driver="460.106.00"))
        self.VERSION.write_text(self.version.replace(NODE["driver"], "460.106.00"))
        self.node.__enter__()

    def __exit__(self, *_):
        self.node.__exit__()
        self.VERSION.write_text(self.version)


class FourSlices(unittest.TestCase):
    def setUp(self):
        RECORD.unlink(missing_ok=True)

    def check(self, names):
        tasks, log = probed("-n4", "--gpus-per-task=1")
        self.assertEqual([visible for visible, _ in tasks], names)
        # In CUDA's eyes too each has its own.
        self.assertEqual([cuda for _, cuda in tasks], [[name] for name in SLICE])
        self.assertIn("A100-SXM4-80GB MIG 2g.20gb", log)
        self.assertNotIn("peer access", log)

    def test_each_task_has_a_slice_of_its_own(self):
        self.check(SLICE)

    def test_by_the_record(self):
        self.assertEqual(run("gpu-align", "prolog").stderr, "")
        with NodeFile(lambda node: node.update(nvml={"sleep_s": 1000})):
            self.check(SLICE)

    def test_in_the_older_spelling(self):
        with BeforeR470():
            self.check([f"MIG-{CARD[0]}/1/0", *(f"MIG-{CARD[1]}/{gi}/0" for gi in (3, 4, 5))])

    def test_one_task_is_told_that_it_may_use_one_only(self):
        for driver, count in (("550.1", 1), ("580.1", 4)):
            with NodeFile(lambda node: node.update(driver=driver)):
                [(visible, cuda)], log = probed("-n1", "--gres=gpu:4")
            self.assertEqual((visible, cuda), (",".join(SLICE), SLICE[:count]))
            self.assertIn(ONE_ONLY, log)

    def test_fc_30_two_names_are_one_device_to_an_older_driver(self):
        names = f"CUDA_VISIBLE_DEVICES={SLICE[0]},{SLICE[1]}"
        with NodeFile(lambda node: node.update(driver="550.1")):
            done = run("srun", "-n1", "--gres=gpu:4", "--gpu-align=off", "env", names, "gpu-align", "verify", "--json")
        said = {check["name"]: (check["state"], check["says"]) for check in json.loads(done.stdout)["checks"]}
        self.assertEqual(done.returncode, 0, said)
        self.assertEqual((said["cuda"][0], said["cuda"][1].count("cuda:")), ("fine", 1))
        self.assertIn("of the 2 that the list names CUDA gives a process no more slices than this", said["cuda"][1])

    def test_single_splits_them_and_says_nothing(self):
        tasks, log = probed("-n4", "--gres=gpu:4", "--gpu-align=single")
        self.assertEqual([cuda for _, cuda in tasks], [[name] for name in SLICE])
        self.assertNotIn(ONE_ONLY, log)

    def test_indices_are_no_names_for_slices(self):
        [(visible, cuda)], log = probed("-n1", "--gres=gpu:1", "--gpu-align=ids=index")
        self.assertEqual((visible, cuda), (SLICE[0], SLICE[:1]))
        self.assertIn("order pci, ids uuid\n", log)

    def test_slices_that_nobody_names_are_no_missing_cards(self):
        conf = Path(os.environ["SLURM_CONF"]).with_name("gres.conf")
        files = conf.read_text()
        self.addCleanup(conf.write_text, files)
        job = {"SLURMD_NODENAME": "n1", "SLURM_JOB_ID": "4713", "SLURM_JOB_GPUS": "1"}
        for text in (files, "AutoDetect=nvml\nName=gpu\n"):
            conf.write_text(text)
            with NodeFile(lambda node: node.update(nvml={"fault": "unknown"})):
                done = run("gpu-align", "prolog", "--drain", env=job)
                checked = run("gpu-align", "check", "--node=n1")
            self.assertEqual((done.returncode, done.stderr.count("\n")), (0, 2), done.stderr)
            self.assertIn("Slurm's position 1 may be any card", done.stderr)
            record = json.loads(Path("/run/gpu-align/jobs/4713.json").read_text())
            self.assertEqual((record["cards"], record["unknown"]), ([], [1]))
            self.assertNotIn("look for a lost card", checked.stdout)

    def test_slices_made_after_the_record_are_not_taken_from_it(self):
        self.assertEqual(run("gpu-align", "prolog").stderr, "")
        record = json.loads(RECORD.read_text())
        record["cards"][1]["slices"].pop()
        RECORD.write_text(json.dumps(record))
        self.check(SLICE)


class Mixed(unittest.TestCase):
    """Positions 0 to 2 are cards 1 to 3, positions 3 and 4 the slices of card 0."""

    def test_a_whole_card_is_not_its_position(self):
        [(visible, cuda)], _ = probed("-n1", "--gres=gpu:1")
        self.assertEqual((visible, cuda), (CARD[1], [CARD[1]]))

    def test_a_slice_is_never_its_parent(self):
        other = Held(3)
        try:
            [(visible, cuda)], log = probed("-n1", "--gres=gpu:1")
        finally:
            other.end()
        self.assertEqual((visible, cuda), (SLICE[0], [SLICE[0]]))
        self.assertIn(f"0    0  0000:11:00.0     0  {SLICE[0]}", log)

    def test_fc_06_the_slices_in_the_older_spelling(self):
        names = [f"MIG-{CARD[0]}/{gi}/0" for gi in (1, 2)]
        other = Held(3)
        try:
            with BeforeR470():
                tasks, log = probed("-n2", "--gpus-per-task=1")
        finally:
            other.end()
        self.assertEqual(tasks, [(name, [part]) for name, part in zip(names, SLICE)])
        self.assertIn(f"0    0  0000:11:00.0     0  {names[0]}", log)

    def test_without_nvml_and_record_it_is_left_to_slurm(self):
        with NodeFile(lambda node: node.update(nvml={"fault": "unknown"})):
            [(visible, _)], log = probed("-n1", "--gres=gpu:1")
        self.assertEqual(visible, "0")
        self.assertIn("CUDA_VISIBLE_DEVICES stays as Slurm made it", log)


class MixedUnconstrained(unittest.TestCase):
    def test_a_whole_card_is_not_its_position(self):
        [(visible, cuda)], _ = probed("-n1", "--gres=gpu:1")
        self.assertEqual((visible, cuda), (CARD[1], [CARD[1]]))

    def test_a_slice_is_found_by_its_position(self):
        other = Held(3)
        try:
            [(visible, cuda)], _ = probed("-n1", "--gres=gpu:1")
        finally:
            other.end()
        self.assertEqual((visible, cuda), (SLICE[0], [SLICE[0]]))


if __name__ == "__main__":
    unittest.main()

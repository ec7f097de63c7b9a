"""`kill -9` of `gpu-align prolog` at 200 random moments of its write: a reader finds a whole record, the old or the new one."""
# cluster: --node tests/nodes/unused8.json
import json
import os
import random
import time
import unittest
from pathlib import Path

from harness import Installed, run
from traced import Traced

FOLDER = Path("/run/gpu-align-killed")
RECORD, TEMPORARY, LOCK = (FOLDER / name for name in ("node.json", ".node.json.new", ".lock"))
PROLOG = ["/usr/bin/gpu-align", "prolog", f"--record={RECORD}"]
ENV = {"PATH": os.environ["PATH"], "SLURM_CONF": os.environ["SLURM_CONF"], "SLURMD_NODENAME": "n1"}
MOMENTS = 200


def setUpModule():
    global installed
    installed = Installed()


def tearDownModule():
    installed.end()


def at_its_write():
    """A Prolog that has just come to the folder: its next steps take the lock and replace the record."""
    LOCK.unlink(missing_ok=True)
    prolog = Traced(PROLOG, ENV)
    while not LOCK.exists():
        if not prolog.step():
            raise AssertionError("the Prolog wrote nothing")
    return prolog


class Killed(unittest.TestCase):
    def test_a_record_is_whole_whenever_its_writer_is_killed(self):
        FOLDER.mkdir()
        self.assertEqual(run(*PROLOG, env={"SLURMD_NODENAME": "n1"}).returncode, 0)
        new = RECORD.read_bytes()
        # As long as the new one, and other bytes at nearly every place.
        old = json.dumps({"schema": 1, "boot_id": "", "driver": "", "cards": [], "old": "x" * len(new)}).encode()
        steps = self.steps_of_a_write()
        chance = random.Random(9)
        landed = {"before": 0, "during": 0, "after": 0}
        for _ in range(MOMENTS):
            RECORD.write_bytes(old)
            TEMPORARY.unlink(missing_ok=True)
            prolog = at_its_write()
            for _ in range(chance.randrange(steps)):
                self.assertTrue(prolog.step(), "a write takes fewer steps than it took before")
            if chance.random() < 0.5:
                # Between two stops, too: inside of a system call or of the program.
                prolog.run_on()
                end = time.perf_counter() + chance.random() * 1e-4
                while time.perf_counter() < end:
                    pass
            prolog.kill()
            found = RECORD.read_bytes()
            self.assertIn(found, (old, new), f"{len(found)} bytes are neither record")
            landed["after" if found == new else "during" if TEMPORARY.exists() else "before"] += 1
        # Each kind is a good part of the steps.
        self.assertGreater(min(landed.values()), MOMENTS // 20, landed)
        # What the last one left holds nobody up and is cleaned away.
        TEMPORARY.write_bytes(new[:100])
        self.assertEqual(run(*PROLOG, env={"SLURMD_NODENAME": "n1"}).returncode, 0)
        self.assertEqual(sorted(os.listdir(FOLDER)), [".lock", "node.json"])

    def steps_of_a_write(self):
        """From the lock to the new record, and a few more."""
        before = RECORD.stat().st_ino
        prolog, steps = at_its_write(), 0
        while RECORD.stat().st_ino == before:
            self.assertTrue(prolog.step())
            steps += 1
        prolog.kill()
        return steps + steps // 3


if __name__ == "__main__":
    unittest.main()

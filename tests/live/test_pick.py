"""`gpu-align pick` on a machine without a scheduler: eight cards, 200 pickers at once."""
# cluster: --node tests/nodes/inv8p.json --no-plugin
# cluster: --node tests/nodes/inv8p.json --no-plugin --user nobody
import os
import subprocess
import unittest
from pathlib import Path

from harness import NODE, ROOT, open_folder, run

PROGRAM = str(ROOT / "target/release/gpu-align")
CARDS = {card["uuid"] for card in NODE["cards"]}

# Two holders of one card would meet in its folder.
HOLD = """
for card in $(echo $CUDA_VISIBLE_DEVICES | tr , ' '); do mkdir $0/$card || echo $card >> $0/met; done
sleep 0.3
for card in $(echo $CUDA_VISIBLE_DEVICES | tr , ' '); do echo $card >> $0/picked; rmdir $0/$card; done
"""


class Pick(unittest.TestCase):
    def two_hundred(self, *options):
        """200 pickers at once, each of which holds its card for a while: their statuses and words, the cards picked."""
        with open_folder() as folder:
            command = [PROGRAM, "pick", *options, "--", "sh", "-c", HOLD, folder]
            pickers = [subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) for _ in range(200)]
            said = [picker.communicate(timeout=300)[1] for picker in pickers]
            self.assertFalse(Path(folder, "met").exists(), "two pickers held one card")
            return [(picker.returncode, words) for picker, words in zip(pickers, said)], Path(folder, "picked").read_text().split()

    def test_two_hundred_pickers_never_meet_on_a_card(self):
        ended, picked = self.two_hundred("--wait", "5m")
        self.assertEqual([status for status, _ in ended], [0] * 200, ended[:3])
        self.assertEqual(len(picked), 200)
        self.assertEqual(set(picked), CARDS)

    def test_two_hundred_that_do_not_wait_never_meet_either(self):
        # Those that wait look one at a time; these all look and choose at once.
        ended, picked = self.two_hundred()
        self.assertLessEqual(set(picked), CARDS)
        self.assertEqual([status for status, _ in ended].count(0), len(picked))
        for status, words in ended:
            self.assertTrue(status == 0 or status == 1 and "8 held by another pick" in words, (status, words))

    def test_the_shell_that_evaluates_the_lines_holds_the_card(self):
        script = f"""
            eval "$({PROGRAM} pick 2>/dev/null)"; first=$CUDA_VISIBLE_DEVICES; unset CUDA_VISIBLE_DEVICES
            eval "$({PROGRAM} pick -n 7 2>/dev/null)"; echo $first $CUDA_VISIBLE_DEVICES
            unset CUDA_VISIBLE_DEVICES; {PROGRAM} pick"""
        for shell in ("bash", "dash"):
            done = run(shell, "-c", script)
            first, others = done.stdout.split()
            self.assertEqual({first, *others.split(",")}, CARDS)
            self.assertEqual(done.returncode, 1)
            self.assertIn("8 held by another pick", done.stderr)
        # The shells are gone, and with them their holds.
        self.assertEqual(run(PROGRAM, "pick", "-n", "8", "--", "true").returncode, 0)

    def test_only_cards_that_were_given_are_picked(self):
        done = run(PROGRAM, "pick", "-n", "2", env={"CUDA_VISIBLE_DEVICES": "3", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
        self.assertEqual(done.returncode, 1)
        self.assertIn("2 cards wanted and 1 of 1 card fit", done.stderr)

    def test_what_can_never_fit_is_said_at_once(self):
        for wishes in (["-n", "9"], ["--model", "H100"], ["--min-free", "81GiB"]):
            # The wait is longer than run() lets a command take.
            done = run(PROGRAM, "pick", "--wait", "2h", *wishes)
            self.assertEqual(done.returncode, 1)
            self.assertIn("of 8 cards fit", done.stderr)
            self.assertIn("ask for less, since waiting cannot help", done.stderr)

    def test_another_users_link_is_not_followed(self):
        folder = Path(f"/tmp/gpu-align-{os.getuid()}")
        run(PROGRAM, "pick", "--", "true")
        aside = folder.with_name(folder.name + ".aside")
        os.rename(folder, aside)
        try:
            os.symlink("/tmp", folder)
            done = run(PROGRAM, "pick", "--", "true")
            self.assertEqual(done.returncode, 2)
            self.assertIn("is not a folder of yours alone", done.stderr)
        finally:
            os.unlink(folder)
            os.rename(aside, folder)


if __name__ == "__main__":
    unittest.main()

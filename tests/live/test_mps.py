"""FC-37: under an MPS daemon, which counts its cards anew, a list holds UUIDs whatever form is asked for."""
# cluster: --node tests/nodes/tidy4.json
import unittest

from harness import Held, srun

CARD = [f"GPU-00000000-0004-4000-8000-00000000000{rank}" for rank in range(4)]
MPS = {"CUDA_MPS_PIPE_DIRECTORY": "/tmp/nvidia-mps"}
NOTE = "an MPS daemon counts its own cards"


class Mps(unittest.TestCase):
    """Another job holds cards 0 and 1; the step holds 2 and 3."""

    @classmethod
    def setUpClass(cls):
        cls.other = Held(2)

    @classmethod
    def tearDownClass(cls):
        cls.other.end()

    def visible(self, words, env=None):
        tasks, log = srun("-n2", "--gres=gpu:2", f"--gpu-align={words}", env=env)
        return [task.env["CUDA_VISIBLE_DEVICES"] for task in tasks], log

    def test_uuids_need_no_word(self):
        visible, log = self.visible("single", MPS)
        self.assertEqual(visible, CARD[2:])
        self.assertNotIn(NOTE, log)

    def test_indices_become_uuids_with_a_word(self):
        visible, log = self.visible("single,ids=index", MPS)
        self.assertEqual(visible, CARD[2:])
        self.assertEqual(log.count(NOTE), 1)
        self.assertIn("order pci, ids uuid\n", log)

    def test_indices_stay_without_a_daemon(self):
        visible, log = self.visible("single,ids=index")
        self.assertEqual(visible, ["0", "1"])
        self.assertIn("order pci, ids index\n", log)
        self.assertNotIn(NOTE, log)


if __name__ == "__main__":
    unittest.main()

"""gres/shard: tasks that hold parts of a card keep that card, and are told to share it."""
# cluster Shard: --node tests/nodes/tidy4.json --gres tests/gres/shard.conf
# cluster Shard: --node tests/nodes/tidy4.json --gres tests/gres/shard.conf --constrain no
import unittest

from harness import notes, srun


class Shard(unittest.TestCase):
    def test_the_card_of_the_shards_is_the_tasks_card(self):
        plain, _ = srun("-n2", "--gres=shard:2")
        tasks, log = srun("-n2", "--gres=shard:2", "--gpu-align")
        self.assertEqual([task.env["CUDA_VISIBLE_DEVICES"] for task in plain], ["0", "0"])
        card = "GPU-00000000-0004-4000-8000-000000000000"
        self.assertEqual([task.visible for task in tasks], [[card], [card]])
        self.assertTrue(all(card in task.opens for task in tasks))
        self.assertIn("gpu-align:   2 tasks share 1 card: 2 on each", notes(log))


if __name__ == "__main__":
    unittest.main()

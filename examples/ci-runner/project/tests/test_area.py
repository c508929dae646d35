import os
import unittest

from shapes import area


class Area(unittest.TestCase):
    def test_rectangle(self):
        self.assertEqual(area(3, 4), 12)

    def test_negative(self):
        with self.assertRaises(ValueError):
            area(-1, 4)

    def test_runs_as_a_job(self):
        self.assertEqual(os.environ.get("CI"), "true")

"""`terrace matrix`: matrix_test.py PROGRAM CLASS [ARGUMENTS...].

Nothing here is about times: these are the machine's. What is checked is that everything was
measured, that every answer was right, and that a broken lock shows."""

import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

PROGRAM, TEST, ARGUMENTS = sys.argv[1], sys.argv[2], sys.argv[3:]
ARMS = ("control_thread", "per_step", "recompute")
CELLS = [(arm, source, link) for arm in ARMS for source in ("idle", "busy")
         for link in ("cold", "warm")] + [("own_memory", source, "warm") for source in ("idle", "busy")]


def matrix(*args):
    return subprocess.run([PROGRAM, "matrix", "--quick", *ARGUMENTS, *args], capture_output=True, text=True,
                          timeout=280, check=False)


class Measures(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        path = os.path.join(folder.name, "matrix.json")
        picture = os.path.join(folder.name, "matrix.svg")
        cls.done = matrix("--repetitions", "2", "--json", path, "--picture", picture)
        assert cls.done.returncode == 0, cls.done.stderr
        with open(path, encoding="utf-8") as file:
            cls.json = json.load(file)
        cls.picture = xml.etree.ElementTree.parse(picture).getroot()

    def test_measures_every_cell(self):
        self.assertEqual([(c["arm"], c["source"], c["link"]) for c in self.json["cells"]], CELLS)
        for cell in self.json["cells"]:
            with self.subTest(cell=cell):
                # What is cheap is asked for three times in each repetition.
                cheap = cell["arm"] in ("control_thread", "own_memory") and cell["link"] == "warm"
                self.assertEqual(cell["repetitions"], 6 if cheap else 2)
                asks = cell["arm"] in ("control_thread", "per_step")
                names = ["ttft_s", "lookup_s"] if asks else ["ttft_s"]
                for name in names:
                    self.assertEqual(set(cell[name]), {"median", "min", "max"})
                    self.assertLess(0, cell[name]["min"])
                    self.assertLessEqual(cell[name]["min"], cell[name]["median"])
                    self.assertLessEqual(cell[name]["median"], cell[name]["max"])
                if not asks:
                    self.assertIsNone(cell["lookup_s"])

    def test_has_every_figure(self):
        for arm in ("control_thread", "per_step", "recompute", "own_memory"):
            self.assertGreater(self.json["penalty"][arm], 0)
        for name in ("lookup_over_raw_round_trip", "fetch_over_raw_copy",
                     "source_throughput_with_peers_over_without", "source_step_s"):
            self.assertGreater(self.json[name], 0, name)
        self.assertIn(self.json["control_thread_priority"], ("normal", "high"))

    def test_everything_was_fetched_and_every_answer_is_the_sources(self):
        self.assertIs(self.json["answers_identical"], True)
        self.assertEqual(self.json["not_fetched"], 0)
        self.assertNotIn("lock_faults", self.json)

    def test_prints_a_row_for_each_cell(self):
        for cell in CELLS:
            self.assertRegex(self.done.stdout, r"(?m)^" + r" +".join(cell) + " ")
        self.assertIn("Answers: identical", self.done.stdout)

    def test_draws_every_median(self):
        drawn = [e for e in self.picture.iter() if e.tag.endswith("rect")]
        # A background, a legend of three, a bar for each cell of these arms and for each look-up.
        self.assertEqual(len(drawn), 1 + 3 + 12 + 8)


class NoLanes(unittest.TestCase):
    def test_the_control_thread_is_seen_to_overtake_the_engine(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "matrix.json")
            done = matrix("--repetitions", "1", "--json", path)
            self.assertEqual(done.returncode, 0, done.stderr)
            with open(path, encoding="utf-8") as file:
                faults = json.load(file)["lock_faults"]
        print(done.stdout)
        self.assertEqual(faults["overlaps"], 0, "it is a lock all the same")
        self.assertGreater(faults["overtakes"], 0)


class NoLock(unittest.TestCase):
    def test_overlaps_are_counted_whether_or_not_a_node_lives_through_them(self):
        done = matrix("--repetitions", "1")
        said = re.search(r"overlaps counted: (\d+)", done.stdout + done.stderr)
        print(done.stdout, done.stderr)
        self.assertTrue(said)
        self.assertGreater(int(said.group(1)), 0)


unittest.main(argv=[sys.argv[0], TEST])

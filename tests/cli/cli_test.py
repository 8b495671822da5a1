"""What `terrace` prints, where, and with which status."""

import json
import os
import subprocess
import tempfile
import unittest

import harness
from harness import terrace

MISTAKES = """{
  "cpu_byte_to_use": "8GiB",
  "tokens_per_chunk": 0,
  "secondary_tiers": [
    {"type": "file", "root_dir": "/kv", "bytes": 5},
    {"type": "object", "bucket": "kv"}
  ]
}
"""
FAULTS = [
    "cpu_bytes_to_use: is missing (the size of the host tier, for all ranks together)",
    "tokens_per_chunk: must be a whole number from 1 to 65536, is 0",
    'secondary_tiers[0].bytes: is a key of tiers of type "memory", and this one is "file"',
    'secondary_tiers[1].type: "object" is not a kind of tier in this build; it has "memory", "file", "peer", "plugin"',
    "secondary_tiers[1].bucket: is not a known key",
    'cpu_byte_to_use: is not a known key; did you mean "cpu_bytes_to_use"?',
]


class Version(unittest.TestCase):
    def test_says_what_was_built_in(self):
        done = terrace("version")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"^terrace \d+\.\d+\.\d+\n")
        for line in ("compiler", "build type", "sanitizers", "OpenSSL", "tiers"):
            self.assertRegex(done.stdout, rf"(?m)^{line}: .+$")
        self.assertEqual(done.stderr, "")


class ConfigCheck(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def write(self, text):
        path = os.path.join(self.folder.name, "node.json")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def test_tells_every_fault_with_its_path(self):
        path = self.write(MISTAKES)
        done = terrace("config", "check", path)
        self.assertEqual(done.returncode, 2)
        self.assertEqual(done.stdout, "")
        self.assertEqual(done.stderr.splitlines(), [f"{path}: {fault}" for fault in FAULTS])

    def test_says_what_a_right_one_does(self):
        path = self.write(json.dumps({
            "cpu_bytes_to_use": "1.5GiB", "offload_prompt_only": False, "tokens_per_chunk": 1,
            "secondary_tiers": [
                {"type": "memory", "bytes": "512MiB"},
                {"type": "file", "root_dir": "/kv", "n_read_threads": 1, "direct_io": False,
                 "layout": "vllm"},
                {"type": "peer", "peers": ["a:1"], "data_plane": "tcp"},
                {"type": "plugin", "library": "libmy_tier.so"}]}))
        done = terrace("config", "check", path)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stderr, "")
        self.assertEqual(done.stdout, (
            f"{path}: ok\n"
            "host 1.5 GiB (lru), chunks of 1 token, prompts and answers; "
            "then memory 512 MiB, file /kv (1 reader, 2 writers, page cache, layout vllm), "
            "peer 127.0.0.1:5710 (1 known peer, tcp, no keys), plug-in libmy_tier.so\n"))

    def test_says_whether_peers_need_keys(self):
        tier = {"type": "peer", "host": "::1", "port": 0, "peers": ["a:1", "b:1"],
                "public_key": "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7", "secret_key_file": "/k"}
        done = terrace("config", "check", "-",
                       stdin=json.dumps({"cpu_bytes_to_use": 1, "secondary_tiers": [tier]}))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("; then peer [::1]:0 (2 known peers, auto, CURVE keys)\n", done.stdout)

    def test_reads_standard_input(self):
        done = terrace("config", "check", "-", stdin='{"cpu_bytes_to_use": 4096}')
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout, (
            "standard input: ok\n"
            "host 4 KiB (lru), chunks of 64 tokens, prompts only; no secondary tiers\n"))
        done = terrace("config", "check", "-", stdin=MISTAKES)
        self.assertEqual(done.returncode, 2)
        self.assertEqual(done.stderr.splitlines(),
                         [f"standard input: {fault}" for fault in FAULTS])

    def test_reads_no_more_of_standard_input_than_it_must(self):
        with open("/dev/zero", "rb") as endless:
            done = subprocess.run([harness.TERRACE, "config", "check", "-"], stdin=endless,
                                  capture_output=True, text=True, timeout=30, check=False)
        self.assertEqual(done.returncode, 2)
        self.assertEqual(done.stderr,
                         "standard input: document: has more than 1048576 bytes\n")

    def test_says_that_the_file_is_missing(self):
        path = os.path.join(self.folder.name, "none.json")
        done = terrace("config", "check", path)
        self.assertEqual(done.returncode, 2)
        self.assertEqual(done.stderr, f"read configuration {path}: No such file or directory\n")
        self.assertEqual(done.stdout, "")


class Schema(unittest.TestCase):
    def test_is_json(self):
        done = terrace("config", "schema")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("cpu_bytes_to_use", json.loads(done.stdout)["properties"])


class Usage(unittest.TestCase):
    def test_makes_keys_of_a_group_and_never_over_others(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "group.key")
            done = terrace("peer-keys", path)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertRegex(done.stdout, r"^\S{40}\n$")
            self.assertEqual(os.stat(path).st_mode & 0o777, 0o600)
            with open(path, encoding="ascii") as file:
                secret = file.read()
            self.assertRegex(secret, r"^\S{40}\n$")
            self.assertNotEqual(secret, done.stdout)
            again = terrace("peer-keys", path)
            self.assertEqual(again.returncode, 2)
            self.assertIn(path, again.stderr)
            with open(path, encoding="ascii") as file:
                self.assertEqual(file.read(), secret)

    def test_help_shows_examples(self):
        for args in ((), ("config",), ("config", "check")):
            done = terrace(*args, "--help")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("terrace config check node.json", done.stdout)

    def test_wrong_usage_is_status_2_and_points_to_help(self):
        for args in ((), ("bogus",), ("config",), ("config", "bogus"), ("config", "check"),
                     ("version", "--bogus"), ("config", "check", "a", "b")):
            done = terrace(*args)
            self.assertEqual(done.returncode, 2, args)
            self.assertIn("--help", done.stderr, args)
            self.assertEqual(done.stdout, "", args)
            if "bogus" in args:
                self.assertIn("bogus", done.stderr)

    @unittest.skipUnless(os.path.exists("/dev/full"), "no /dev/full here")
    def test_output_that_is_lost_is_status_1(self):
        with open("/dev/full", "w", encoding="utf-8") as full:
            done = terrace("config", "schema", stdout=full)
        self.assertEqual(done.returncode, 1)
        self.assertIn("standard output", done.stderr)


harness.main()

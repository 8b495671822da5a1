#!/usr/bin/env python3
"""Runs `terrace-llama run` as a user would: restarts, bad input, damaged caches, Ctrl-C.

    llama_cli_test.py TERRACE_LLAMA TINY_MODEL OTHER_MODEL
"""

import contextlib
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

PROGRAM, MODEL, OTHER_MODEL = (os.path.abspath(path) for path in sys.argv[1:4])


def text(size, seed):
    return "".join(random.Random(seed).choices("abcdefghijklmnopqrstuvwxyz", k=size))


class LlamaTest(unittest.TestCase):
    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="terrace-test-"))
        self.addCleanup(shutil.rmtree, self.dir, ignore_errors=True)
        self.cache = self.dir / "cache"

    def config(self, **changes):
        config = {
            "cpu_bytes_to_use": "64MiB",
            "tokens_per_chunk": 32,
            "secondary_tiers": [{"type": "file", "root_dir": str(self.cache)}],
        }
        config.update(changes)
        path = self.dir / "terrace.json"
        path.write_text(json.dumps(config))
        return path

    def command(self, prompts, *options, model=MODEL, config=None):
        path = self.dir / "prompts.jsonl"
        if isinstance(prompts, list):
            prompts = "".join(json.dumps(prompt) + "\n" for prompt in prompts)
        path.write_text(prompts)
        return [PROGRAM, "run", "--model", str(model), "--config", str(config or self.config()), "--prompts", str(path),
                "--json", str(self.dir / "out.json"), "--context", "1024", "--threads", "1", "--ignore-eos",
                "--max-tokens", "8", *options]

    def run_it(self, prompts, *options, status=0, **where):
        done = subprocess.run(self.command(prompts, *options, **where), capture_output=True, text=True, errors="replace", timeout=120)
        self.assertEqual(done.returncode, status, done.stderr)
        return done.stderr

    def answers(self):
        return {answer["id"]: answer for answer in json.loads((self.dir / "out.json").read_text())["requests"]}

    def stats(self):
        return json.loads((self.dir / "out.json").read_text())["stats"]

    def records(self):
        return sorted(self.cache.glob("*/chunks/*/*.chunk"))

    # Until `condition` holds, while the process lives, at most a minute.
    def wait_for(self, condition, process):
        deadline = time.monotonic() + 60
        while not condition():
            self.assertIsNone(process.poll(), "it ended early")
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)

    # What a process has open or mapped under a name in /dev/shm, and so could leave there.
    def shared_memory_files(self, pid):
        maps = pathlib.Path(f"/proc/{pid}/maps").read_text().splitlines()
        descriptors = []
        for link in pathlib.Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # Closed since it was listed.
                descriptors.append(os.readlink(link))
        return [name for name in maps + descriptors if "/dev/shm" in name]

    # A prompt served once, so that its chunks are on disk; what a later run has to answer.
    def fill(self):
        prompt = {"id": "p", "prompt": text(400, 1)}
        self.run_it([prompt])
        self.assertEqual(len(self.records()), 12)
        return prompt, self.answers()["p"]["answer_tokens"]

    # After a restart: the right answer, and this many tokens from disk.
    def check_restart(self, prompt, answer, tokens_disk, **where):
        stderr = self.run_it([prompt], **where)
        self.assertEqual(self.answers()["p"]["answer_tokens"], answer)
        self.assertEqual(self.answers()["p"]["tokens_disk"], tokens_disk)
        return stderr

    def test_a_restart_finds_everything(self):
        prompt, answer = self.fill()
        self.check_restart(prompt, answer, 12 * 32)
        self.assertEqual(list(self.cache.glob("*/tmp/*")), [])

    def test_another_model_shares_nothing(self):
        prompt, answer = self.fill()
        self.run_it([prompt], model=OTHER_MODEL)
        self.assertEqual(self.answers()["p"]["tokens_disk"], 0)
        self.assertNotEqual(self.answers()["p"]["answer_tokens"], answer)
        self.check_restart(prompt, answer, 12 * 32)

    def test_other_tokens_per_chunk_share_nothing(self):
        prompt, answer = self.fill()
        self.check_restart(prompt, answer, 0, config=self.config(tokens_per_chunk=16))

    def test_a_flipped_bit_is_a_miss_from_there_on(self):
        prompt, answer = self.fill()
        for record in self.records():
            damaged = bytearray(record.read_bytes())
            damaged[len(damaged) // 2] ^= 4
            record.write_bytes(damaged)
        self.assertIn("moved to quarantine", self.check_restart(prompt, answer, 0))
        self.check_restart(prompt, answer, 12 * 32)  # Stored anew.

    def test_a_truncated_file_is_a_miss(self):
        prompt, answer = self.fill()
        for record in self.records():
            os.truncate(record, record.stat().st_size // 2)
        self.check_restart(prompt, answer, 0)

    def test_a_file_of_another_key_is_a_miss(self):
        prompt, answer = self.fill()
        records = self.records()
        contents = [record.read_bytes() for record in records]
        for record, content in zip(records, contents[1:] + contents[:1]):
            record.write_bytes(content)
        self.assertIn("wanted", self.check_restart(prompt, answer, 0))

    def test_one_bad_file_costs_only_what_lies_behind_it(self):
        prompt, answer = self.fill()
        self.records()[5].write_bytes(b"")
        self.run_it([prompt])
        self.assertEqual(self.answers()["p"]["answer_tokens"], answer)
        self.assertEqual(self.stats()["tiers"][0]["promotion_failed_chunks"], 1)

    def test_a_newer_format_is_refused_by_name(self):
        self.fill()
        identity = next(self.cache.glob("*/identity.json"))
        content = json.loads(identity.read_text())
        content["format_version"] = 99
        identity.write_text(json.dumps(content))
        stderr = self.run_it([{"prompt": "x"}], status=2)
        self.assertIn("newer format", stderr)
        self.assertIn(str(identity.parent), stderr)

    def test_a_cache_directory_that_is_a_file(self):
        self.cache.write_text("")
        stderr = self.run_it([{"prompt": "x"}], status=2)
        self.assertIn("secondary_tiers[0]", stderr)
        self.assertIn(str(self.cache), stderr)

    def test_a_full_disk_is_reported_and_the_answers_are_right(self):
        self.cache.mkdir()
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", self.cache],
                          capture_output=True).returncode != 0:
            self.skipTest("cannot mount a small file system here")
        self.addCleanup(subprocess.run, ["umount", self.cache])
        prompt = {"id": "p", "prompt": text(400, 1)}
        stderr = self.run_it([prompt])
        self.assertIn("No space left", stderr)
        answer = self.answers()["p"]["answer_tokens"]
        self.assertEqual(list(self.cache.glob("*/tmp/*")), [])
        self.run_it([prompt | {"cache": "none"}])
        self.assertEqual(self.answers()["p"]["answer_tokens"], answer)

    # What is printed must not end up in a file or in host memory that got the free descriptor.
    def test_closed_standard_streams_damage_nothing(self):
        prompt, answer = self.fill()
        shutil.rmtree(self.cache)
        done = subprocess.run(self.command([prompt, prompt | {"id": "q"}]), preexec_fn=lambda: [os.close(fd) for fd in (0, 1, 2)])
        self.assertEqual(done.returncode, 0)
        self.check_restart(prompt, answer, 12 * 32)

    def test_a_log_that_cannot_be_written_is_no_reason_to_stop(self):
        with open("/dev/full", "w") as full:
            done = subprocess.run(self.command([{"prompt": "x"}]), stderr=full)
        self.assertEqual(done.returncode, 0)

    def test_a_fifo_in_place_of_a_chunk_is_a_miss(self):
        prompt, answer = self.fill()
        record = self.records()[3]
        record.unlink()
        os.mkfifo(record)
        self.run_it([prompt])
        self.assertEqual(self.answers()["p"]["answer_tokens"], answer)

    def test_steps_too_short_for_the_sequences(self):
        stderr = self.run_it([{"prompt": "x"}], "--step-tokens", "8", "--parallel", "8", status=2)
        self.assertIn("--step-tokens is 8", stderr)

    def test_a_directory_as_prompts_and_a_place_that_cannot_be_written(self):
        command = self.command([{"prompt": "x"}])
        for flag in ("--prompts", "--json"):
            wrong = list(command)
            wrong[wrong.index(flag) + 1] = "/tmp"
            done = subprocess.run(wrong, capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn("/tmp: Is a directory", done.stderr)

    def test_host_memory_too_small_for_a_chunk(self):
        stderr = self.run_it([{"prompt": "x"}], status=2, config=self.config(cpu_bytes_to_use=1000))
        self.assertIn("cpu_bytes_to_use is 1000 bytes, but one chunk takes", stderr)

    def test_every_fault_of_the_configuration_at_once(self):
        config = self.config(cpu_bytes_to_use=-1, tokens_per_chunk="many", secondary_tiers=[{"type": "file", "x": 1}])
        stderr = self.run_it([{"prompt": "x"}], status=2, config=config)
        for path in ("cpu_bytes_to_use", "tokens_per_chunk", "secondary_tiers[0].x", "secondary_tiers[0].root_dir"):
            self.assertIn(path, stderr)

    def test_models_that_are_none(self):
        self.assertIn("no such file", self.run_it([{"prompt": "x"}], status=2, model="/nonexistent.gguf"))
        not_gguf = self.dir / "m.gguf"
        not_gguf.write_text("hello")
        self.assertIn("not a GGUF file", self.run_it([{"prompt": "x"}], status=2, model=not_gguf))
        not_gguf.write_bytes(pathlib.Path(MODEL).read_bytes()[:1000])
        self.assertIn(str(not_gguf), self.run_it([{"prompt": "x"}], status=2, model=not_gguf))

    def test_a_malformed_prompts_file_names_the_line(self):
        stderr = self.run_it('{"prompt": "x"}\n{"prompt": }\n', status=2)
        self.assertIn("prompts.jsonl", stderr)
        self.assertIn("line 2", stderr)

    def test_a_prompt_that_does_not_fit_fails_alone(self):
        stderr = self.run_it([{"id": "long", "prompt": text(2000, 1)}, {"id": "short", "prompt": "abc"}], status=1)
        self.assertIn("the context holds 1024", stderr)
        self.assertIn("error", self.answers()["long"])
        self.assertEqual(len(self.answers()["short"]["answer_tokens"]), 8)

    def test_wrong_flags(self):
        for flags in (["--no-such-flag"], ["--parallel", "0"], ["--context", "x"]):
            self.run_it([{"prompt": "x"}], *flags, status=2)

    def test_ctrl_c_stops_soon_and_leaves_nothing(self):
        prompts = [{"id": str(i), "prompt": text(600, i), "max_tokens": 300} for i in range(200)]
        process = subprocess.Popen(self.command(prompts), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        process.stderr.readline()
        self.wait_for(lambda: self.records(), process)
        self.assertEqual(self.shared_memory_files(process.pid), [])
        started = time.monotonic()
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
        print(f"stopped after {time.monotonic() - started:.2f} s", file=sys.stderr)
        self.assertEqual(process.returncode, 130, stderr)
        self.assertIn("prompts were answered", stderr)
        self.assertEqual(list(self.cache.glob("*/tmp/*")), [])

    def test_kill_leaves_nothing_that_a_restart_does_not_clean(self):
        prompts = [{"id": str(i), "prompt": text(600, i)} for i in range(100)]
        process = subprocess.Popen(self.command(prompts), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.wait_for(lambda: len(self.records()) >= 20, process)
        process.kill()
        process.wait()
        self.run_it([prompts[0] | {"id": "p"}])
        self.assertEqual(self.answers()["p"]["tokens_disk"], 18 * 32)
        self.assertEqual(list(self.cache.glob("*/tmp/*")), [])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])

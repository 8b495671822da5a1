"""Runs `terrace` for the tests in this folder: <test>.py TERRACE_BINARY SOURCE_DIR."""

import json
import pathlib
import subprocess
import sys
import unittest

TERRACE = sys.argv[1]
SOURCE_DIR = pathlib.Path(sys.argv[2])


def terrace(*args, stdin="", **kwargs):
    """The finished process, with stdout and stderr as text."""
    kwargs.setdefault("stdout", subprocess.PIPE)
    return subprocess.run([TERRACE, *args], input=stdin, stderr=subprocess.PIPE, text=True,
                          timeout=30, check=False, **kwargs)


def accepts(document):
    """Whether `terrace config check` takes a document, given as text or as what json.dumps takes."""
    text = document if isinstance(document, str) else json.dumps(document)
    status = terrace("config", "check", "-", stdin=text).returncode
    assert status in (0, 2), status
    return status == 0


def schema():
    return json.loads(terrace("config", "schema").stdout)


def main():
    unittest.main(argv=sys.argv[:1])

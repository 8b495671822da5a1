"""The printed JSON Schema and the parser say the same of sample documents. Needs jsonschema."""

import sys
import unittest

import harness

try:
    import jsonschema
except ImportError:
    print("skipped: no python3-jsonschema here")
    sys.exit(77)

BASE = {"cpu_bytes_to_use": 1}
PUBLIC_KEY = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"


def with_tiers(*tiers):
    return {**BASE, "secondary_tiers": list(tiers)}


RIGHT = [
    BASE,
    {"cpu_bytes_to_use": 9223372036854775807},
    *({"cpu_bytes_to_use": size} for size in (
        "1KiB", "1.5 GiB", "007MB", "0.25TiB", "3TB", "2GB", "5KB", "1MiB")),
    {**BASE, "huge_pages": "transparent", "prefault_threads": 0, "lock_memory": True},
    {**BASE, "eviction_policy": "lru", "tokens_per_chunk": 65536, "offload_prompt_only": False},
    *({**BASE, "metrics_listen": address} for address in (
        "", "127.0.0.1:9464", "localhost:0", "[::1]:65535")),
    with_tiers(),
    with_tiers({"type": "memory", "bytes": "1GiB"}, {"type": "memory", "bytes": 1}),
    with_tiers({"type": "file", "root_dir": "a"}),
    with_tiers({"type": "file", "root_dir": "a", "layout": "vllm"}),
    with_tiers({"type": "file", "root_dir": "/a", "n_read_threads": 64, "n_write_threads": 1,
                "direct_io": False}),
    with_tiers({"type": "plugin", "library": "a.so"},
               {"type": "plugin", "library": "/a.so", "options": {"any": [1, {"thing": None}]}}),
    with_tiers({"type": "peer"}),
    with_tiers({"type": "peer", "host": "::1", "peers": ["a:1", "10.0.0.7:5710", "[::1]:00002"],
                "public_key": PUBLIC_KEY, "secret_key_file": "/k"}),
    with_tiers({"type": "peer", "host": "0.0.0.0", "allow_unauthenticated_network": True}),
    *({**BASE, "control_thread": value} for value in ({}, {"priority": "realtime"})),
    with_tiers(*[{"type": "memory", "bytes": 1}] * 16),
]
WRONG = [
    None, 1, "x", [], {},
    *({"cpu_bytes_to_use": size} for size in (
        0, -1, 1.5, 9223372036854775808, True, None, [], {}, "", "1", "1gib", "1G", "1 ", " 1KiB",
        "1  KiB", "1.KiB", ".5KiB", "1.1234567KiB", "0KiB", "0.0GiB", "-1KiB", "1PiB", "1e3KiB")),
    *({**BASE, "tokens_per_chunk": value} for value in (0, 65537, -1, 64.5, "64", True, None)),
    *({**BASE, "offload_prompt_only": value} for value in (0, 1, "true", None)),
    *({**BASE, "eviction_policy": value} for value in ("LRU", "", 1, None)),
    *({**BASE, "huge_pages": value} for value in ("on", "", True, None)),
    *({**BASE, "prefault_threads": value} for value in (-1, 65, "1", None)),
    {**BASE, "lock_memory": 1},
    *({**BASE, "metrics_listen": address} for address in (
        9464, None, ":9464", "9464", "localhost", "localhost:", "localhost:-1", "a:123456",
        "::1:9464", "[::1]", "[]:1", "[x]:1", "a b:1", "a:b:1", "a\0:1", "a[:1", "é:1")),
    {**BASE, "cheese": 1},
    {**BASE, "root_dir": "a"},
    {**BASE, "type": "file"},
    {"cpu_bytes_to_use": 1, "secondary_tiers": {}},
    with_tiers(1),
    with_tiers({}),
    *(with_tiers({"type": kind}) for kind in ("memory", "file", "object", "fs", 1, None)),
    with_tiers({"type": "memory", "bytes": 0}),
    with_tiers({"type": "memory", "bytes": 1, "root_dir": "a"}),
    with_tiers({"type": "memory", "bytes": 1, "cheese": 1}),
    *(with_tiers({"type": "file", "root_dir": value}) for value in ("", "a\0b", 1, None)),
    with_tiers({"type": "file", "root_dir": "a", "bytes": 1}),
    with_tiers({"type": "file", "root_dir": "a", "direct_io": 1}),
    *(with_tiers({"type": "file", "root_dir": "a", "layout": value}) for value in ("", "Vllm", 1)),
    with_tiers({"type": "file", "root_dir": "a", "n_read_threads": 0}),
    with_tiers({"type": "file", "root_dir": "a", "n_write_threads": 65}),
    *(with_tiers({"type": "plugin", "library": "a", "options": value}) for value in ([], 1, None)),
    with_tiers({"type": "plugin", "library": ""}),
    with_tiers({"type": "plugin"}),
    with_tiers({"type": "plugin", "library": "a", "max_chunks": 1}),
    *(with_tiers({"type": "peer", "peers": value}) for value in (
        "a:1", ["a"], ["a:0"], ["a:000"], ["a:123456"], ["::1:1"], [1], [""], ["a:1", "a:1"])),
    *(with_tiers({"type": "peer", "host": value}) for value in ("", "[::1]", "a b", "a/b", 1)),
    *(with_tiers({"type": "peer", "public_key": value, "secret_key_file": "/k"}) for value in (
        PUBLIC_KEY[1:], PUBLIC_KEY + "a", "~" * 40, 1)),
    with_tiers({"type": "peer", "lease_ms": 99}),
    with_tiers({"type": "peer", "park_timeout_ms": 55001}),
    with_tiers({"type": "peer", "data_plane": "rdma"}),
    *({**BASE, "control_thread": value} for value in ("high", {"priority": "low"}, {"nice": 1}, [])),
    with_tiers({"root_dir": "a"}),
    with_tiers(*[{"type": "memory", "bytes": 1}] * 17),
]
# What a schema can't tell; the parser refuses these.
ONLY_THE_PARSER_REFUSES = [
    {**BASE, "tokens_per_chunk": 64.0},
    {"cpu_bytes_to_use": "99999999TiB"},
    {"cpu_bytes_to_use": "0.0001KB"},
    with_tiers({"type": "file", "root_dir": "a"}, {"type": "file", "root_dir": "a/"}),
    {**BASE, "metrics_listen": "a:65536"},
    with_tiers({"type": "peer", "peers": ["a:65536"]}),
    with_tiers({"type": "peer"}, {"type": "peer", "port": 1}),
    with_tiers({"type": "peer", "host": "0.0.0.0"}),
    with_tiers({"type": "peer", "public_key": PUBLIC_KEY}),
    with_tiers({"type": "peer", "secret_key_file": "/k"}),
]


class SchemaAndParser(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        schema = harness.schema()
        jsonschema.Draft202012Validator.check_schema(schema)
        cls.validator = jsonschema.Draft202012Validator(schema)

    def check(self, documents, *, schema_says, parser_says):
        for document in documents:
            with self.subTest(document=document):
                self.assertEqual(self.validator.is_valid(document), schema_says, "schema")
                self.assertEqual(harness.accepts(document), parser_says, "parser")

    def test_both_take_what_is_right(self):
        self.check(RIGHT, schema_says=True, parser_says=True)

    def test_both_refuse_what_is_wrong(self):
        self.check(WRONG, schema_says=False, parser_says=False)

    def test_the_parser_is_stricter_only_where_a_schema_cannot_be(self):
        self.check(ONLY_THE_PARSER_REFUSES, schema_says=True, parser_says=False)


harness.main()

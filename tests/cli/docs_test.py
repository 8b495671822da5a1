"""docs/configuration.md has a row for every key, as the schema tells it, and examples that work."""

import json
import re
import unittest

import harness

PAGE = (harness.SOURCE_DIR / "docs" / "configuration.md").read_text(encoding="utf-8")


def value_of(key):
    """The values that a key takes, in words."""
    if "anyOf" in key:
        return "size"
    if "enum" in key:
        return " or ".join(f"`{json.dumps(choice)}`" for choice in key["enum"])
    if key["type"] in ("integer", "number"):
        return f"{key['minimum']} to {key['maximum']}"
    return {"boolean": "true or false", "string": "text", "object": "object",
            "array": f"list, at most {key.get('maxItems')}"}[key["type"]]


def rows(owner):
    """The table rows for the keys of one object of the schema."""
    for name, key in owner["properties"].items():
        if "const" in key:
            continue
        default = f"`{json.dumps(key['default'])}`" if "default" in key else "required"
        yield f"| `{name}` | {value_of(key)} | {default} | {key['description']} |"


def section(title):
    """The page's text under one heading."""
    match = re.search(rf"(?ms)^## {re.escape(title)}$(.*?)(?=^## |\Z)", PAGE)
    return match.group(1) if match else ""


class Page(unittest.TestCase):
    def test_has_the_rows_of_every_key(self):
        schema = harness.schema()
        sections = {"The node": schema}
        for name, key in schema["properties"].items():
            if "properties" in key:
                sections[f"`{name}`"] = key
        for tier in schema["$defs"].values():
            sections[f"Tier `{tier['properties']['type']['const']}`"] = tier
        for title, owner in sections.items():
            wanted = list(rows(owner))
            self.assertTrue(wanted)
            shown = re.findall(r"(?m)^\| `.*$", section(title))
            self.assertEqual(shown, wanted, f"'## {title}' should have\n" + "\n".join(wanted))

    def test_has_two_complete_examples_that_work(self):
        examples = re.findall(r"(?ms)^```json\n(.*?)^```$", PAGE)
        self.assertEqual(len(examples), 2)
        for example in examples:
            done = harness.terrace("config", "check", "-", stdin=example)
            self.assertEqual(done.returncode, 0, done.stderr)
        kinds = [[tier["type"] for tier in json.loads(example).get("secondary_tiers", [])]
                 for example in examples]
        self.assertEqual(kinds, [[], ["file"]])

    def test_shows_the_faults_that_are_printed(self):
        match = re.search(r"(?ms)^```console\n\$ echo '(.*?)' \| terrace config check -\n(.*?)^```$",
                          PAGE)
        self.assertTrue(match)
        done = harness.terrace("config", "check", "-", stdin=match.group(1))
        self.assertEqual(done.stderr, match.group(2))


harness.main()

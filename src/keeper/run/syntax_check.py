"""Prints `FILE:LINE: REASON` for each file of the body in `sys.argv[1]` that can't be parsed."""

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from xml.parsers import expat

MAX_BYTES = 1 << 20


def check_python(path, text):
    try:
        ast.parse(text, path)
    except SyntaxError as error:
        return f"{path}:{error.lineno}: {error.msg}"
    except ValueError as error:  # a null byte
        return f"{path}:1: {error}"


def check_bash(path):
    # From stdin, bash names no line of a file that ends too soon.
    ran = subprocess.run(["bash", "-n", os.path.join(".", path)], capture_output=True)
    found = re.search(rb"line (\d+): (.*)", ran.stderr)
    if ran.returncode != 0 and found:
        line, reason = (part.decode(errors="replace") for part in found.groups())
        return f"{path}:{line}: {reason}"


def describe_decode_error(path, text, error):
    line = text.count(b"\n", 0, error.start) + 1
    return f"{path}:{line}: {error.reason}"


def check_json(path, text):
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        return f"{path}:{error.lineno}: {error.msg}"
    except UnicodeDecodeError as error:
        return describe_decode_error(path, text, error)


def check_xml(path, text):
    try:
        expat.ParserCreate().Parse(text, True)
    except expat.ExpatError as error:
        return f"{path}:{error.lineno}: {expat.ErrorString(error.code)}"
    except (LookupError, ValueError):  # an encoding that this parser does not have
        return None


def check_toml(path, text):
    try:
        tomllib.loads(text.decode())
    except UnicodeDecodeError as error:
        return describe_decode_error(path, text, error)
    except tomllib.TOMLDecodeError as error:
        # The place is `line 2, column 4` or `end of document`.
        reason, _, place = str(error).rpartition(" (at ")
        found = re.match(r"line (\d+)", place)
        line = found[1] if found else text.count(b"\n") + 1
        return f"{path}:{line}: {reason}"


CHECKS = {".json": check_json, ".xml": check_xml, ".toml": check_toml}

if not os.path.isdir(sys.argv[1]):  # the project has no body of its own
    sys.exit()
os.chdir(sys.argv[1])
for folder, _, names in os.walk("."):
    for name in sorted(names):
        path = os.path.normpath(os.path.join(folder, name))
        if not os.path.isfile(path) or os.path.getsize(path) > MAX_BYTES:
            continue
        with open(path, "rb") as file:
            text = file.read(MAX_BYTES)
        first = text.split(b"\n", 1)[0] if text.startswith(b"#!") else b""
        problem = None
        if name.endswith(".py") or b"python" in first:
            problem = check_python(path, text)
        elif name.endswith(".sh") or re.search(rb"\b(ba)?sh$", first.strip()):
            problem = check_bash(path)
        elif check := CHECKS.get(os.path.splitext(name)[1]):
            problem = check(path, text)
        if problem is not None:
            print(problem)

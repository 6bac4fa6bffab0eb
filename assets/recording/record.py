"""Records a terminal session with osctl and draws it as an SVG for the README.

    python3 assets/recording/record.py            # draws session.svg from session.txt
    python3 assets/recording/record.py --record   # first runs the commands of COMMANDS and writes session.txt

`--record` needs `osctl` on the PATH and an instance that runs. It clears the session `demo` of that instance.
"""

from __future__ import annotations

import subprocess
import sys
from html import escape
from pathlib import Path

FOLDER = Path(__file__).parent
TRANSCRIPT = FOLDER / "session.txt"
PICTURE = FOLDER / "session.svg"

COMMANDS = [
    "osctl exec --session demo 'import numpy as np; data = np.arange(10**6)'",
    "osctl exec --session demo 'int(data.sum())'",
    "osctl shell --session demo 'cd /repo && pwd'",
    "osctl cryo store --session demo",
    "osctl mcp list",
]

PROMPT = "$ "
COLUMNS = 88
FONT_SIZE, LINE_HEIGHT, MARGIN = 14, 20, 16
CHARACTER_WIDTH = 8.43
SECONDS_PER_COMMAND, SECONDS_PER_LINE = 1.2, 0.15

STYLE = f"""
  text {{ font: {FONT_SIZE}px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; fill: #c9d1d9; white-space: pre; }}
  .prompt {{ fill: #7ee787; }}
  .typed {{ fill: #ffffff; }}
  g {{ animation: appear 0.01s both; }}
  @keyframes appear {{ from {{ opacity: 0; }} to {{ opacity: 1; }} }}
  @media (prefers-reduced-motion: reduce) {{ g {{ animation: none; }} }}
"""


def record() -> str:
    """Runs the commands and returns what a terminal would show of them."""
    subprocess.run(["osctl", "reset", "--session", "demo"], capture_output=True, check=False)
    shown = []
    for command in COMMANDS:
        output = subprocess.run(
            command, shell=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True
        ).stdout
        shown.append(f"{PROMPT}{command}\n{output}")
    return "".join(shown)


def draw(transcript: str) -> str:
    """Draws the transcript; commands and lines appear one after another."""
    lines = [line.rstrip()[:COLUMNS] for line in transcript.splitlines()]
    width = round(COLUMNS * CHARACTER_WIDTH + 2 * MARGIN)
    height = len(lines) * LINE_HEIGHT + 2 * MARGIN
    groups, moment = [], 0.0
    for number, line in enumerate(lines):
        is_command = line.startswith(PROMPT)
        moment += SECONDS_PER_COMMAND if is_command and number > 0 else SECONDS_PER_LINE
        y = MARGIN + number * LINE_HEIGHT + FONT_SIZE
        if is_command:
            typed = escape(line.removeprefix(PROMPT))
            text = f'<tspan class="prompt">{PROMPT}</tspan><tspan class="typed">{typed}</tspan>'
        else:
            text = escape(line)
        groups.append(
            f'<g style="animation-delay: {moment:.2f}s">'
            f'<text x="{MARGIN}" y="{y}" xml:space="preserve">{text}</text></g>'
        )
    body = "\n".join(groups)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" role="img">\n'
        f"<title>A terminal session with osctl</title>\n<style>{STYLE}</style>\n"
        f'<rect width="{width}" height="{height}" rx="8" fill="#0d1117"/>\n{body}\n</svg>\n'
    )


def main() -> None:
    if "--record" in sys.argv[1:]:
        TRANSCRIPT.write_text(record())
    PICTURE.write_text(draw(TRANSCRIPT.read_text()))


if __name__ == "__main__":
    main()

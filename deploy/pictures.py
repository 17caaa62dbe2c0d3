"""Takes the pictures of the page that docs/ and README.md show, into docs/pictures/: `make pictures`.

    python deploy/pictures.py [--out FOLDER] [NAME ...]

It starts a mesh with the default model, opens its page in Chromium and does what a visitor does. Text is greedy, so it
is the same every time; times and figures are those of the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "page")]

from browser import Page, chromium, executable, page  # noqa: E402

from bench.running_mesh import running_mesh  # noqa: E402

FOLDER = ROOT / "docs" / "pictures"
# In CSS pixels: a window that no part of the page needs to be scrolled in. A picture has SCALE times as many.
WIDTH, HEIGHT = 1280, 1400
SCALE = 2
COLOURS = 128
LARGEST = 200_000  # bytes

# The page's second sample is a list, which the default model copies without a mistake.
# The first one is a log, and the model goes on with it. After this number of tokens a line ends.
LOG_TOKENS = 140

# Half of what lies between two panels.
EDGE = 8
ENDED = "!document.getElementById('send').hidden"
ANSWER = "document.querySelector('#turns .answer')"
SOURCES = "document.querySelectorAll('#legend .origin:not(.plain, .bonus)').length"
# Steps with a draft that was accepted in part, and with a first run of tokens whose middle can be pointed at.
PARTLY_ACCEPTED = f"""[...{ANSWER}.querySelectorAll('.step:has(del):has(.origin:not(.plain, .bonus))')]
    .filter((step) => step.querySelector('.origin').getClientRects().length === 1
        && step.querySelector('.origin').textContent.trim())"""
NOTE_HIDDEN = "document.getElementById('note').hidden"
# Area of the text that the note lies on.
HIDDEN = """(() => {
    const note = document.getElementById("note").getBoundingClientRect();
    return [...document.querySelectorAll("#turns .origin, #figures dd")].flatMap((node) => [...node.getClientRects()])
        .reduce((sum, box) => sum
            + Math.max(0, Math.min(box.right, note.right) - Math.max(box.left, note.left))
            * Math.max(0, Math.min(box.bottom, note.bottom) - Math.max(box.top, note.top)), 0);
})()"""
TRIES = 5
# All processes with their figures, and all connections open and with their round trips.
MESH_DRAWN = """(document.querySelectorAll('.member[data-state=ready]').length === 4
    && document.querySelectorAll('[data-role=proposer] dt').length === 5
    && document.querySelectorAll('.link:not(.closed)').length === 4
    && document.querySelectorAll('.link').length === 4 && document.querySelectorAll('.trip').length === 4)"""
# Less than ten seconds old: they are the ones with a decimal.
PROPOSER_IS_NEW = "/[0-9][.][0-9]/.test(document.querySelector('[data-role=proposer] .since')?.textContent)"


class NoPicture(Exception):
    """Why there is none."""


async def playground(tab: Page) -> bytes:
    """An answer with its first charts, and the pointer on a step whose draft was accepted in part. Where drafts end is
    a matter of time: of some tries the one whose note hides the least text."""
    # What was learned from one try would be the only source of the next.
    await tab.run("document.querySelector('#ask [name=learn]').checked = false")
    found: dict[float, bytes] = {}
    for _ in range(TRIES):
        await tab.click("#samples .chip:nth-child(2)")
        await _answered(tab)
        if await tab.run(f"{SOURCES} > 1 && {PARTLY_ACCEPTED}.length > 0"):
            hidden = await _point_at_a_step(tab)
            found[hidden] = await _picture(tab, "#by-position")
            if not hidden:
                break
        await tab.click("#anew")
    if not found:
        raise NoPicture(f"{TRIES} answers had too few drafts for a picture: is the machine busy?")
    return found[min(found)]


async def timeline(tab: Page) -> bytes:
    """The figures and charts of an answer."""
    await _fill_in(tab, "#ask [name=max_tokens]", LOG_TOKENS)
    await tab.click("#samples .chip")
    await _answered(tab)
    return await _picture(tab, "#timeline", top="#figures")


async def race(tab: Page) -> bytes:
    """The end of a race in turn."""
    await _choose(tab, "race")
    await _fill_in(tab, "#race-form [name=max_tokens]", LOG_TOKENS)
    await tab.click("#race-start")
    await tab.until("document.getElementById('verdict').textContent === 'Identical text: yes'", 120)
    await tab.until("document.querySelectorAll('#race-chart polyline').length === 2")
    return await _picture(tab, "#race")


async def mesh(tab: Page) -> bytes:
    """An answer under way, and the proposer that took the place of the one killed meanwhile."""
    await _choose(tab, "mesh")
    await tab.until(f"document.querySelector('[data-role=proposer]') !== null && !{PROPOSER_IS_NEW}", 60)
    await tab.click("#watch")
    await tab.until("document.querySelectorAll('#watched .step').length > 20", 60)
    await tab.click("#kill")
    await tab.until("document.getElementById('mesh-log').textContent.includes('Killed')")
    await tab.until(f"{MESH_DRAWN} && {PROPOSER_IS_NEW}", 60)
    return await _picture(tab, "#mesh")


PICTURES: dict[str, Callable[[Page], Awaitable[bytes]]] = {
    "playground": playground,
    "timeline": timeline,
    "race": race,
    "mesh": mesh,
}


async def _answered(tab: Page) -> None:
    await tab.click("#send")
    await tab.until(f"{ANSWER} !== null && {ENDED}", 120)
    # Figures and charts follow the text.
    await tab.until("document.querySelector('#timeline svg') !== null")


async def _point_at_a_step(tab: Page) -> float:
    """At the one whose note hides the least text; the area of that."""
    count = await tab.run(f"{PARTLY_ACCEPTED}.map((step, place) => step.id = `partly-${{place}}`).length")
    hidden = {}
    for step in [f"#partly-{place} .origin" for place in range(count)]:
        await _hover(tab, step)
        hidden[step] = await tab.run(HIDDEN)
    best = min(hidden, key=lambda step: hidden[step])
    await _hover(tab, best)
    return float(hidden[best])


async def _hover(tab: Page, step: str) -> None:
    """From elsewhere, so that the note seen is that of this step."""
    await tab.call("Input.dispatchMouseEvent", type="mouseMoved", x=1, y=1)
    await tab.until(f"{NOTE_HIDDEN} !== false")
    await tab.point_at(step)
    await tab.until(f"{NOTE_HIDDEN} === false")


async def _choose(tab: Page, view: str) -> None:
    await tab.click(f"nav a[href='#{view}']")
    await tab.until(f"!document.getElementById('{view}').hidden")


async def _fill_in(tab: Page, selector: str, value: int) -> None:
    await tab.run(f"document.querySelector({json.dumps(selector)}).value = {value}")


async def _picture(tab: Page, shown: str, top: str | None = None) -> bytes:
    """The page down to the end of an element; with `top` only what lies between the two, edges included."""
    await tab.run("document.activeElement.blur()")
    last = await _box(tab, shown)
    x, y, right = 0.0, 0.0, float(WIDTH)
    if top:
        first = await _box(tab, top)
        x, y, right = first["left"] - EDGE, first["top"] - EDGE, first["right"] + EDGE
    clip = {"x": x, "y": y, "width": right - x, "height": last["bottom"] + EDGE - y, "scale": 1}
    taken = await tab.call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
    return base64.b64decode(taken["data"])


async def _box(tab: Page, selector: str) -> dict[str, float]:
    return dict(await tab.run(f"document.querySelector({json.dumps(selector)}).getBoundingClientRect().toJSON()"))


async def taken(tab: Page, url: str, name: str) -> bytes:
    """One picture, of a page that was just opened."""
    size = {"width": WIDTH, "height": HEIGHT, "deviceScaleFactor": SCALE}
    await tab.call("Emulation.setDeviceMetricsOverride", mobile=False, **size)
    await tab.goto(url)
    await tab.until("document.getElementById('model').value !== ''")
    await tab.until("document.getElementById('health').dataset.state === 'ready'", 60)
    return await PICTURES[name](tab)


def small(picture: bytes) -> bytes:
    """The same with few colours."""
    command = ["pngquant", "--speed=1", "--strip", str(COLOURS), "-"]
    return subprocess.run(command, input=picture, stdout=subprocess.PIPE, check=True).stdout


async def take(names: Sequence[str], url: str, folder: Path) -> None:
    with chromium() as address:
        for name in names:
            async with page(address) as tab:
                picture = small(await taken(tab, url, name))
            if len(picture) > LARGEST:
                raise NoPicture(f"{name}.png has {len(picture)} bytes, more than {LARGEST}")
            (folder / f"{name}.png").write_bytes(picture)
            print(f"{name}.png: {len(picture) / 1000:.0f} KB", flush=True)


def missing() -> list[str]:
    """Debian's packages that are needed and not here. Inter is the page's first font: with another one the pictures
    would differ from machine to machine."""
    fonts = shutil.which("fc-list") and subprocess.run(["fc-list", "Inter"], capture_output=True, check=True).stdout
    there = {"chromium": executable(), "fonts-inter": fonts, "pngquant": shutil.which("pngquant")}
    return [package for package, found in there.items() if not found]


def main() -> int:
    parser = argparse.ArgumentParser(description="pictures of the page for docs/")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(PICTURES)} (default: all)")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder to write to (default docs/pictures)")
    options = parser.parse_args()
    if unknown := set(options.names) - set(PICTURES):
        parser.error(f"no such picture: {', '.join(sorted(unknown))}")
    if packages := missing():
        print(f"packages are missing: apt-get install -y {' '.join(packages)}", file=sys.stderr)
        return 1
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".toml") as config:
        # The button that kills a proposer is there in demo mode only, which is no flag.
        config.write("demo = true\n")
        config.flush()
        with running_mesh(config=config.name) as running:
            try:
                asyncio.run(take(options.names or list(PICTURES), running.url, options.out))
            except NoPicture as reason:
                print(reason, file=sys.stderr)
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

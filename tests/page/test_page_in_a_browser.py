"""The page in a real Chromium, before a real mesh: what a person does there, and what is seen.

How fast it is isn't judged: where tests run, other work runs beside them. deploy/pictures.py takes the pictures for
docs/.
"""

from __future__ import annotations

import json
import subprocess
import tarfile
import urllib.request
from typing import Any

import pytest
from browser import Page, executable
from running_mesh import RunningMesh

from tests.deploy_script import deploy_script

pytestmark = [
    pytest.mark.slow,
    pytest.mark.model,
    pytest.mark.skipif(executable() is None, reason="there is no chromium: apt-get install chromium"),
]

PICTURES = deploy_script("pictures")
VIEWS = ("playground", "race", "mesh")
SHIFT = 8  # of the DevTools protocol's modifiers
SHOWN = "document.querySelector('#turns .turn:last-child .answer')"
# What is shown without the ghosts, which stand in the text and are none of it.
TEXT = f"(() => {{ const box = {SHOWN}.cloneNode(true); box.querySelectorAll('del').forEach((each) => each.remove()); return box.textContent; }})()"  # noqa: E501
ENDED = "!document.getElementById('send').hidden"
RACED = "/^Identical|^Stopped|[.]$/.test(document.getElementById('verdict').textContent)"

PROMPTS = (
    "What is a mesh?", "Count from one to twenty.", "Say the alphabet.", "Name the planets.", "Write a haiku on rain.",
    "Write a function that adds two numbers in Python.", "What is 12 times 12?", "List five fruits, one a line.",
    "Repeat after me: red green blue red green blue red green blue", "Translate to French: good morning",
    "Write a JSON object with name and age.", "Why is the sky blue?", "Tell a short joke.", "Define speculation.",
    "Write a table of squares from 1 to 10.", "What does HTTP mean?", "Write the word echo ten times.",
    "Give three uses of a rope.", "Spell harbour backwards.", "Summarise: the ferry leaves at seven, every morning.",
)  # fmt: skip


async def choose(tab: Page, view: str) -> None:
    await tab.click(f"nav a[href='#{view}']")
    await tab.until(f"!document.getElementById('{view}').hidden")


async def fill_in(tab: Page, selector: str, text: str) -> None:
    await tab.run(f"document.querySelector({json.dumps(selector)}).value = {json.dumps(text)}")


async def answered(tab: Page, chip: int = 3, tokens: int = 96, method: str = "") -> None:
    """A prompt of the page's own is taken and sent by mouse; the answer is waited for."""
    await fill_in(tab, "#ask [name=max_tokens]", str(tokens))
    await tab.run(f"document.querySelector('#ask [name=method]').value = '{method}'")
    await tab.click(f"#samples .chip:nth-child({chip})")
    await tab.click("#send")
    await tab.until(ENDED, 120)
    # Figures and charts follow the text.
    await tab.until("document.querySelector('#timeline svg') !== null", 30)


async def raced(tab: Page) -> str:
    await tab.click("#race-start")
    await tab.until("document.getElementById('race-start').hidden")
    await tab.until("document.getElementById('race-stop').hidden && " + RACED, 120)
    return str(await tab.run("document.getElementById('verdict').textContent"))


def asked(mesh: RunningMesh, path: str, body: Any) -> Any:
    request = urllib.request.Request(
        mesh.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}, method="POST"
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def listed(mesh: RunningMesh) -> Any:
    with urllib.request.urlopen(f"{mesh.url}/v1/models", timeout=60) as answer:
        return json.load(answer)["data"]


async def test_an_answer_is_shown_as_it_is_with_every_tokens_origin(mesh: RunningMesh, opened: Page) -> None:
    await answered(opened)
    prompt = await opened.run("document.querySelector('#turns .asked').textContent")
    body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": 96, "temperature": 0}
    model = await opened.run("document.getElementById('model').value")
    told = asked(mesh, "/v1/chat/completions", {"model": model, **body})
    assert await opened.run(TEXT) == told["choices"][0]["message"]["content"]
    tokens = int(await opened.run("document.getElementById('f-tokens').textContent"))
    counts = "[...document.querySelectorAll('#legend .count')].map((each) => Number(each.textContent))"
    assert sum(await opened.run(counts)) == tokens
    assert await opened.run(f"{SHOWN}.querySelectorAll('.origin:not(.plain, .bonus)').length") > 0
    # Told apart by line as well as by colour.
    lines = await opened.run(
        "[...document.querySelectorAll('#legend .origin:not(.plain)')].map((each) => getComputedStyle(each))"
        ".map((style) => style.textDecorationStyle + style.textDecorationThickness)"
    )
    assert len(set(lines)) == len(lines) and len(lines) >= 2
    for chart in ("by-position", "in-order", "timeline"):
        assert await opened.run(f"document.querySelector('#{chart} svg').getAttribute('aria-label')"), chart
    assert opened.complaints == []


async def test_the_menus_offer_the_methods_that_are_loaded(opened: Page, mesh: RunningMesh) -> None:
    loaded = listed(mesh)[0]["methods"]
    menu = "[...document.querySelectorAll('#ask [name=method] option')]"
    await opened.until(f"{menu}.some((option) => option.disabled)")
    offered = await opened.run(f"{menu}.filter((option) => !option.disabled).map((option) => option.value)")
    assert set(offered) == {"", "off", *loaded} - {"naive"}
    assert "medusa" in await opened.run(f"{menu}.filter((option) => option.hidden).map((option) => option.value)")


async def test_pointing_at_a_step_brackets_it_and_shows_what_was_rejected(opened: Page) -> None:
    # One that drafts eight tokens, whatever they are worth: some of them are wrong.
    await answered(opened, method="ngram")
    assert await opened.run("document.getElementById('note').hidden") is not False
    # One that can be pointed at: the middle of its first run of tokens lies on it.
    await opened.run(
        f"[...{SHOWN}.querySelectorAll('.step:has(del)')].find((step) => {{ const run = step.querySelector('.origin');"
        " return run.getClientRects().length === 1 && run.textContent.trim(); }).id = 'rejected'"
    )
    ghost = await opened.run("document.querySelector('#rejected del').textContent")
    await opened.point_at("#rejected .origin")
    await opened.until("document.getElementById('note').hidden === false")
    note = await opened.run("document.getElementById('note').innerText")
    assert "drafted by" in note and "accepted" in note
    fell = "[...document.querySelectorAll('#note .fell')].map((each) => each.textContent).join('')"
    shown = (await opened.run(fell)).replace("\u00a0", " ").replace("␣", " ")
    assert shown == ghost
    assert "gradient" in await opened.run("getComputedStyle(document.getElementById('rejected')).backgroundImage")
    visible = "getComputedStyle(document.querySelector('#rejected del')).display"
    assert await opened.run(visible) == "none"
    await opened.click("#ghosts")
    assert await opened.run(visible) == "inline"


async def test_all_of_it_can_be_done_with_keys(opened: Page) -> None:
    focus = "document.activeElement.id || document.activeElement.textContent.trim() || document.activeElement.name"
    seen = []
    for _ in range(9):
        await opened.press("Tab")
        seen.append(await opened.run(focus))
        if seen[-1] == "prompt":
            break
    assert seen[:5] == ["To the content", "[specmesh]", "Playground", "Race", "Mesh"]
    assert seen[-1] == "prompt"
    await opened.type("Say the alphabet,")
    await opened.press("Enter", modifiers=SHIFT)
    await opened.type("one letter a line.")
    assert "\n" in await opened.run("document.getElementById('prompt').value"), "Shift and Enter break the line"
    await opened.press("Enter")
    await opened.until("document.querySelectorAll('#turns .step').length > 3", 60)
    await opened.until(ENDED, 120)
    for _ in range(40):
        await opened.press("Tab")
        if await opened.run("document.activeElement.classList.contains('step')"):
            break
    note = "document.getElementById('note').innerText.split('\\n')[0].slice(0, 6)"
    assert await opened.run(note) == "Step 1"
    await opened.press("ArrowRight")
    assert await opened.run(note) == "Step 2"
    await opened.press("End")
    assert await opened.run("document.activeElement === [...document.querySelectorAll('#turns .step')].at(-1)")
    await opened.press("Escape")
    assert await opened.run("document.getElementById('note').hidden") is True
    # And by keys alone to another part of the page.
    await opened.run("document.querySelector('nav a[href=\"#race\"]').focus()")
    await opened.press("Enter")
    await opened.until("!document.getElementById('race').hidden")


async def test_a_conversation_goes_on_and_an_answer_can_be_stopped(opened: Page) -> None:
    await answered(opened, chip=4, tokens=16)
    await fill_in(opened, "#prompt", "Go on.")
    await fill_in(opened, "#ask [name=max_tokens]", "1000")
    await opened.click("#send")
    await opened.until("document.querySelectorAll('#turns .turn:nth-child(2) .step').length > 3", 60)
    await opened.click("#stop")
    await opened.until(ENDED)
    assert await opened.run("document.querySelector('.turn:nth-child(2) .aside').textContent") == "Stopped."
    await opened.click("#anew")
    assert await opened.run("document.getElementById('turns').childElementCount") == 0
    assert await opened.run("document.getElementById('howto').hidden") is False


async def test_failures_are_said_in_words_and_can_be_tried_again(opened: Page) -> None:
    await fill_in(opened, "#ask [name=max_tokens]", "100000")
    await fill_in(opened, "#prompt", "Hello")
    await opened.click("#send")
    await opened.until("document.querySelector('.failure b') !== null")
    assert await opened.run("document.querySelector('#turns .failure b').textContent") == "Refused (400)"
    await fill_in(opened, "#ask [name=max_tokens]", "8")
    offline = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    await opened.call("Network.emulateNetworkConditions", offline=True, **offline)
    await opened.click(".failure button")
    await opened.until("document.querySelector('#turns .failure b')?.textContent === 'No connection'")
    assert await opened.run("document.getElementById('turns').childElementCount") == 1
    await opened.until("!document.getElementById('gone').hidden", 20)
    await opened.call("Network.emulateNetworkConditions", offline=False, **offline)
    await opened.click(".failure button")
    await opened.until(f"{ENDED} && document.querySelectorAll('#turns .turn:last-child .step').length > 0", 60)
    await opened.until("document.getElementById('gone').hidden", 20)


async def test_the_race_says_identical_on_twenty_prompts(opened: Page) -> None:
    await choose(opened, "race")
    await fill_in(opened, "#race-form [name=max_tokens]", "40")
    await opened.run("document.querySelector('#race-form [name=mode][value=chat]').click()")
    await opened.run("document.querySelector('#race-form [name=order][value=once]').click()")
    verdicts = {}
    for prompt in PROMPTS:
        await fill_in(opened, "#race-prompt", prompt)
        verdicts[prompt] = await raced(opened)
    assert len(verdicts) == 20
    assert set(verdicts.values()) == {"Identical text: yes"}, verdicts


async def test_in_turn_the_first_lane_is_shown_again_beside_the_second(opened: Page) -> None:
    await choose(opened, "race")
    assert await raced(opened) == "Identical text: yes"
    figures = [await opened.run(f"document.getElementById('{lane}-figures').textContent") for lane in ("off", "on")]
    off, on = [each.split(" · ")[0] for each in figures]
    assert off == on and off.endswith("tokens")
    assert (await opened.run("document.getElementById('multiplier').textContent")).endswith("×")
    assert await opened.run("document.querySelectorAll('#race-chart polyline').length") == 2
    assert await opened.run("document.querySelectorAll('#off-text .origin:not(.plain)').length") == 0
    assert await opened.run("document.querySelectorAll('#on-text .origin:not(.plain)').length") > 0


async def test_an_answer_goes_on_while_the_proposer_is_killed(mesh: RunningMesh, opened: Page) -> None:
    await choose(opened, "mesh")
    roles = "[...document.querySelectorAll('.member')].map((each) => each.dataset.role).sort().join()"
    await opened.until(f"{roles} === 'proposer,streamer,tokenizer,worker'")
    await opened.until("document.querySelectorAll('#lines path').length >= 3", 20)
    killed = mesh.pid("proposer")
    await opened.click("#watch")
    await opened.until("document.querySelectorAll('#watched .step').length > 20", 60)
    await opened.click("#kill")
    await opened.until("document.getElementById('mesh-log').textContent.includes('The answer ended well')", 240)
    log = await opened.run("document.getElementById('mesh-log').textContent")
    assert f"Killed the proposer (pid {killed})" in log
    mesh.wait_for_another("proposer", killed)


@pytest.mark.parametrize("view", VIEWS)
async def test_nothing_comes_from_elsewhere_and_nothing_is_complained_of(
    mesh: RunningMesh, opened: Page, view: str
) -> None:
    await choose(opened, view)
    await opened.until("document.getElementById('health').dataset.state !== 'unknown'")
    assert [each for each in opened.requested if not each.startswith(mesh.url)] == []
    assert opened.complaints == []


@pytest.mark.parametrize("view", VIEWS)
async def test_a_narrow_window_needs_no_sideways_scrolling(opened: Page, view: str) -> None:
    await opened.size(390, 800)
    await choose(opened, view)
    if view == "mesh":
        await opened.until("document.querySelectorAll('.member').length === 4")
    assert await opened.run("document.documentElement.scrollWidth") <= 390


async def test_on_a_phone_send_scrolls_to_the_answer(opened: Page) -> None:
    await opened.size(390, 800)
    await answered(opened, tokens=8)
    top = await opened.run(f"{SHOWN}.getBoundingClientRect().top")
    assert 0 <= top < 400
    assert await opened.run("document.activeElement.id") != "prompt"


async def test_dark_follows_the_system_until_somebody_chooses(opened: Page) -> None:
    theme = "document.documentElement.dataset.theme"
    assert await opened.run(theme) == "light"
    await opened.prefer("dark")
    await opened.until(f"{theme} === 'dark'")
    await opened.click("#theme")
    assert await opened.run(theme) == "light"


PAINTER = "import('/page/paint.js').then(async ({ Painter }) => { %s })"


async def test_the_display_delay_is_what_95_of_100_frames_do_not_exceed(opened: Page) -> None:
    await answered(opened, chip=4, tokens=200)
    await opened.until("/ms|s$/.test(document.getElementById('f-behind').textContent)")
    quantile = "const painter = new Painter(() => {}); painter.lags = [%s]; return painter.lag(0.95);"
    shuffled = ",".join(str(1 + 37 * frame % 100) for frame in range(100))
    assert [await opened.run(PAINTER % (quantile % lags)) for lags in ("", "7", shuffled)] == [None, 7, 95]


async def test_chunks_of_one_frame_are_drawn_once_and_late_by_the_first_of_them(opened: Page) -> None:
    measured = """
        let drawn = 0;
        const painter = new Painter(() => { drawn += 1; }), now = performance.now();
        [now - 1000, now, now].forEach((read) => painter.soon(read));
        while (!painter.lags.length) await new Promise((later) => setTimeout(later));
        return [drawn, painter.lags.length, painter.lags[0] >= 1000];
    """
    assert await opened.run(PAINTER % measured) == [1, 1, True]


@pytest.fixture(scope="session")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """axe-core's script, from npm: for this test alone, and never part of the project."""
    folder = tmp_path_factory.mktemp("axe")
    try:
        subprocess.run(["npm", "pack", "--silent", "axe-core@4"], cwd=folder, check=True, timeout=120)
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"axe-core cannot be had from npm: {error}")
    [packed] = folder.glob("*.tgz")
    with tarfile.open(packed) as archive:
        script = archive.extractfile("package/axe.min.js")
        assert script is not None
        return script.read().decode()


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_axe_finds_nothing_serious(opened: Page, axe: str, scheme: str) -> None:
    await opened.prefer(scheme)
    await answered(opened, chip=1, tokens=48)
    await opened.click("#ghosts")
    await opened.run(axe)
    for view in VIEWS:
        await choose(opened, view)
        if view == "race":
            await raced(opened)
        if view == "mesh":
            await opened.until("document.querySelectorAll('.member').length === 4")
        found = await opened.run(
            "axe.run().then(({ violations }) => violations.map(({ id, impact, nodes }) =>"
            " [id, impact, ...nodes.slice(0, 3).map((each) => each.html + ' ' + each.failureSummary)]))"
        )
        serious = [each for each in found if each[1] in ("serious", "critical")]
        assert serious == [], (view, scheme)


@pytest.mark.parametrize("name", PICTURES.PICTURES)
async def test_the_pictures_of_docs_can_be_taken(mesh: RunningMesh, opened: Page, name: str) -> None:
    assert len(await PICTURES.taken(opened, mesh.url, name)) > 10_000

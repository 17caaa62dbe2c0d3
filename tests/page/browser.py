"""A real headless Chromium, spoken to over its DevTools protocol: open a page, run JavaScript, press keys, look.

Small on purpose: what the page's tests need, by the websocket client that is there anyway. Knows nothing of the page.
"""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp

# A page under test runs the same on a machine without a screen, a sound card or the rights of a sandbox.
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--mute-audio",
    "--force-color-profile=srgb", "--remote-debugging-port=0",
)  # fmt: skip
KEYS = {"Tab": 9, "Enter": 13, "Escape": 27, " ": 32, "End": 35, "Home": 36, "ArrowLeft": 37, "ArrowRight": 39}


def executable() -> str | None:
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class PageError(Exception):
    """What JavaScript threw, or what the page's console complained of."""


class Page:
    def __init__(self, socket: aiohttp.ClientWebSocketResponse, session: str) -> None:
        self._socket = socket
        self._session = session
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._reader = asyncio.create_task(self._read())
        self.patience = 300.0  # s: longer than anything here waits for
        self.complaints: list[str] = []
        self.requested: list[str] = []

    async def call(self, method: str, **params: Any) -> Any:
        number = len(self._asked) + 1
        self._asked[number] = answer = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "sessionId": self._session, "method": method, "params": params})
        return await asyncio.wait_for(answer, self.patience)

    async def _read(self) -> None:
        async for frame in self._socket:
            message = json.loads(frame.data)
            if (number := message.get("id")) is not None:
                answer = self._asked.get(number)
                if answer is None or answer.done():
                    continue
                if "error" in message:
                    answer.set_exception(PageError(message["error"]["message"]))
                else:
                    answer.set_result(message["result"])
            else:
                self._heard(message["method"], message["params"])

    def _heard(self, method: str, params: Any) -> None:
        if method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.complaints.append(details.get("exception", {}).get("description") or details["text"])
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.complaints.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requested.append(params["request"]["url"])

    async def start(self) -> None:
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self.call(f"{domain}.enable")

    async def goto(self, url: str) -> None:
        await self.call("Page.navigate", url=url)
        await self.until("document.readyState === 'complete'")

    async def run(self, script: str) -> Any:
        """The value of an expression; a promise's is awaited."""
        answer = await self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if (thrown := answer.get("exceptionDetails")) is not None:
            raise PageError(thrown.get("exception", {}).get("description") or thrown["text"])
        return answer["result"].get("value")

    async def until(self, script: str, seconds: float = 30.0) -> None:
        """Until the expression is true; looked at once a frame, in the page."""
        wait = f"""new Promise((done, failed) => {{
            const end = performance.now() + {1000 * seconds};
            const look = () => {{
                let found = false;
                try {{ found = ({script}); }} catch (error) {{ return failed(error); }}
                if (found) done();
                else if (performance.now() > end) failed(new Error("never: " + {json.dumps(script)}));
                else setTimeout(look, 20);
            }};
            look();
        }})"""
        await self.run(wait)

    async def click(self, selector: str) -> None:
        """With the mouse, in the middle of it, wherever that is."""
        box = f"document.querySelector({json.dumps(selector)})"
        await self.run(f"{box}.scrollIntoView({{ block: 'center' }})")
        x, y = await self.run(
            f"(() => {{ const r = {box}.getClientRects()[0]; return [r.x + r.width / 2, r.y + r.height / 2]; }})()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            await self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    async def point_at(self, selector: str) -> None:
        box = f"document.querySelector({json.dumps(selector)})"
        await self.run(f"{box}.scrollIntoView({{ block: 'center' }})")
        x, y = await self.run(
            f"(() => {{ const r = {box}.getClientRects()[0]; return [r.x + r.width / 2, r.y + r.height / 2]; }})()"
        )
        await self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    async def press(self, key: str, modifiers: int = 0) -> None:
        text = {"Enter": "\r", " ": " "}.get(key, "")
        known = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS[key], "modifiers": modifiers}
        await self.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", text=text, **known)
        await self.call("Input.dispatchKeyEvent", type="keyUp", **known)

    async def type(self, text: str) -> None:
        await self.call("Input.insertText", text=text)

    async def size(self, width: int, height: int) -> None:
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )

    async def prefer(self, scheme: str) -> None:
        await self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    async def picture(self) -> bytes:
        """What is seen, as a PNG."""
        return base64.b64decode((await self.call("Page.captureScreenshot", format="png"))["data"])

    async def close(self) -> None:
        self._reader.cancel()
        with suppress(asyncio.CancelledError):
            await self._reader


@contextmanager
def chromium() -> Iterator[str]:
    """One process; the address of its socket. Gone with everything of it at the end."""
    found = executable()
    assert found is not None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [found, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        try:
            yield _address(Path(profile) / "DevToolsActivePort", process)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _address(told: Path, process: subprocess.Popen[bytes]) -> str:
    """It writes its port and path into a file; there is nothing to wait on but that."""
    end = time.monotonic() + 60
    while not (told.exists() and told.read_text().count("\n")):
        assert process.poll() is None, f"chromium ended with {process.returncode}"
        assert time.monotonic() < end, "chromium did not start"
        time.sleep(0.05)
    port, path = told.read_text().split("\n")[:2]
    return f"ws://127.0.0.1:{port}{path}"


@asynccontextmanager
async def page(address: str) -> AsyncIterator[Page]:
    """A tab of its own, with nothing stored: its own context goes with it."""
    async with aiohttp.ClientSession() as http, http.ws_connect(address, max_msg_size=0) as socket:
        context = (await _asked(1, socket, "Target.createBrowserContext"))["browserContextId"]
        tab = {"url": "about:blank", "browserContextId": context}
        target = (await _asked(2, socket, "Target.createTarget", **tab))["targetId"]
        session = await _asked(3, socket, "Target.attachToTarget", targetId=target, flatten=True)
        opened = Page(socket, session["sessionId"])
        try:
            await opened.start()
            await opened.size(1360, 900)
            yield opened
        finally:
            await opened.close()
            # Its tabs would go on asking the server.
            await _asked(4, socket, "Target.disposeBrowserContext", browserContextId=context)


async def _asked(number: int, socket: aiohttp.ClientWebSocketResponse, method: str, **params: Any) -> Any:
    await socket.send_json({"id": number, "method": method, "params": params})
    async for frame in socket:
        message = json.loads(frame.data)
        if message.get("id") == number:
            return message["result"]
    raise PageError("chromium closed its socket")
